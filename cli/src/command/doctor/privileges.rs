//! Checks of the user's privileges on the collection of the leases.

use super::{Finding, Verdict};
use crate::command::driver::{Bson, Deployment, Document, Refusal, doc, documents};

/// A task, what the user needs for it, and the effect of what the user lacks.
pub(super) struct Task<N: 'static> {
    pub(super) check: &'static str,
    pub(super) does: &'static str,
    pub(super) needs: &'static [N],
    pub(super) without: Verdict,
    pub(super) otherwise: &'static str,
}

impl<N> Task<N> {
    /// Judges the task. `advice`: what to do if something is missing.
    pub(super) fn judged(&self, needed: &str, missing: &str, advice: impl FnOnce() -> String) -> Finding {
        let Self { check, does, without, otherwise, .. } = *self;
        if missing.is_empty() {
            return Finding::pass(check, format!("{does}: {needed}"));
        }
        let found = format!("{does}: not granted is {missing}, so {otherwise}");
        Finding { check, verdict: without, found, advice: Some(advice()) }
    }
}

const TASKS: [Task<&str>; 4] = [
    Task {
        check: "may hold",
        does: "acquire, refresh, release, revoke, run transactions",
        needs: &["find", "insert", "update"],
        without: Verdict::Fail,
        otherwise: "no lease can be held",
    },
    Task {
        check: "may wait",
        does: "receive notifications, watch",
        needs: &["changeStream"],
        without: Verdict::Warn,
        otherwise: "waiters and watches poll",
    },
    Task {
        check: "may look",
        does: "list, inspect, verify",
        needs: &["find"],
        without: Verdict::Fail,
        otherwise: "no lease can be read",
    },
    Task {
        check: "may index",
        does: "create the TTL index for idle records",
        needs: &["createIndex"],
        without: Verdict::Warn,
        otherwise: "an operator must create it",
    },
];

const USER: &str = "user";

pub(super) async fn of_the_user(deployment: &Deployment) -> Vec<Finding> {
    let status = match deployment.run_admin(doc! { "connectionStatus": 1, "showPrivileges": true }).await {
        Ok(status) => status,
        Err(refusal) => {
            return vec![Finding::warn(USER, format!("cannot read the privileges ({refusal})"), "retry")];
        }
    };
    let info = status.get_document("authInfo").cloned().unwrap_or_default();
    let users: Vec<String> = documents(&info, "authenticatedUsers").map(name).collect();
    if users.is_empty() {
        return vec![without_login(deployment).await];
    }
    let granted = granted(deployment, &info);
    let mut findings = vec![Finding::pass(USER, users.join(", "))];
    findings.extend(TASKS.iter().map(|task| judge(deployment, task, &granted)));
    findings
}

/// Checks a client without a login, which suffices if access control is off.
async fn without_login(deployment: &Deployment) -> Finding {
    let find = doc! { "find": &deployment.collection, "limit": 1, "singleBatch": true };
    match deployment.run(find).await {
        Err(Refusal::Unauthorized) => Finding::fail(
            USER,
            "not logged in, and the server requires a login",
            "add user, password and authSource to the connection string",
        ),
        Err(refusal @ (Refusal::TooSlow | Refusal::Transient(..) | Refusal::Server(..) | Refusal::Other(_))) => {
            Finding::warn(USER, format!("not logged in, and a read failed ({refusal})"), "retry")
        }
        Ok(_) | Err(Refusal::NoCollection) => {
            Finding::pass(USER, "access control is off, so every client has all privileges")
        }
    }
}

fn judge(deployment: &Deployment, task: &Task<&str>, granted: &[String]) -> Finding {
    let is_granted = |action: &str| granted.iter().any(|one| one == action || one == "anyAction");
    let missing: Vec<&str> = task.needs.iter().copied().filter(|action| !is_granted(action)).collect();
    let missing = missing.join(", ");
    let advice = || format!("grant {missing} on {}.{}", deployment.database(), deployment.collection);
    task.judged(&task.needs.join(", "), &missing, advice)
}

/// Lists the actions that the user is granted on the collection of the leases.
fn granted(deployment: &Deployment, info: &Document) -> Vec<String> {
    let applies = |resource: &Document| {
        let is = |name: &str, value: &str| {
            resource.get_str(name).is_ok_and(|granted| granted.is_empty() || granted == value)
        };
        resource.get_bool("anyResource").unwrap_or(false)
            || (is("db", deployment.database()) && is("collection", &deployment.collection))
    };
    documents(info, "authenticatedUserPrivileges")
        .filter(|privilege| privilege.get_document("resource").is_ok_and(applies))
        .flat_map(|privilege| privilege.get_array("actions").into_iter().flatten())
        .filter_map(Bson::as_str)
        .map(str::to_owned)
        .collect()
}

fn name(user: &Document) -> String {
    format!("{} of {}", user.get_str("user").unwrap_or("?"), user.get_str("db").unwrap_or("?"))
}

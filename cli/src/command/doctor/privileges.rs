//! Checks of the user's privileges on the collection of the leases.

use super::{Finding, Verdict};
use crate::command::driver::{Bson, Deployment, Document, Refusal, doc, documents};

/// A task, the actions that it needs, and the effect of a missing action.
struct Task {
    check: &'static str,
    does: &'static str,
    actions: &'static [&'static str],
    without: Verdict,
    otherwise: &'static str,
}

const TASKS: [Task; 5] = [
    Task {
        check: "may hold",
        does: "acquire, refresh, release, revoke, run transactions",
        actions: &["find", "insert", "update"],
        without: Verdict::Fail,
        otherwise: "no lease can be held",
    },
    Task {
        check: "may wait",
        does: "receive notifications, watch",
        actions: &["changeStream"],
        without: Verdict::Warn,
        otherwise: "waiters and watches poll",
    },
    Task {
        check: "may look",
        does: "list, inspect, verify",
        actions: &["find"],
        without: Verdict::Fail,
        otherwise: "no lease can be read",
    },
    Task {
        check: "may purge",
        does: "purge idle records",
        actions: &["remove"],
        without: Verdict::Warn,
        otherwise: "`mongoseal purge` fails; the server still deletes idle records",
    },
    Task {
        check: "may index",
        does: "create the TTL index for idle records",
        actions: &["createIndex"],
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

fn judge(deployment: &Deployment, task: &Task, granted: &[String]) -> Finding {
    let missing: Vec<&str> = task
        .actions
        .iter()
        .copied()
        .filter(|action| !granted.iter().any(|one| one == action || one == "anyAction"))
        .collect();
    if missing.is_empty() {
        return Finding::pass(task.check, format!("{}: {}", task.does, task.actions.join(", ")));
    }
    let found = format!("{}: not granted is {}, so {}", task.does, missing.join(", "), task.otherwise);
    let advice = format!("grant {} on {}.{}", missing.join(", "), deployment.database(), deployment.collection);
    Finding { check: task.check, verdict: task.without, found, advice: Some(advice) }
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

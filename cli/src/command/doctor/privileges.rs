//! What the user may do with the leases.

use super::{Finding, Verdict};
use crate::command::driver::{Bson, Deployment, Document, Refusal, doc};

/// What is done, which actions it takes, and what it means that one is missing.
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
        does: "acquire, refresh, release, revoke, and act in transactions",
        actions: &["find", "insert", "update"],
        without: Verdict::Fail,
        otherwise: "no lease can be held",
    },
    Task {
        check: "may wait",
        does: "be told when it is one's turn, and watch",
        actions: &["changeStream"],
        without: Verdict::Warn,
        otherwise: "waiters and watches ask again and again instead",
    },
    Task {
        check: "may look",
        does: "list, inspect, verify",
        actions: &["find"],
        without: Verdict::Fail,
        otherwise: "nothing is seen",
    },
    Task {
        check: "may purge",
        does: "delete idle records by hand",
        actions: &["remove"],
        without: Verdict::Warn,
        otherwise: "`mongoseal purge` is refused, and the server collects them all the same",
    },
    Task {
        check: "may index",
        does: "make the index that collects idle records",
        actions: &["createIndex"],
        without: Verdict::Warn,
        otherwise: "an operator must make it",
    },
];

const USER: &str = "user";

pub(super) async fn of_the_user(deployment: &Deployment) -> Vec<Finding> {
    let status = match deployment.admin(doc! { "connectionStatus": 1, "showPrivileges": true }).await {
        Ok(status) => status,
        Err(refusal) => {
            return vec![Finding::warn(USER, format!("the privileges are not known, {refusal}"), "retry")];
        }
    };
    let info = status.get_document("authInfo").cloned().unwrap_or_default();
    let users: Vec<String> = documents(&info, "authenticatedUsers").map(name).collect();
    if users.is_empty() {
        return vec![nobody(deployment).await];
    }
    let granted = granted(deployment, &info);
    let mut findings = vec![Finding::pass(USER, users.join(", "))];
    findings.extend(TASKS.iter().map(|task| judge(deployment, task, &granted)));
    findings
}

/// Nobody has logged in, which does where access is not controlled.
async fn nobody(deployment: &Deployment) -> Finding {
    let find = doc! { "find": &deployment.collection, "limit": 1, "singleBatch": true };
    match deployment.ask(find).await {
        Err(Refusal::Unauthorized) => Finding::fail(
            USER,
            "nobody has logged in, and the server wants to know who asks",
            "put user, password and authSource into the connection string",
        ),
        Err(refusal @ (Refusal::TooSlow | Refusal::Other(_))) => {
            Finding::warn(USER, format!("nobody has logged in, and a read failed, {refusal}"), "retry")
        }
        Ok(_) | Err(Refusal::NothingThere) => {
            Finding::pass(USER, "access is not controlled: everybody may do everything")
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
    let found = format!("{}: {} is not granted, so {}", task.does, missing.join(", "), task.otherwise);
    let advice = format!("grant {} on {}.{}", missing.join(", "), deployment.database(), deployment.collection);
    Finding { check: task.check, verdict: task.without, found, advice: Some(advice) }
}

/// The actions on the collection of the leases.
fn granted(deployment: &Deployment, info: &Document) -> Vec<String> {
    let concerns = |resource: &Document| {
        let is = |name: &str, value: &str| resource.get_str(name).is_ok_and(|said| said.is_empty() || said == value);
        resource.get_bool("anyResource").unwrap_or(false)
            || (is("db", deployment.database()) && is("collection", &deployment.collection))
    };
    documents(info, "authenticatedUserPrivileges")
        .filter(|privilege| privilege.get_document("resource").is_ok_and(concerns))
        .flat_map(|privilege| privilege.get_array("actions").into_iter().flatten())
        .filter_map(Bson::as_str)
        .map(str::to_owned)
        .collect()
}

fn documents<'a>(of: &'a Document, list: &str) -> impl Iterator<Item = &'a Document> + use<'a> {
    of.get_array(list).into_iter().flatten().filter_map(Bson::as_document)
}

fn name(user: &Document) -> String {
    format!("{} of {}", user.get_str("user").unwrap_or("?"), user.get_str("db").unwrap_or("?"))
}

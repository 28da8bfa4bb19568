//! Checks of the deployment: the replica set, its version, its journal, its change streams.

use super::Finding;
use crate::command::driver::{Deployment, Document, Refusal, doc, documents};

/// The wire version of MongoDB 6.0.
const WIRE_VERSION_6_0: i32 = 17;
/// States of a member: primary, secondary, arbiter.
const HEALTHY: [i32; 3] = [1, 2, 7];

const SET: &str = "replica set";

pub(super) async fn replica_set(deployment: &Deployment, allow_sharded: bool) -> Finding {
    if deployment.is_router() {
        let found = "sharded cluster, in which the clocks of the routers time leases";
        if !allow_sharded {
            return Finding::fail(SET, found, "use a replica set, or pass --allow-sharded if expiry is enough");
        }
        let advice = "synchronize the routers' clocks, and keep --retention far above any lag between them";
        return Finding::warn(SET, found, advice);
    }
    let Ok(name) = deployment.hello.get_str("setName") else {
        return Finding::fail(
            SET,
            "standalone server, which cannot confirm a write by a majority",
            "start it with --replSet and run rs.initiate(); one member is enough",
        );
    };
    let hosts = deployment.hosts().len();
    let members = format!("{name} with {hosts} {}", if hosts == 1 { "member" } else { "members" });
    if deployment.hello.get_array("arbiters").is_ok_and(|arbiters| !arbiters.is_empty()) {
        return Finding::warn(
            SET,
            format!("{members} that hold data, and an arbiter; if one of them is down, no majority confirms a write"),
            "replace the arbiter with a member that holds data",
        );
    }
    match deployment.run_admin(doc! { "replSetGetStatus": 1 }).await {
        Ok(status) => {
            let unhealthy = unhealthy(&status);
            if unhealthy.is_empty() {
                let healthy = if hosts == 1 { "healthy; no other member can take over" } else { "all healthy" };
                Finding::pass(SET, format!("{members}, {healthy}"))
            } else {
                let advice = "repair them, because one more failure can leave no majority";
                Finding::warn(SET, format!("{members}, not healthy are {}", unhealthy.join(", ")), advice)
            }
        }
        Err(Refusal::Unauthorized) => {
            Finding::pass(SET, format!("{members}; health not checked (the user lacks replSetGetStatus)"))
        }
        Err(refusal) => Finding::warn(SET, format!("{members}; cannot read their health ({refusal})"), "retry"),
    }
}

/// Lists the members that are not healthy, with their states.
fn unhealthy(status: &Document) -> Vec<String> {
    let is_unhealthy = |member: &&Document| {
        let up = member.get("health").is_none_or(|health| health.as_f64() != Some(0.0));
        !up || !member.get_i32("state").is_ok_and(|state| HEALTHY.contains(&state))
    };
    let named = |member: &Document| {
        format!("{} {}", member.get_str("name").unwrap_or("?"), member.get_str("stateStr").unwrap_or("?"))
    };
    documents(status, "members").filter(is_unhealthy).map(named).collect()
}

/// The major versions, and the day on which MongoDB ends its support of the last release of each, from
/// <https://www.mongodb.com/legal/support-policy/lifecycles>.
const ENDS: [(&str, &str); 3] = [("6", "2025-07-31"), ("7", "2027-08-31"), ("8", "2029-10-31")];

pub(super) async fn version(deployment: &Deployment) -> Finding {
    let build = deployment.run_admin(doc! { "buildInfo": 1 }).await;
    let version = build.ok().and_then(|build| build.get_str("version").ok().map(str::to_owned));
    let wire = deployment.hello.get_i32("maxWireVersion").unwrap_or(0);
    let found = version.as_ref().map_or_else(|| format!("wire version {wire}"), |version| format!("MongoDB {version}"));
    if wire < WIRE_VERSION_6_0 {
        return Finding::fail("version", found, "upgrade to MongoDB 6.0 or later");
    }
    let today = deployment.hello.get_datetime("localTime").ok().and_then(|time| time.try_to_rfc3339_string().ok());
    match version.zip(today).and_then(|(version, today)| ended(&version, &today)) {
        Some(end) => Finding::warn(
            "version",
            format!("{found}, whose support by MongoDB ended on {end}, so security holes in it stay"),
            "upgrade to a release of https://www.mongodb.com/legal/support-policy/lifecycles",
        ),
        None => Finding::pass("version", found),
    }
}

/// The day on which the support of this version ended, if it did before today. Days and times are in the form of RFC 3339.
fn ended(version: &str, today: &str) -> Option<&'static str> {
    let (_, end) = ENDS.iter().find(|(major, _)| version.split('.').next() == Some(major))?;
    (*end < today.get(..end.len())?).then_some(*end)
}

const JOURNAL: &str = "journal";

pub(super) async fn journal(deployment: &Deployment) -> Finding {
    let unknown = |why: String| {
        Finding::warn(
            JOURNAL,
            format!("cannot check whether a majority confirms journaled writes only ({why})"),
            "an operator can check that rs.conf().writeConcernMajorityJournalDefault is not false",
        )
    };
    match deployment.run_admin(doc! { "replSetGetConfig": 1 }).await {
        Ok(reply) => {
            let journaled =
                reply.get_document("config").map(|config| config.get_bool("writeConcernMajorityJournalDefault"));
            if matches!(journaled, Ok(Ok(false))) {
                return Finding::fail(
                    JOURNAL,
                    "a majority confirms writes before they are journaled, so a crash can lose a lease",
                    "set writeConcernMajorityJournalDefault to true with rs.reconfig()",
                );
            }
            Finding::pass(JOURNAL, "a majority confirms journaled writes only")
        }
        Err(Refusal::Unauthorized) => unknown("the user lacks replSetGetConfig".into()),
        Err(refusal) => unknown(refusal.to_string()),
    }
}

const STREAM: &str = "change stream";

pub(super) async fn change_stream(deployment: &Deployment) -> Finding {
    let slower = "so waiters poll, and holders notice a revocation at their next refresh";
    match deployment.watch().await {
        Ok(()) => Finding::pass(STREAM, "the server notifies waiters and holders"),
        Err(Refusal::Unauthorized) => Finding::warn(
            STREAM,
            format!("the user lacks changeStream, {slower}"),
            "grant changeStream on the collection",
        ),
        Err(refusal) => Finding::warn(STREAM, format!("not available, {slower}"), format!("MongoDB reports {refusal}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_support_of_a_release_ends_after_its_last_day() {
        assert_eq!(ended("6.0.27", "2025-08-01T00:00:00Z"), Some("2025-07-31"));
        assert_eq!(ended("6.0.27", "2025-07-31T23:59:59Z"), None);
        assert_eq!(ended("7.0.28", "2026-11-25T12:00:00Z"), None);
        assert_eq!(ended("6.3.2", "2026-11-25T12:00:00Z"), Some("2025-07-31"));
        assert_eq!(ended("9.0.0", "2030-01-01T00:00:00Z"), None);
    }

    #[test]
    fn members_that_are_down_or_do_not_follow_are_named() {
        let member = |name: &str, state: i32, word: &str, health: f64| {
            doc! { "name": name, "state": state, "stateStr": word, "health": health }
        };
        let members = vec![
            member("a:1", 1, "PRIMARY", 1.0),
            member("b:1", 2, "SECONDARY", 1.0),
            member("c:1", 8, "(not reachable/healthy)", 0.0),
            member("d:1", 3, "RECOVERING", 1.0),
        ];
        assert_eq!(unhealthy(&doc! { "members": members }), ["c:1 (not reachable/healthy)", "d:1 RECOVERING"]);
    }
}

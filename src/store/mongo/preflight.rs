//! Checks of the deployment before the first request. Each refusal says what to do.
//!
//! | file | checks |
//! |---|---|
//! | `preflight.rs` | the order of the checks |
//! | `preflight/deployment.rs` | which deployments are refused, by a server's answer to `hello` |
//! | `preflight/direct.rs` | whether a client can reach the primary |
//! | `preflight/probe.rs` | whether the collection accepts the updates of this store |
//! | `index.rs` | the TTL index |
//!
//! Invariant: nothing is written before all other checks have passed.

mod deployment;
mod direct;
mod probe;

use std::{sync::atomic::Ordering, time::Duration};

use mongodb::bson::{Document, doc};
use tracing::{debug, warn};

use super::{
    context::{MongoContext, PRIMARY},
    error, index,
    state::admission::Class,
};
use crate::types::{
    deadline::Deadline,
    error::{Error, Result},
};

/// By how much the cluster time may be ahead of the primary's clock. The server reads one after the other, and may
/// stall in between.
const MAX_STALL: Duration = Duration::from_secs(1);

/// Checks the deployment and creates the TTL index, unless a concurrent call has done both.
pub(super) async fn run(store: &MongoContext, deadline: Deadline) -> Result<()> {
    let admitted = store.preflight.admit(Class::Acquire, deadline).await?;
    if !store.is_checked.load(Ordering::Acquire) {
        admitted.run(deadline, |_| check(store, deadline)).await?;
        store.is_checked.store(true, Ordering::Release);
    }
    Ok(())
}

/// Without an error it sends `hello`, then three reading commands together, and then one that writes.
async fn check(store: &MongoContext, deadline: Deadline) -> Result<()> {
    // Alone: if a login is refused, concurrent commands only get the error that the connection pool was cleared.
    let hello = store.command(doc! { "hello": 1 }, "hello").await?;
    // Together: so the client has two connections at the first request. To open one takes several round trips.
    let (build, journal, probe) =
        tokio::join!(read_if_permitted(store, "buildInfo"), check_journal(store), probe::run(store));
    let known = build.as_ref().ok().and_then(Option::as_ref);
    deployment::check(&hello, known, store.allow_sharded.load(Ordering::Acquire))?;
    direct::check(store, &hello).await?;
    if let Some(ahead) = cluster_time_ahead(&hello) {
        warn!(
            ?ahead,
            "the cluster time is ahead of the primary's clock, so the clock of a member that was primary is or was ahead by at least that: run NTP on each member, or set a grace above the difference"
        );
    }
    journal?;
    probe?;
    build?;
    index::ensure(store, deadline).await
}

/// Reads the answer of the server to this command. `None`: the command is not permitted to this user, or is not served: by
/// a router, by a hosted deployment, or to a client of the stable API.
async fn read_if_permitted(store: &MongoContext, name: &str) -> Result<Option<Document>> {
    let admin = store.database.client().database("admin");
    match admin.run_command(doc! { name: 1 }).selection_criteria(PRIMARY).await {
        Ok(reply) => Ok(Some(reply)),
        Err(error) if error::is_not_permitted(&error) => {
            debug!(%error, command = name, "this user may not send the command, so the preflight leaves it out");
            Ok(None)
        }
        Err(error) => Err(error::translate(error, "admin", "$cmd", name)),
    }
}

/// By how much the cluster time is ahead of the clock of the server that answered, if that is more than a stall. The
/// cluster time is the latest second that the clock of any primary has shown.
fn cluster_time_ahead(hello: &Document) -> Option<Duration> {
    let latest = hello.get_document("$clusterTime").and_then(|time| time.get_timestamp("clusterTime")).ok()?;
    let now = hello.get_datetime("localTime").ok()?.timestamp_millis();
    let ahead = i64::from(latest.time).saturating_mul(1_000).saturating_sub(now);
    u64::try_from(ahead).ok().map(Duration::from_millis).filter(|ahead| *ahead > MAX_STALL)
}

/// Refuses a set whose majority does not mean the journal, if the user may see that.
async fn check_journal(store: &MongoContext) -> Result<()> {
    let Some(reply) = read_if_permitted(store, "replSetGetConfig").await? else { return Ok(()) };
    let config = reply.get_document("config").map_err(error::unreadable)?;
    if config.get_bool("writeConcernMajorityJournalDefault").is_ok_and(|journaled| !journaled) {
        return Err(Error::invalid(
            "this replica set confirms majority writes before they are in the journal, so a confirmed lease can be lost in a crash: set writeConcernMajorityJournalDefault to true with rs.reconfig()",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, Timestamp};

    use super::*;

    #[test]
    fn a_cluster_time_ahead_of_the_primary_s_clock_is_seen() {
        let hello = |seconds, millis| {
            doc! {
                "$clusterTime": { "clusterTime": Timestamp { time: seconds, increment: 7 } },
                "localTime": DateTime::from_millis(millis),
            }
        };
        assert_eq!(cluster_time_ahead(&hello(1_700_000_005, 1_700_000_000_250)), Some(Duration::from_millis(4_750)));
        assert_eq!(cluster_time_ahead(&hello(1_700_000_002, 1_700_000_000_999)), Some(Duration::from_millis(1_001)));
        // A stall, no difference, and a primary whose clock is ahead of all earlier primaries.
        assert_eq!(cluster_time_ahead(&hello(1_700_000_002, 1_700_000_001_000)), None);
        assert_eq!(cluster_time_ahead(&hello(1_700_000_000, 1_700_000_000_999)), None);
        assert_eq!(cluster_time_ahead(&hello(1_700_000_000, 1_700_000_060_000)), None);
        // Missing fields.
        assert_eq!(cluster_time_ahead(&doc! { "localTime": DateTime::from_millis(0) }), None);
        assert_eq!(cluster_time_ahead(&doc! {}), None);
    }
}

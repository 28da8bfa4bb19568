//! Examines a Redis server.
//!
//! | file | checks |
//! |---|---|
//! | `server.rs` | its role, version, eviction, persistence and replicas |
//! | `permissions.rs` | the permissions of the user |

mod permissions;
mod server;

use std::time::Duration;

use mongoseal::{Key, Mongoseal};
use mongoseal_redis::RedisStore;

use self::server::Facts;
use super::{
    Finding, Report, Verdict,
    records::{self, Unreadable},
    times,
};
use crate::{
    command::{
        driver::Offset,
        redis::{Answer, Refusal, Server},
    },
    connection::Connection,
    exit_status::Failure,
    time,
};

/// Examines the server of a connection string. `seal`: a handle on it, unless the library refuses it. If the server does
/// not answer the checks, returns why.
pub(super) async fn examine(
    uri: &str,
    connection: &Connection,
    seal: Option<&Mongoseal>,
    grace: Option<Duration>,
    report: &mut Report,
) -> Result<Option<String>, Failure> {
    let server = match Server::open(uri, &connection.collection, connection.timeout).await {
        Ok(server) => server,
        Err(refusal) => return Ok(Some(refusal.to_string())),
    };
    let facts = match Facts::read(&server).await {
        Err(refusal @ (Refusal::Server(_) | Refusal::Other(_))) => return Ok(Some(refusal.to_string())),
        facts => facts,
    };
    check(&server, facts, connection, seal, grace.unwrap_or(times::GRACE), report).await?;
    Ok(None)
}

async fn check(
    server: &Server,
    facts: Answer<Facts>,
    connection: &Connection,
    seal: Option<&Mongoseal>,
    grace: Duration,
    report: &mut Report,
) -> Result<(), Failure> {
    let replicas = connection.redis_replicas();
    report.add(&Finding::pass("reachable", format!("{} answers", server.address())))?;
    match facts {
        Ok(facts) => report.add_all(&facts.judged(replicas))?,
        Err(refusal) => {
            let advice = "grant +info, which each handle needs";
            report.add(&Finding::fail("server", format!("cannot read what it reports ({refusal})"), advice))?;
        }
    }
    report.add_all(&permissions::of_the_user(server, replicas).await)?;
    report.add(&clock(server, grace).await)?;
    report.add(&times::round_trip("server", async || server.clock().await).await)?;
    // The other checks use the library, which refuses the server if a check above failed.
    let Some(seal) = seal else { return Ok(()) };
    // What failed above fails a commit, too.
    if report.worst != Verdict::Fail {
        let write = match replicas {
            0 => "a write".into(),
            1 => "a write that a replica acknowledges".into(),
            count => format!("a write that {count} replicas acknowledge"),
        };
        report.add(&times::commit(seal, &write, "server").await)?;
    }
    report.add(&foreign(server).await)
}

/// Compares the clock of the server with that of this machine.
async fn clock(server: &Server, grace: Duration) -> Finding {
    match server.offset().await {
        Ok(offset) => compared(offset, grace),
        Err(refusal) => Finding::warn(CLOCK, format!("cannot read it ({refusal})"), "grant +time"),
    }
}

const CLOCK: &str = "clock";

fn compared(Offset { millis, uncertain }: Offset, grace: Duration) -> Finding {
    let apart = i64::try_from(millis.unsigned_abs()).unwrap_or(i64::MAX);
    let uncertain = i64::try_from(uncertain.as_millis()).unwrap_or(i64::MAX);
    let limit = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    if apart.saturating_add(uncertain) <= limit {
        let found = format!("{} from that of this machine", times::difference("at most", apart, uncertain));
        return Finding::pass(CLOCK, found);
    }
    let side = if millis < 0 { "behind" } else { "ahead of" };
    Finding::warn(
        CLOCK,
        format!(
            "{} {side} that of this machine, and the grace is {}",
            times::difference("up to", apart, uncertain),
            time::format(grace)
        ),
        "run NTP on each Redis server and here: after a failover to a server whose clock is behind, tokens can be smaller",
    )
}

/// Looks for keys with the prefix that the library cannot read.
async fn foreign(server: &Server) -> Finding {
    let remedy = "inspect them with redis-cli, and give leases another prefix with --collection";
    match server.scan(records::MAX, unreadable).await {
        Ok(scan) => records::judged(&scan, "key", remedy),
        Err(refusal) => records::unread(&refusal, "grant +scan and +mget"),
    }
}

/// Checks a value as the library does.
fn unreadable(name: &str, text: Option<&[u8]>) -> Option<Unreadable> {
    let id = || format!("{name:?}");
    let (Ok(key), Some(text)) = (name.parse::<Key>(), text) else { return Some(Unreadable::Foreign(id())) };
    Unreadable::of(RedisStore::check_bytes(&key, text), id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_further_from_this_machine_than_the_grace_warns_with_its_side() {
        let grace = Duration::from_millis(500);
        for (millis, verdict, part) in [
            (0, Verdict::Pass, "at most 0 s (± 2 ms)"),
            (-498, Verdict::Pass, "at most 498 ms"),
            (499, Verdict::Warn, "up to 499 ms (± 2 ms) ahead of that of this machine, and the grace is 500 ms"),
            (-61_000, Verdict::Warn, "up to 1 m 1 s (± 2 ms) behind"),
        ] {
            let found = compared(Offset { millis, uncertain: Duration::from_millis(2) }, grace);
            assert_eq!(found.verdict, verdict, "{found:?}");
            assert!(found.found.contains(part), "{found:?}");
        }
    }
}

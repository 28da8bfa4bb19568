//! `mongoseal leader`.

use std::{io, time::Duration};

use mongoseal::{Mongoseal, election::LeaderInfo};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    arguments::Leader,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    time,
    ui::escape,
    ui::message::print_note,
    ui::output,
};

/// The interval of the check whether the reader has closed the pipe.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn perform(connection: &Connection, options: Leader) -> Result<Status, Failure> {
    if options.follow {
        // Registered first, so that no signal is missed.
        let mut signals = Signals::terminating()?;
        return signals.unless(follow(connection, &options)).await.unwrap_or(Ok(Status::DONE));
    }
    let name = options.name.as_str();
    let (leader, sharers) = connection.with_handle(async |seal| find(seal, name, options.json).await).await??;
    if leader.is_some() || options.json {
        print(&options, leader.as_ref())?;
    } else if sharers > 0 {
        print_note(&format!(
            "{name:?} has no leader, because leases share it ({sharers} now): use another key for the election, or list them with mongoseal show"
        ));
    } else {
        print_note(&format!("{name:?} has no leader"));
    }
    Ok(if leader.is_some() { Status::DONE } else { Status::NO })
}

/// Returns the leader. If there is none, and this is to be explained, also returns how many leases share the key.
async fn find(seal: &Mongoseal, name: &str, is_json: bool) -> mongoseal::Result<(Option<LeaderInfo>, usize)> {
    let leader = seal.leader(name).await?;
    if leader.is_some() || is_json {
        return Ok((leader, 0));
    }
    let record = seal.inspect(name).await?;
    let holders = record.iter().flat_map(|record| &record.holders);
    Ok((None, holders.filter(|holder| !holder.sharing.is_exclusive() && !holder.is_expired()).count()))
}

/// Prints each leader until the reader has closed the pipe.
async fn follow(connection: &Connection, options: &Leader) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    let mut leaders = seal.observe(options.name.as_str()).await?;
    while !output::is_closed() {
        match timeout(POLL_INTERVAL, leaders.next()).await {
            Ok(Some(leader)) => print(options, leader?.as_ref())?,
            Ok(None) => break,
            Err(_nothing_new) => {}
        }
    }
    Ok(Status::DONE)
}

/// Prints a line: the value first, for cut(1), then the owner, the token and the time since the grant. If there is no
/// leader, each field is `-`.
fn print(options: &Leader, leader: Option<&LeaderInfo>) -> io::Result<()> {
    if options.json {
        return output::json(&json!({
            "key": options.name,
            "value": leader.map(|leader| &leader.value),
            "owner": leader.map(|leader| leader.owner.as_str()),
            "token": leader.map(|leader| leader.token.get()),
            "age_ms": leader.map(|leader| time::millis(leader.seen_at.since(leader.since))),
            "free_in_ms": leader.and_then(|leader| time::finite(leader.free_in)).map(time::millis),
        }));
    }
    // No token is `-`, so a script can tell this from a leader.
    let Some(leader) = leader else { return output::line("-\t-\t-\t-") };
    let since = time::brief(leader.seen_at.since(leader.since));
    // Escapes tabs, which would begin a column.
    let (value, owner) = (escape::visible(&leader.value), escape::visible(leader.owner.as_str()));
    output::line(&format!("{value}\t{owner}\t{}\t{since}", leader.token))
}

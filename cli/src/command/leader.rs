//! `mongoseal leader`.

use std::{io, time::Duration};

use mongoseal::LeaderInfo;
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
    let leader = connection.with_handle(async |seal| seal.leader(name).await).await??;
    if leader.is_some() || options.json {
        print(&options, leader.as_ref())?;
    } else {
        print_note(&format!("{name:?} has no leader"));
    }
    Ok(if leader.is_some() { Status::DONE } else { Status::NO })
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
            "remaining_ms": leader.and_then(|leader| leader.remaining).map(time::millis),
        }));
    }
    // No token is `-`, so a script can tell this from a leader.
    let Some(leader) = leader else { return output::line("-\t-\t-\t-") };
    let since = time::brief(leader.seen_at.since(leader.since));
    // Escapes tabs, which would begin a column.
    let (value, owner) = (escape::visible(&leader.value), escape::visible(leader.owner.as_str()));
    output::line(&format!("{value}\t{owner}\t{}\t{since}", leader.token))
}

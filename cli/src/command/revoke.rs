//! `mongoseal revoke`.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use mongoseal::{FencingToken, Inspection, Mongoseal, Revoked};
use serde::Serialize;

use crate::{
    arguments::Revoke,
    connection::Connection,
    escape,
    exit_status::{Failure, Status},
    output, time,
};

pub(crate) async fn perform(connection: &Connection, options: Revoke) -> Result<Status, Failure> {
    let asks = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !options.yes && !asks {
        return Err(Failure::invalid("there is no terminal to ask whether to revoke: say --yes"));
    }
    let seal = connection.open().await?;
    let revoked = revoke(&seal, &options).await;
    seal.shutdown().await;
    let revoked = revoked?;
    for lease in &revoked {
        if options.json {
            let (owner, token) = (lease.owner.as_str(), lease.token.get());
            output::json(&RevokedView { key: &options.key, owner, token })?;
        } else {
            let (key, Revoked { owner, token, .. }) = (&options.key, lease);
            output::line(&escape::visible(&format!("revoked {key:?} from {owner}, with token {token}")))?;
        }
    }
    Ok(Status::DONE)
}

#[derive(Serialize)]
struct RevokedView<'a> {
    key: &'a str,
    owner: &'a str,
    token: u64,
}

async fn revoke(seal: &Mongoseal, options: &Revoke) -> Result<Vec<Revoked>, Failure> {
    let key = &options.key;
    if !options.yes {
        let shown = held(seal, key).await?;
        if !agreed(&shown)? {
            return Err(Failure::new(Status::NO, "nothing was revoked"));
        }
        // People take their time, and somebody else may hold it by now.
        let now = held(seal, key).await?;
        if tokens(&now) != tokens(&shown) {
            return Err(Failure::new(
                Status::NO,
                format!("nothing was revoked: {key:?} is held by others than were shown; look again"),
            ));
        }
    }
    let by = options.by.clone().unwrap_or_else(whoever_runs_this);
    let revoked = seal.revoke(key).by(by).reason(&options.reason).await?;
    if revoked.is_empty() { Err(nobody(key)) } else { Ok(revoked) }
}

fn nobody(key: &str) -> Failure {
    Failure::new(Status::NO, format!("nobody holds {key:?}: nothing was revoked"))
}

/// The record of a key that somebody holds.
async fn held(seal: &Mongoseal, key: &str) -> Result<Inspection, Failure> {
    let mut record = seal.inspect(key).await?.ok_or_else(|| nobody(key))?;
    record.holders.retain(|holding| !holding.is_expired());
    if record.holders.is_empty() { Err(nobody(key)) } else { Ok(record) }
}

fn tokens(record: &Inspection) -> Vec<FencingToken> {
    record.holders.iter().map(|holding| holding.token).collect()
}

/// Shows who holds the key, and asks.
fn agreed(record: &Inspection) -> Result<bool, Failure> {
    let mut out = io::stderr().lock();
    for holding in &record.holders {
        let sentence = format!(
            "{:?} is held by {} with token {}, since {} ago, last heard of {} ago",
            record.key,
            holding.owner,
            holding.token,
            time::brief(record.read_at.since(holding.since)),
            time::brief(record.read_at.since(holding.last_seen)),
        );
        writeln!(out, "{}", escape::visible(&sentence))?;
    }
    write!(out, "Revoke it? Whoever holds it must stop at once. [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// User and host.
fn whoever_runs_this() -> String {
    let user = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(|name| env::var(name).ok());
    let host = gethostname::gethostname();
    format!("{}@{}", user.as_deref().unwrap_or("somebody"), host.to_string_lossy())
}

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
    let can_confirm = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !options.yes && !can_confirm {
        return Err(Failure::invalid("the confirmation needs a terminal: pass --yes to revoke without it"));
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
        if !confirm(&shown)? {
            return Err(Failure::new(Status::NO, "nothing was revoked"));
        }
        // The holders can have changed before the answer.
        let now = held(seal, key).await?;
        if tokens(&now) != tokens(&shown) {
            return Err(Failure::new(
                Status::NO,
                format!("nothing was revoked, because the holders of {key:?} changed before the answer: retry"),
            ));
        }
    }
    let by = options.by.clone().unwrap_or_else(user_and_host);
    let revoked = seal.revoke(key).by(by).reason(&options.reason).await?;
    if revoked.is_empty() { Err(not_held(key)) } else { Ok(revoked) }
}

fn not_held(key: &str) -> Failure {
    Failure::new(Status::NO, format!("nothing was revoked: {key:?} has no holder"))
}

/// Reads the record of a key, without expired holders. Fails if no holder is left.
async fn held(seal: &Mongoseal, key: &str) -> Result<Inspection, Failure> {
    let mut record = seal.inspect(key).await?.ok_or_else(|| not_held(key))?;
    record.holders.retain(|holding| !holding.is_expired());
    if record.holders.is_empty() { Err(not_held(key)) } else { Ok(record) }
}

fn tokens(record: &Inspection) -> Vec<FencingToken> {
    record.holders.iter().map(|holding| holding.token).collect()
}

/// Prints the holders, and reads the answer to the question whether to revoke.
fn confirm(record: &Inspection) -> Result<bool, Failure> {
    let mut out = io::stderr().lock();
    for holding in &record.holders {
        let line = format!(
            "{:?} is held by {} with token {}, granted {} ago, last seen {} ago",
            record.key,
            holding.owner,
            holding.token,
            time::brief(record.read_at.since(holding.since)),
            time::brief(record.read_at.since(holding.last_seen)),
        );
        writeln!(out, "{}", escape::visible(&line))?;
    }
    write!(out, "Revoke it? Its holders must stop at once. [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Returns `user@host`.
fn user_and_host() -> String {
    let user = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(|name| env::var(name).ok());
    let host = gethostname::gethostname();
    format!("{}@{}", user.as_deref().unwrap_or("unknown"), host.to_string_lossy())
}

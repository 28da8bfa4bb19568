//! `mongoseal revoke`.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use mongoseal::{
    Mongoseal,
    inspect::{HolderInfo, Inspection},
};
use nix::unistd::{Uid, User};
use serde_json::json;

use crate::{
    arguments::Revoke,
    connection::Connection,
    exit_status::{Failure, Status},
    time,
    ui::escape,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Revoke) -> Result<Status, Failure> {
    let can_confirm = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !options.yes && !can_confirm {
        return Err(Failure::invalid("the confirmation needs a terminal: pass --yes to revoke without it"));
    }
    connection.with_handle(async |seal| revoke(seal, &options).await).await?
}

async fn revoke(seal: &Mongoseal, options: &Revoke) -> Result<Status, Failure> {
    let key = &options.key;
    let shown = held(seal, options).await?;
    if !options.yes && !confirm(&shown)? {
        return Err(Failure::new(Status::NO, "nothing was revoked"));
    }
    let by = options.by.clone().unwrap_or_else(user_and_host);
    // Only the leases that were read: the key can be granted anew before the write.
    let revocation = || seal.revoke(key).by(&by).reason(&options.reason).up_to(shown.version);
    let mut has_revoked = false;
    if options.token.is_none() && options.owner.is_none() {
        has_revoked = print(options, &revocation().await?)?;
    } else {
        for holding in &shown.holders {
            has_revoked |= print(options, &revocation().token(holding.token).await?)?;
        }
    }
    if has_revoked {
        if !options.json {
            print_holders(seal, key).await?;
        }
        return Ok(Status::DONE);
    }
    Err(Failure::new(
        Status::NO,
        format!("nothing was revoked: the leases on {key:?} ended before the revocation: look at the key again"),
    ))
}

/// Reads the record of a key, with the leases that the options select and that have not expired. Fails if there is none.
async fn held(seal: &Mongoseal, options: &Revoke) -> Result<Inspection, Failure> {
    let Revoke { key, token, owner, .. } = options;
    let found = seal.inspect(key).await?.map(|mut record| {
        record.holders.retain(|holding| {
            !holding.is_expired()
                && token.is_none_or(|token| holding.token == token)
                && owner.as_ref().is_none_or(|owner| holding.owner.as_str() == owner)
        });
        record
    });
    found.filter(|record| !record.holders.is_empty()).ok_or_else(|| {
        let of = match (token, owner) {
            (Some(token), _) => format!("no lease with token {token}"),
            (None, Some(owner)) => format!("no lease of {owner:?}"),
            (None, None) => "no holder".into(),
        };
        Failure::new(Status::NO, format!("nothing was revoked: {key:?} has {of}"))
    })
}

/// Prints what was revoked. Returns whether that is anything.
fn print(options: &Revoke, revoked: &[HolderInfo]) -> io::Result<bool> {
    let key = &options.key;
    for HolderInfo { owner, token, .. } in revoked {
        let view = json!({ "key": key, "owner": owner.as_str(), "token": token.get() });
        output::json_or_line(options.json, &view, &format!("revoked {key:?} from {owner}, with token {token}"))?;
    }
    Ok(!revoked.is_empty())
}

/// Prints the holders of the key after the revocation, which grants the key to the first waiter.
async fn print_holders(seal: &Mongoseal, key: &str) -> Result<(), Failure> {
    let holders = seal.inspect(key).await?.map(|record| record.holders).unwrap_or_default();
    let mut is_free = true;
    for HolderInfo { owner, token, .. } in holders.iter().filter(|holding| !holding.is_expired()) {
        is_free = false;
        output::line(&escape::visible(&format!("{key:?} is held by {owner} now, with token {token}")))?;
    }
    if is_free {
        output::line(&escape::visible(&format!("{key:?} has no holder now")))?;
    }
    Ok(())
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
    let question = match record.holders.len() {
        1 => "Revoke this lease? Its holder".to_owned(),
        count => format!("Revoke these {count} leases? Their holders"),
    };
    write!(out, "{question} must stop at once. [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Returns `user@host`.
pub(super) fn user_and_host() -> String {
    format!("{}@{}", user(), gethostname::gethostname().to_string_lossy())
}

/// Returns the name of the user: from the environment, where sudo(8) names its caller, otherwise from the system, otherwise
/// the number.
fn user() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| env::var(name).ok().filter(|user| !user.is_empty()));
    let uid = Uid::current();
    let known = || User::from_uid(uid).ok().flatten().map(|user| user.name);
    named.or_else(known).unwrap_or_else(|| format!("uid {uid}"))
}

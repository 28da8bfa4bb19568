//! `mongoseal verify`.

use mongoseal::{FencingToken, inspect::Inspection};
use serde_json::json;

use crate::{
    arguments::Verify,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::{message::print_note, output},
};

pub(crate) async fn perform(connection: &Connection, options: Verify) -> Result<Status, Failure> {
    connection.require_mongodb(
        "verify",
        "whose reads can be outdated: pass the token with each write to a storage that checks it",
    )?;
    let Verify { key, token, json } = options;
    let record = connection.with_handle(async |seal| seal.inspect(key.as_str()).await).await??;
    let version = record.as_ref().map(|record| record.version.get());
    // While an exclusive lease lives, no newer token is issued, even if the version was raised.
    let is_newest = record.as_ref().is_some_and(|record| record.version == token || is_held_exclusively(record, token));
    if json {
        output::json(&json!({ "key": key, "token": token.get(), "version": version, "newest": is_newest }))?;
    }
    let message = match record {
        _ if is_newest => return Ok(Status::DONE),
        Some(record) if record.version > token => {
            format!("token {token} is not the newest: {key:?} has version {}", record.version)
        }
        // After a restore of the database, or if the token belongs to another key.
        Some(record) => format!("token {token} was not issued for {key:?}, which has version {}", record.version),
        None => format!("{key:?} has no record: it was never used, or its idle record was deleted"),
    };
    print_note(&message);
    Ok(Status::NO)
}

fn is_held_exclusively(record: &Inspection, token: FencingToken) -> bool {
    record.holders.iter().any(|holding| holding.token == token && holding.is_exclusive() && !holding.is_expired())
}

//! How a record is stored as bytes: JSON with the version of the format and a random nonce. A blank has no record.
//!
//! Invariant: no two swaps write the same bytes. So a comparison of bytes finds each change, even if a key was deleted
//! and made again with the same record.

use serde::{Deserialize, Serialize};

use crate::{
    record::{Record, StoreTime},
    store::answers::Notification,
    types::{
        acquire_id::AcquireId,
        error::{Error, Result},
        key::Key,
        token::FencingToken,
    },
};

/// The latest version of the format. Version 2 has the history of a schedule and the value of a key.
const FORMAT: u32 = 2;

/// The version in which a record is written: the oldest that has what the record has. A build that reads an older version
/// only would drop the rest, so it refuses the record.
fn format_of(record: Option<&Record>) -> u32 {
    let needs_latest = record.is_some_and(|record| record.value.is_some() || !record.runs.is_empty());
    if needs_latest { FORMAT } else { 1 }
}

#[derive(Serialize)]
struct Stored<'a> {
    v: u32,
    nonce: String,
    record: Option<&'a Record>,
}

/// The part of a value that all formats have.
#[derive(Deserialize)]
struct AnyFormat {
    v: u32,
}

#[derive(Deserialize)]
struct ThisFormat {
    #[serde(deserialize_with = "Option::deserialize")]
    record: Option<Record>,
}

/// A message: the acquire, its token, and when it was granted. Without a token the key was taken from it.
#[derive(Serialize, Deserialize)]
struct Message {
    #[serde(rename = "caller")]
    acquire_id: AcquireId,
    token: Option<FencingToken>,
    at: StoreTime,
}

/// The bytes of a record, or of a blank.
pub(super) fn encode(record: Option<&Record>) -> Result<Vec<u8>> {
    let stored = Stored { v: format_of(record), nonce: format!("{:016x}", fastrand::u64(..)), record };
    serde_json::to_vec(&stored).map_err(|source| Error::invalid("a record cannot be encoded").caused_by(source))
}

/// The record in the bytes of a key, unless they are a blank.
pub(super) fn decode(key: &Key, bytes: &[u8]) -> Result<Option<Record>> {
    let corrupt = |message: String| Error::Corrupt { key: key.clone(), message };
    let AnyFormat { v } = serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    if v > FORMAT {
        return Err(Error::invalid(format!(
            "the record of {key:?} has format {v} and this build knows up to {FORMAT}: upgrade mongoseal here, too"
        )));
    }
    let ThisFormat { record } = serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    if record.as_ref().is_some_and(|record| record.version.get() > Record::MAX_VERSION) {
        return Err(corrupt("`version` is not a fencing token with room to grow".into()));
    }
    Ok(record)
}

/// The messages for the hand-overs of a record, and no message for other handles.
pub(super) fn messages(record: &Record) -> impl Iterator<Item = (AcquireId, Vec<u8>)> {
    record.handover.iter().filter_map(|(acquire_id, token)| {
        let message = Message { acquire_id: *acquire_id, token: *token, at: record.last_seen };
        Some((*acquire_id, serde_json::to_vec(&message).ok()?))
    })
}

/// The notification in a message.
pub(super) fn notification(message: &[u8]) -> Option<Notification> {
    let Message { acquire_id, token, at } = serde_json::from_slice(message).ok()?;
    Some(Notification::of(acquire_id, token, Some(at)))
}

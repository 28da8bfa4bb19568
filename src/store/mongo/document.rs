//! The record as a document: projections and decoding. `protocol/record.md` describes the format.
//!
//! Invariant: a document that is not a record of this format is an error that names the field.

use std::str::FromStr;

use mongodb::bson::{Binary, Bson, DateTime, Document, Timestamp, doc, spec::BinarySubtype};

use super::json;
use crate::{
    record::{
        CompletedTick, HoldLimits, Holder, LeaseSpec, ListedLease, PastRevocation, PastRun, Record, StoreClock,
        StoreTime, StoredValue, Waiter,
    },
    types::{
        acquire_id::AcquireId,
        error::{Error, Result},
        json::Json,
        key::Key,
        lease_id::LeaseId,
        metadata::Metadata,
        sharing::Sharing,
        token::{FencingToken, HybridTime},
    },
};

/// The format version that this build writes and reads, in the field `v`. `protocol/record.md` says which changes raise
/// it.
pub(super) const FORMAT: i32 = 1;

/// Matches the record of a key: the query of each write of one record.
///
/// An upsert with this query inserts `{ _id, v }`, so the pipeline meets a document without a `version` only if it
/// inserts one. If the key's document is not a record of this format, the query does not match it, and the upsert fails
/// with a duplicate key. That holds for a document `{ _id, v: 1 }` of another program, too: a grant would make it a
/// record, and the TTL index would delete it later.
pub(super) fn record_query(key: &Key) -> Document {
    let mut query = doc! { "_id": key.as_str() };
    query.extend(format_query());
    query
}

/// Matches documents of this format, if they are records: see [`is_record_beside_entries`](super::expression::is_record_beside_entries).
pub(super) fn format_query() -> Document {
    doc! { "v": FORMAT, "version": version_range() }
}

/// Matches the versions from which a key can issue the next token.
pub(super) fn version_range() -> Document {
    doc! { "$gte": 1_i64, "$lte": long(Record::MAX_VERSION) }
}

/// Refuses a document of a format that this build does not know. A newer record is `Invalid` and not `Corrupt`: the fix
/// is another deployment, and the record stays where it is.
fn check_format(key: &Key, document: &Document) -> Result<()> {
    let corrupt = |message: &str| Err(Error::Corrupt { key: key.clone(), message: message.into() });
    match document.get("v") {
        Some(Bson::Int32(FORMAT)) => Ok(()),
        Some(Bson::Int32(found)) if *found > FORMAT => Err(Error::invalid(format!(
            "the record of {key:?} has format version {found} and this build of mongoseal knows version {FORMAT}: upgrade mongoseal"
        ))),
        Some(_) => corrupt("`v` is not a format version"),
        None => corrupt("`v` is missing"),
    }
}

/// The projection of a record, with the server's clocks as `now` and `hlc`. So a refused caller learns the remaining time
/// without a clock of its own. `also`: what it has of `done`, `runs` and `value`, which most requests do not read.
pub(super) fn record_projection(also: &[&str]) -> Document {
    let mut projection = doc! {
        "v": 1, "version": 1, "holders": 1, "queue": 1, "handover": 1, "last_seen": 1, "expires_at": 1, "history": 1,
        "now": "$$NOW", "hlc": "$$CLUSTER_TIME",
    };
    projection.extend(also.iter().map(|name| ((*name).to_owned(), Bson::Int32(1))));
    projection
}

/// The projection of a holder and of the number of waiters, after `$unwind` of `holders`, with the server's time as `now`.
pub(super) fn listing_projection() -> Document {
    let live = doc! { "$filter": { "input": "$queue", "cond": { "$gt": ["$$this.expires_at", "$$NOW"] } } };
    doc! { "holders": 1, "waiting": { "$size": live }, "value": 1, "now": "$$NOW" }
}

/// Decodes a lease from a document of [`listing_projection`].
pub(super) fn decode_listed(document: &Document) -> Result<ListedLease, String> {
    let row = Fields { document, path: String::new() };
    let key = row.parsed("_id", "a key")?;
    let read_at = row.time("now")?;
    let holder = row.nested("holders")?.holder()?;
    let waiting = row.read("waiting", "a count", as_count)?;
    let value = row.optional("value", Fields::value)?;
    Ok(ListedLease::of(key, holder, waiting, value, read_at))
}

/// Decodes the record of `key`, and the server's clocks of the read.
pub(super) fn decode(key: &Key, document: &Document) -> Result<(Record, StoreClock)> {
    read_with(key, document, |fields| Ok((fields.record()?, fields.store_clock()?)))
}

/// Decodes the record of `key` from a document without the server's clocks.
pub(super) fn decode_record(key: &Key, document: &Document) -> Result<Record> {
    read_with(key, document, Fields::record)
}

/// Reads the fields of the document of `key`, if it has this format.
fn read_with<'a, T>(
    key: &Key,
    document: &'a Document,
    read: impl FnOnce(&Fields<'a>) -> Result<T, String>,
) -> Result<T> {
    check_format(key, document)?;
    read(&Fields { document, path: String::new() }).map_err(|message| Error::Corrupt { key: key.clone(), message })
}

/// Decodes what the projection of an operation adds to a record: for each request, how many waiters are before it, if it waits;
/// and how many wait.
pub(super) fn decode_places(document: &Document) -> (Vec<Option<usize>>, usize) {
    let places = document.get_array("places").map(|places| places.iter().map(as_count).collect());
    (places.unwrap_or_default(), document.get("waiting").and_then(as_count).unwrap_or_default())
}

/// Decodes a hand-over: `caller=token;` for each grant, and with token 0 for each revocation. It is one text and not an
/// array, because a change of an array may be logged as one of its elements, which no filter can match.
pub(super) fn decode_handover(text: &str) -> Option<Vec<(AcquireId, Option<FencingToken>)>> {
    let each = |entry: &str| {
        let (acquire_id, token) = entry.split_once('=')?;
        let token = if token == "0" { None } else { Some(token.parse().ok()?) };
        Some((acquire_id.parse().ok()?, token))
    };
    text.split_terminator(';').map(each).collect()
}

/// A timestamp of the server as a hybrid time.
pub(super) fn hybrid_time(timestamp: Timestamp) -> HybridTime {
    HybridTime { seconds: timestamp.time.into(), ordinal: timestamp.increment.into() }
}

/// Encodes a lease id as the sixteen bytes of a UUID.
pub(super) fn encode_lease(lease: LeaseId) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: lease.to_bytes().to_vec() })
}

/// Encodes metadata as a document of texts.
pub(super) fn encode_metadata(metadata: &Metadata) -> Bson {
    let entries = metadata.iter().map(|(name, text)| (name.to_owned(), Bson::from(text)));
    Bson::Document(entries.collect())
}

/// Encodes a number that is never negative and, by the bounds on durations, never near the maximum.
pub(super) fn long(number: u64) -> Bson {
    Bson::Int64(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Encodes a number as the server's `int`. A larger number has the same effect as the largest.
pub(super) fn int(number: u32) -> Bson {
    Bson::Int32(i32::try_from(number).unwrap_or(i32::MAX))
}

/// The fields of a document, and the path of the document in the record.
struct Fields<'a> {
    document: &'a Document,
    path: String,
}

impl<'a> Fields<'a> {
    fn read<T>(&self, name: &str, kind: &str, as_kind: impl FnOnce(&'a Bson) -> Option<T>) -> Result<T, String> {
        let value = self.document.get(name).ok_or_else(|| format!("`{}{name}` is missing", self.path))?;
        as_kind(value).ok_or_else(|| format!("`{}{name}` is not {kind}", self.path))
    }

    fn time(&self, name: &str) -> Result<StoreTime, String> {
        let time = self.read(name, "a date", Bson::as_datetime)?;
        Ok(StoreTime::from_millis(DateTime::timestamp_millis(*time)))
    }

    fn text(&self, name: &str) -> Result<&'a str, String> {
        self.read(name, "a string", Bson::as_str)
    }

    fn long(&self, name: &str) -> Result<u64, String> {
        self.read(name, "a positive 64-bit integer", |value| u64::try_from(value.as_i64()?).ok())
    }

    fn version(&self, name: &str) -> Result<FencingToken, String> {
        self.read(name, "a fencing token with room to grow", |value| {
            let version = FencingToken::try_from(value.as_i64()?).ok()?;
            (version.get() <= Record::MAX_VERSION).then_some(version)
        })
    }

    fn parsed<T: FromStr>(&self, name: &str, kind: &str) -> Result<T, String> {
        self.read(name, kind, |value| value.as_str()?.parse().ok())
    }

    fn limit(&self, name: &str) -> Result<Option<u64>, String> {
        Ok(self.optional(name, Self::long)?.filter(|limit| *limit > 0))
    }

    fn terms(&self) -> Result<LeaseSpec, String> {
        Ok(LeaseSpec {
            lease: self.read("lease", "a UUID", as_lease)?,
            acquire_id: self.parsed("caller", "an acquire id")?,
            owner: self.parsed("owner", "an owner")?,
            sharing: self.read("limit", "a positive 32-bit integer", |value| {
                u32::try_from(value.as_i32()?).ok().map(Sharing::from_limit)
            })?,
            ttl: self.long("ttl")?,
            grace: self.long("grace")?,
            group: self.read("group", "a group", |value| match value.as_str()? {
                "" => Some(None),
                name => name.parse().ok().map(Some),
            })?,
            metadata: self.read("metadata", "a document of texts", as_metadata)?,
            hold: HoldLimits { min: self.limit("min_hold")?, max: self.limit("max_hold")? },
        })
    }

    /// Reads a field that may be missing.
    fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Self, &str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        if self.document.contains_key(name) { read(self, name).map(Some) } else { Ok(None) }
    }

    fn store_clock(&self) -> Result<StoreClock, String> {
        let hlc = self.read("hlc", "a timestamp", Bson::as_timestamp)?;
        Ok(StoreClock { now: self.time("now")?, hlc: hybrid_time(hlc) })
    }

    fn holder(&self) -> Result<Holder, String> {
        let terms = self.terms()?;
        // A holder keeps this field from when it waited.
        self.long("wait_ttl")?;
        Ok(Holder {
            terms,
            version: self.version("version")?,
            refreshes: self.long("refreshes")?,
            since: self.time("since")?,
            last_seen: self.time("last_seen")?,
            expires_at: self.time("expires_at")?,
            not_after: self.optional("not_after", Self::time)?,
            released_at: self.optional("released_at", Self::time)?,
        })
    }

    fn waiter(&self) -> Result<Waiter, String> {
        Ok(Waiter {
            terms: self.terms()?,
            wait_ttl: self.long("wait_ttl")?,
            refreshes: self.long("refreshes")?,
            since: self.time("since")?,
            last_seen: self.time("last_seen")?,
            expires_at: self.time("expires_at")?,
        })
    }

    fn revocation(&self) -> Result<PastRevocation, String> {
        Ok(PastRevocation {
            by: self.text("by")?.into(),
            reason: self.text("reason")?.into(),
            at: self.time("at")?,
            // The pipeline does not check them. An element that is no token takes nothing from any holder.
            tokens: self.read("tokens", "an array", |value| {
                let tokens = value.as_array()?.iter();
                Some(tokens.filter_map(|token| FencingToken::try_from(token.as_i64()?).ok()).collect())
            })?,
        })
    }

    fn record(&self) -> Result<Record, String> {
        Ok(Record {
            version: self.version("version")?,
            holders: self.each("holders", Fields::holder)?,
            // The pipeline, too, removes a waiter that no request can have queued.
            queue: self.each("queue", |entry| Ok(entry.waiter().ok()))?.into_iter().rev().flatten().collect(),
            handover: self
                .read("handover", "a list of acquire ids and tokens", |value| decode_handover(value.as_str()?))?,
            last_seen: self.time("last_seen")?,
            expires_at: self.time("expires_at")?,
            history: self.each("history", Fields::revocation)?,
            done: self.optional("done", Self::completion)?,
            runs: self.optional("runs", |fields, name| fields.each(name, Fields::run))?.unwrap_or_default(),
            value: self.optional("value", Self::value)?,
        })
    }

    fn value(&self, name: &str) -> Result<StoredValue, String> {
        let fields = self.nested(name)?;
        Ok(StoredValue {
            content: fields.document.get("content").map(|content| Json::stored(json::decode(content))),
            token: fields.version("token")?,
            write: fields.long("write")?,
            at: fields.time("at")?,
        })
    }

    fn completion(&self, name: &str) -> Result<CompletedTick, String> {
        let fields = self.nested(name)?;
        Ok(CompletedTick {
            tick: fields.long("tick")?,
            token: fields.version("token")?,
            by: fields.text("by")?.into(),
            at: fields.time("at")?,
        })
    }

    fn run(&self) -> Result<PastRun, String> {
        Ok(PastRun {
            tick: self.long("tick")?,
            token: self.version("token")?,
            by: self.text("by")?.into(),
            since: self.time("since")?,
            at: self.time("at")?,
            is_failed: self.read("failed", "a boolean", Bson::as_bool)?,
            note: self.text("note")?.into(),
            period: self.limit("period")?,
        })
    }

    fn nested(&self, name: &str) -> Result<Fields<'a>, String> {
        let document = self.read(name, "a document", Bson::as_document)?;
        Ok(Fields { document, path: format!("{name}.") })
    }

    fn each<T>(&self, name: &str, read: impl Fn(&Fields<'a>) -> Result<T, String>) -> Result<Vec<T>, String> {
        let entries = self.read(name, "an array", Bson::as_array)?;
        let entry = |(index, value): (usize, &'a Bson)| {
            let document = value.as_document().ok_or_else(|| format!("`{name}[{index}]` is not a document"))?;
            read(&Fields { document, path: format!("{name}[{index}].") })
        };
        entries.iter().enumerate().map(entry).collect()
    }
}

fn as_count(value: &Bson) -> Option<usize> {
    value.as_i32().and_then(|count| usize::try_from(count).ok())
}

fn as_lease(value: &Bson) -> Option<LeaseId> {
    match value {
        Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes }) => {
            Some(LeaseId::from_bytes(bytes.as_slice().try_into().ok()?))
        }
        _ => None,
    }
}

fn as_metadata(value: &Bson) -> Option<Metadata> {
    let mut metadata = Metadata::default();
    for (name, text) in value.as_document()? {
        metadata.insert(name, text.as_str()?).ok()?;
    }
    Some(metadata)
}

#[cfg(test)]
mod tests;

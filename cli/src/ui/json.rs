//! The JSON form of a lease, and the table of leases.

use std::{collections::BTreeMap, fmt, time::Duration};

use mongoseal::{
    Json, KeyValue, Lease, Metadata, Sharing,
    inspect::{HolderInfo, ListedLease, StoreTime},
    store::Clock,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{time, ui::table::Table};

/// The largest integer of JSON that each language can read. A lease without expiry has this deadline.
const LARGEST: u64 = (1 << 53) - 1;

/// How long a lease lasts without another refresh.
#[derive(Debug, Serialize)]
pub(crate) struct Until {
    pub(crate) remaining_ms: u64,
    /// Milliseconds of the boot-time clock.
    pub(crate) deadline_ms: u64,
}

impl Until {
    pub(crate) fn of(lease: &Lease) -> Self {
        // The clock is read first, so that the deadline is not too late.
        let now = Clock::Boot.now();
        let remaining = lease.remaining();
        let millis = |duration| time::millis(duration).min(LARGEST);
        Self { remaining_ms: millis(remaining), deadline_ms: millis(now.after(remaining).since_origin()) }
    }
}

/// The remaining time.
impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time::brief(Duration::from_millis(self.remaining_ms)))
    }
}

/// A holder, as JSON.
#[derive(Serialize)]
pub(crate) struct HolderView<'a> {
    owner: &'a str,
    token: u64,
    shared: bool,
    /// The limit of holders; `null` if there is none.
    limit: Option<u32>,
    since: String,
    held_ms: u64,
    last_seen: String,
    /// `null` if the lease has no expiry.
    free_in_ms: Option<u64>,
    expired: bool,
    /// The end of the minimum hold; `null` if there is none.
    held_until: Option<String>,
    /// The end of the maximum hold, with the grace; `null` if there is none.
    not_after: Option<String>,
    /// When the lease was released, if its minimum hold keeps the key unavailable since.
    released_at: Option<String>,
    group: Option<&'a str>,
    metadata: BTreeMap<&'a str, &'a str>,
}

impl<'a> HolderView<'a> {
    pub(crate) fn of(holding: &'a HolderInfo, read_at: StoreTime) -> Self {
        Self {
            owner: holding.owner.as_str(),
            token: holding.token.get(),
            shared: !holding.is_exclusive(),
            limit: finite(holding.sharing),
            since: holding.since.to_string(),
            held_ms: time::millis(read_at.since(holding.since)),
            last_seen: holding.last_seen.to_string(),
            free_in_ms: time::finite(holding.free_in).map(time::millis),
            expired: holding.is_expired(),
            held_until: holding.held_until.map(|time| time.to_string()),
            not_after: holding.not_after.map(|time| time.to_string()),
            released_at: holding.released_at.map(|time| time.to_string()),
            group: holding.group.as_ref().map(mongoseal::Group::as_str),
            metadata: metadata(&holding.metadata),
        }
    }
}

/// A lease, as JSON.
#[derive(Serialize)]
pub(crate) struct LeaseView<'a> {
    key: &'a str,
    #[serde(flatten)]
    holding: HolderView<'a>,
    /// The number of waiters of the key.
    waiting: usize,
    /// `null` if the key has none.
    value: Option<Value>,
}

/// The value of a key, as JSON.
pub(crate) fn value(value: &KeyValue<Json>) -> Value {
    json!({ "content": value.content, "token": value.token.get(), "at": value.at.to_string() })
}

impl<'a> LeaseView<'a> {
    pub(crate) fn of(lease: &'a ListedLease) -> Self {
        let holding = HolderView::of(&lease.holder, lease.read_at);
        Self { key: lease.key.as_str(), holding, waiting: lease.waiting, value: lease.value.as_ref().map(value) }
    }
}

pub(crate) fn metadata(metadata: &Metadata) -> BTreeMap<&str, &str> {
    metadata.iter().collect()
}

/// Formats metadata for a cell of a table.
pub(crate) fn metadata_text(metadata: &Metadata) -> String {
    let pairs: Vec<String> = metadata.iter().map(|(name, text)| format!("{name}={text}")).collect();
    pairs.join(" ")
}

/// The limit of holders, if there is one.
pub(crate) fn finite(sharing: Sharing) -> Option<u32> {
    if let Sharing::UpTo(limit) = sharing { Some(limit) } else { None }
}

/// Formats the time at which a lease expires for a cell of a table. Of an expired lease, it is not known.
fn expires_at(lease: &ListedLease) -> String {
    match lease.holder.free_in {
        Duration::MAX => "never".into(),
        Duration::ZERO => "expired".into(),
        time => {
            let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            StoreTime::from_millis(lease.read_at.millis().saturating_add(millis)).to_string()
        }
    }
}

/// Formats the time until the key of a lease is free, for a cell of a table.
pub(crate) fn free_in(holding: &HolderInfo) -> String {
    match holding.released_at {
        _ if holding.is_expired() => "expired".into(),
        Some(_) => format!("{} (released)", time::free_in(holding.free_in)),
        None => time::free_in(holding.free_in),
    }
}

/// Formats the mode of a lease for a cell of a table.
pub(crate) fn mode(sharing: Sharing) -> String {
    match sharing {
        Sharing::Exclusive => "exclusive".into(),
        Sharing::UpTo(limit) => format!("shared by {limit}"),
        Sharing::Shared => "shared".into(),
    }
}

/// How many columns the table of leases has, unless it is wide.
const NARROW: usize = 8;

/// Makes the table of a list of leases.
pub(crate) fn lease_table(is_wide: bool) -> Table<12> {
    let table = Table::new([
        "KEY",
        "OWNER",
        "TOKEN",
        "HELD",
        "FREE IN",
        "MODE",
        "WAITERS",
        "GROUP",
        "LAST SEEN",
        "SINCE",
        "EXPIRES",
        "METADATA",
    ]);
    if is_wide { table } else { table.first_columns(NARROW).optional(&["GROUP", "MODE", "WAITERS", "HELD"]) }
}

/// Formats a lease as a row of that table.
pub(crate) fn lease_row(lease: &ListedLease) -> [String; 12] {
    let holding = &lease.holder;
    [
        lease.key.to_string(),
        holding.owner.to_string(),
        holding.token.to_string(),
        time::brief(lease.read_at.since(holding.since)),
        free_in(holding),
        mode(holding.sharing),
        lease.waiting.to_string(),
        holding.group.as_ref().map(ToString::to_string).unwrap_or_default(),
        format!("{} ago", time::brief(lease.read_at.since(holding.last_seen))),
        holding.since.to_string(),
        expires_at(lease),
        metadata_text(&holding.metadata),
    ]
}

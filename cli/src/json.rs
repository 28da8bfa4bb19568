//! How a lease looks, to programs and to people.

use std::collections::{BTreeMap, HashMap, HashSet};

use mongoseal::{HolderInfo, Inspection, Key, ListedLease, Metadata, Mongoseal, StoreTime};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    table::{Column, Table},
    time,
};

/// A holder, for programs.
#[derive(Serialize)]
pub(crate) struct HoldingView<'a> {
    owner: &'a str,
    token: u64,
    shared: bool,
    /// By how many; `null` where it is by any number.
    limit: Option<u32>,
    since: String,
    held_ms: u64,
    last_seen: String,
    /// `null` is for ever.
    remaining_ms: Option<u64>,
    expired: bool,
    group: Option<&'a str>,
    metadata: BTreeMap<&'a str, &'a str>,
}

impl<'a> HoldingView<'a> {
    pub(crate) fn of(holding: &'a HolderInfo, read_at: StoreTime) -> Self {
        Self {
            owner: holding.owner.as_str(),
            token: holding.token.get(),
            shared: !holding.is_exclusive(),
            limit: bound(holding.limit),
            since: time::of_store(holding.since),
            held_ms: time::millis(read_at.since(holding.since)),
            last_seen: time::of_store(holding.last_seen),
            remaining_ms: holding.remaining.map(time::millis),
            expired: holding.is_expired(),
            group: holding.group.as_ref().map(mongoseal::Group::as_str),
            metadata: metadata(&holding.metadata),
        }
    }
}

/// A lease, for programs.
#[derive(Serialize)]
pub(crate) struct LeaseView<'a> {
    key: &'a str,
    #[serde(flatten)]
    holding: HoldingView<'a>,
    /// How many wait for the key; `null` where that could not be read.
    waiting: Option<usize>,
}

impl<'a> LeaseView<'a> {
    pub(crate) fn of(lease: &'a ListedLease, waiting: Option<usize>) -> Self {
        Self { key: lease.key.as_str(), holding: HoldingView::of(&lease.holder, lease.read_at), waiting }
    }
}

pub(crate) fn metadata(metadata: &Metadata) -> BTreeMap<&str, &str> {
    metadata.iter().collect()
}

/// What an owner says of its lease, in a cell.
pub(crate) fn words(metadata: &Metadata) -> String {
    let words: Vec<String> = metadata.iter().map(|(name, text)| format!("{name}={text}")).collect();
    words.join(" ")
}

/// A limit that is one: whoever shares with anybody says the largest number there is.
pub(crate) fn bound(limit: Option<u32>) -> Option<u32> {
    limit.filter(|limit| *limit < i32::MAX.unsigned_abs())
}

/// How a key is held, in a cell.
pub(crate) fn sharing(limit: Option<u32>) -> String {
    match (limit, bound(limit)) {
        (None, _) => "alone".into(),
        (Some(_), Some(bound)) => format!("by {bound}"),
        (Some(_), None) => "shared".into(),
    }
}

/// The table of a list of leases.
pub(crate) struct LeaseTable(Table<8>);

impl LeaseTable {
    pub(crate) const fn new() -> Self {
        Self(Table::new([
            Column::cut("KEY"),
            Column::cut("OWNER"),
            Column::whole("TOKEN"),
            Column::whole("HELD"),
            Column::whole("LEFT"),
            Column::whole("SHARED"),
            Column::whole("QUEUE"),
            Column::cut("GROUP"),
        ]))
    }

    pub(crate) fn row(&mut self, lease: &ListedLease, waiting: Option<usize>) {
        let holding = &lease.holder;
        let left = if holding.is_expired() { "over".into() } else { time::left(holding.remaining) };
        self.0.row([
            lease.key.to_string(),
            holding.owner.to_string(),
            holding.token.to_string(),
            time::brief(lease.read_at.since(holding.since)),
            left,
            sharing(holding.limit),
            waiting.map(|waiting| waiting.to_string()).unwrap_or_default(),
            holding.group.as_ref().map(ToString::to_string).unwrap_or_default(),
        ]);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        self.0.lines(width)
    }
}

/// How many wait for each of the keys of these leases, as far as that can be read.
pub(crate) async fn queues(seal: &Mongoseal, leases: &[ListedLease]) -> HashMap<Key, usize> {
    let keys: HashSet<Key> = leases.iter().map(|lease| lease.key.clone()).collect();
    let mut looks = JoinSet::new();
    for key in keys {
        let seal = seal.clone();
        looks.spawn(async move {
            // What cannot be read is left out of a list, not the list.
            let record = seal.inspect(&key).await.ok()?;
            let waiting = |record: Inspection| record.queue.iter().filter(|one| !one.remaining.is_zero()).count();
            Some((key, record.map_or(0, waiting)))
        });
    }
    let mut found = HashMap::new();
    while let Some(look) = looks.join_next().await {
        found.extend(look.ok().flatten());
    }
    found
}

//! The lists of stores that hold all records: in the memory of this process, or loaded from a backend.
//!
//! Mechanism: the records come in the order of their keys, from the key of the position on, and a page takes no more of
//! them than it needs.

use super::answers::Page;
use crate::{
    record::{Filter, Holder, ListedLease, Position, Record, StoreTime},
    types::key::Key,
};

/// The page of the leases in these records, which come in the order of keys, that match the filter and follow the
/// position.
pub(super) fn list_page<'a>(
    records: impl Iterator<Item = (&'a Key, &'a Record)>,
    now: StoreTime,
    filter: &Filter,
    after: Option<&Position>,
    page_size: u32,
) -> Page {
    let held = |(key, record): (&'a Key, &'a Record)| {
        let waiting = record.count_waiters(now);
        // A transfer gives a holder a larger token, and leaves it in its place.
        let mut holders: Vec<&Holder> = record.holders.iter().collect();
        holders.sort_by_key(|holder| holder.version);
        holders
            .into_iter()
            .map(move |holder| ListedLease::of(key.clone(), holder.clone(), waiting, record.value.clone(), now))
    };
    let is_wanted = |lease: &ListedLease| filter.admits(lease) && after.is_none_or(|position| position.precedes(lease));
    let is_reached = |(key, _): &(&Key, &Record)| after.is_none_or(|position| key.as_str() >= position.key.as_str());
    let mut wanted = records.filter(is_reached).flat_map(held).filter(is_wanted);
    let size = usize::try_from(page_size).unwrap_or(usize::MAX).max(1);
    let leases: Vec<_> = wanted.by_ref().take(size).collect();
    let next = leases.last().filter(|_| wanted.next().is_some()).map(Position::behind);
    Page { leases, next }
}

//! The lists of stores that hold all records: in the memory of this process, or loaded from a backend.
//!
//! Mechanism: the records come in the order of their keys, from the key of the position on, and a page takes no more of
//! them than it needs.

use std::time::Duration;

use super::answers::{Expired, ExpiredPage, Page};
use crate::{
    record::{Filter, Holder, ListedLease, Position, Record, StoreTime},
    types::{key::Key, ttl::millis},
};

/// Whether a record has no holders and no waiters and has been idle for the retention.
pub(super) fn is_idle(record: &Record, now: StoreTime, retention: Duration) -> bool {
    record.holders.is_empty() && record.queue.is_empty() && record.expires_at.after(millis(retention)) <= now
}

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
        holders.into_iter().map(move |holder| ListedLease::of(key.clone(), holder.clone(), waiting, now))
    };
    let is_wanted = |lease: &ListedLease| filter.admits(lease) && after.is_none_or(|position| position.precedes(lease));
    let is_reached = |(key, _): &(&Key, &Record)| after.is_none_or(|position| key.as_str() >= position.key.as_str());
    let wanted = records.filter(is_reached).flat_map(held).filter(is_wanted);
    let (leases, has_more) = take_page(wanted, page_size);
    let next = leases.last().filter(|_| has_more).map(Position::behind);
    Page { leases, next }
}

/// The page of what a purge removes of these records, which come in the order of keys, after this key.
pub(super) fn expired_page<'a>(
    records: impl Iterator<Item = (&'a Key, &'a Record)>,
    now: StoreTime,
    retention: Duration,
    after: Option<&str>,
    page_size: u32,
) -> ExpiredPage {
    let behind = records.filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
    let expired = |(key, record): (&'a Key, &Record)| Some((key, find_expired(key, record, now, retention)?));
    let (found, has_more) = take_page(behind.filter_map(expired), page_size);
    let next = found.last().filter(|_| has_more).map(|(key, _)| key.as_str().to_owned());
    ExpiredPage { expired: found.into_iter().map(|(_, expired)| expired).collect(), next }
}

/// What a purge removes of a record.
fn find_expired(key: &Key, record: &Record, now: StoreTime, retention: Duration) -> Option<Expired> {
    if is_idle(record, now, retention) {
        return Some(Expired::Idle { key: key.clone(), version: record.version });
    }
    let holders = record.holders.iter().map(|holder| holder.expires_at);
    let mut ends = holders.chain(record.queue.iter().map(|waiter| waiter.expires_at));
    ends.any(|end| end <= now).then(|| Expired::Lapsed { key: key.clone() })
}

/// Takes the entries of a page. Returns them, and whether there are more.
fn take_page<T>(mut entries: impl Iterator<Item = T>, page_size: u32) -> (Vec<T>, bool) {
    let page = entries.by_ref().take(usize::try_from(page_size).unwrap_or(usize::MAX).max(1)).collect();
    (page, entries.next().is_some())
}

//! The lists of stores that hold all records: in the memory of this process, or loaded from a backend.

use std::time::Duration;

use super::{Expired, ExpiredPage, Page};
use crate::{
    Key, StoreTime,
    record::{Filter, ListedLease, Position, Record},
    types::ttl::millis,
};

/// Whether a record has no holders and no waiters and has been idle for the retention.
pub(super) fn is_idle(record: &Record, now: StoreTime, retention: Duration) -> bool {
    record.holders.is_empty() && record.queue.is_empty() && record.expires_at.after(millis(retention)) <= now
}

/// The page of the leases in these records that match the filter and follow the position.
pub(super) fn list_page<'a>(
    records: impl Iterator<Item = (&'a Key, &'a Record)>,
    now: StoreTime,
    filter: &Filter,
    after: Option<&Position>,
    page_size: u32,
) -> Page {
    let held = |(key, record): (&'a Key, &'a Record)| {
        let waiting = record.count_waiters(now);
        record.holders.iter().cloned().map(move |holder| ListedLease::of(key.clone(), holder, waiting, now))
    };
    let is_wanted = |lease: &ListedLease| filter.admits(lease) && after.is_none_or(|position| position.precedes(lease));
    let mut leases: Vec<ListedLease> = records.flat_map(held).filter(is_wanted).collect();
    leases.sort_by(|one, other| (one.holder.token, &one.key).cmp(&(other.holder.token, &other.key)));
    let next = cut(&mut leases, page_size).map(Position::behind);
    Page { leases, next }
}

/// The page of what a purge removes of these records, after this key.
pub(super) fn expired_page<'a>(
    records: impl Iterator<Item = (&'a Key, &'a Record)>,
    now: StoreTime,
    retention: Duration,
    after: Option<&str>,
    page_size: u32,
) -> ExpiredPage {
    let behind = records.filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
    let expired = |(key, record): (&'a Key, &Record)| Some((key, find_expired(key, record, now, retention)?));
    let mut found: Vec<(&Key, Expired)> = behind.filter_map(expired).collect();
    found.sort_by_key(|(key, _)| *key);
    let next = cut(&mut found, page_size).map(|(key, _)| key.as_str().to_owned());
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

/// Shortens a list to a page. Returns the last entry of the page, if there are more.
fn cut<T>(list: &mut Vec<T>, page_size: u32) -> Option<&T> {
    let page_size = usize::try_from(page_size).unwrap_or(usize::MAX).max(1);
    let has_more = list.len() > page_size;
    list.truncate(page_size);
    list.last().filter(|_| has_more)
}

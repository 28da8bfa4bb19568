//! Polls records, because the store has no stream of changes.

use std::{collections::HashMap, time::Duration};

use super::watcher::{Watched, Watcher};
use crate::{
    Error, FencingToken, Key, Result,
    engine::retry::Backoff,
    record::{Filter, KeyFilter, ListedLease, Record, StoreClock, StoreTime},
    store::{Page, RecordState, Snapshot},
};

/// The shortest and the longest delay between two polls.
const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How many leases one page of a list has.
const PAGE_SIZE: u32 = 500;

impl<T: Watched> Watcher<T> {
    /// Polls until an error that a retry does not remove.
    pub(super) async fn poll(&mut self) -> Error {
        let (first, longest) = POLL_BOUNDS;
        let mut backoff = Backoff::between(first, longest);
        loop {
            let polled = self.poll_once().await;
            let now = self.clock.now();
            if matches!(polled, Ok(true)) {
                // After a change, more may follow soon.
                backoff = Backoff::between(first, longest);
            }
            let next = now.saturating_add(backoff.next());
            if let Err(error) = polled {
                self.is_interrupted = self.reports.has_begun();
                if let Err(permanent) = self.reports.ensure_transient(error, next) {
                    return permanent;
                }
            }
            let due = self.next_expiry().map_or(next, |due| due.max(now.saturating_add(first)));
            self.clock.sleep_until(next.min(due)).await;
        }
    }

    /// Reads the record of the key, or lists the leases of the prefix, and reports what happened. Returns whether anything
    /// did.
    async fn poll_once(&mut self) -> Result<bool> {
        let items = match self.filter.clone() {
            KeyFilter::Key(key) => {
                let read = self.context.store.read(&key, self.reports.attempt_deadline()).await?;
                let state = match read {
                    Some(Snapshot { record, at }) => RecordState { record: Some(record), at },
                    None => RecordState { record: None, at: self.about_now().await },
                };
                self.apply(key, state)
            }
            KeyFilter::Prefix(prefix) => {
                let leases = self.list(prefix).await?;
                self.compare(leases).await
            }
        };
        let any = !items.is_empty();
        self.pending.extend(items);
        let now = self.about_now().await.now;
        self.complete(now).await;
        Ok(any)
    }

    /// About what the store's clocks read, if no record says so.
    async fn about_now(&mut self) -> StoreClock {
        if !self.knows_clock()
            && let Ok(now) = self.context.store.now(self.reports.attempt_deadline()).await
        {
            self.note_clock(now);
        }
        StoreClock { now: self.store_now(), tick: self.tick }
    }

    async fn list(&self, prefix: String) -> Result<Vec<ListedLease>> {
        let filter = Filter { prefix, with_expired: true, ..Filter::default() };
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = self.context.store.list(&filter, after, PAGE_SIZE, self.reports.attempt_deadline()).await?;
            let Page { leases, next } = page;
            listed.extend(leases);
            let Some(next) = next else { return Ok(listed) };
            after = Some(next);
        }
    }

    /// Compares a list with the records, and reads those that have changed. Returns what happened.
    async fn compare(&mut self, leases: Vec<ListedLease>) -> Vec<T> {
        let mut listed: HashMap<Key, HashMap<FencingToken, Option<StoreTime>>> = HashMap::new();
        for ListedLease { key, holder, read_at, .. } in leases {
            self.note_clock(read_at);
            let live = listed.entry(key).or_default();
            // An entry that only keeps the key unavailable is no holder.
            if holder.released_at.is_some() {
                continue;
            }
            let end = holder.remaining.map(|left| read_at.after(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
            if !holder.is_expired() {
                live.insert(holder.token, end);
            }
        }
        let is_same = |key: &Key, record: &Record| {
            let mut held = record.holders.iter().filter(|holder| holder.released_at.is_none());
            match listed.get(key) {
                None => held.next().is_none(),
                Some(holders) => {
                    holders.len() == held.clone().count() && held.all(|holder| holders.contains_key(&holder.version))
                }
            }
        };
        let mut changed: Vec<Key> =
            self.records.iter().filter(|(key, record)| !is_same(key, record)).map(|(key, _)| key.clone()).collect();
        let is_new = |(key, live): &(&Key, &HashMap<_, _>)| !live.is_empty() && !self.records.contains_key(*key);
        changed.extend(listed.iter().filter(is_new).map(|(key, _)| key.clone()));
        self.records.retain(|key, record| !record.holders.is_empty() || listed.contains_key(key));
        for (key, holders) in &listed {
            self.extend(key, holders);
        }
        let mut read = Vec::new();
        for (key, answer) in self.read_all(changed).await {
            let (record, now) = match answer {
                Ok(Some(Snapshot { record, at })) => (Some(record), at.now),
                // The next list shows whether the record is still different.
                Err(Error::Unavailable { .. }) => continue,
                Ok(None) | Err(_) => (None, self.store_now()),
            };
            read.push((record.as_ref().map_or(now, |record| record.last_seen), key, record, now));
        }
        // About in the order of the changes.
        read.sort_by_key(|(changed, ..)| *changed);
        let mut happened = Vec::new();
        for (_, key, record, now) in read {
            // Reads are linearizable, so each is later than the state before.
            let at = StoreClock { now, tick: self.tick };
            happened.extend(self.apply(key, RecordState { record, at }));
        }
        happened
    }

    /// Notes the expiries of refreshed holders.
    fn extend(&mut self, key: &Key, ends: &HashMap<FencingToken, Option<StoreTime>>) {
        let Some(record) = self.records.get_mut(key) else { return };
        for holder in &mut record.holders {
            if let Some(Some(end)) = ends.get(&holder.version) {
                self.expiries.remove(&(holder.expires_at, key.clone()));
                holder.expires_at = *end;
            }
        }
        let ends = record.holders.iter().filter(|holder| matches!(ends.get(&holder.version), Some(Some(_))));
        self.expiries.extend(ends.map(|holder| (holder.expires_at, key.clone())));
    }
}

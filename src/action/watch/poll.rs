//! Polls records, because the store has no stream of changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::watcher::{Watched, Watcher, retries};
use crate::{
    record::{Filter, Holder, KeyFilter, ListedLease, Record, StoreClock, StoreTime},
    store::answers::{RecordState, Snapshot},
    types::{
        error::{Error, Result},
        key::Key,
        token::FencingToken,
    },
};

impl<T: Watched> Watcher<T> {
    /// Reads the record of the key, or lists the leases of the prefix and reads the records that have changed. Reports what
    /// happened.
    pub(super) async fn poll(&mut self) -> Result<()> {
        // For a key without a record.
        if self.ahead.is_none()
            && let Ok(now) = self.context.store.now(self.context.attempt_deadline()).await
        {
            self.record_clock(now);
        }
        let keys = match self.filter.clone() {
            KeyFilter::Key(key) => vec![key],
            KeyFilter::Prefix(prefix) => {
                let filter = Filter { prefix, with_expired: true, ..Filter::default() };
                let leases = self.context.list_all(&filter, || self.context.attempt_deadline()).await?;
                self.compare(leases)
            }
        };
        let mut read = Vec::new();
        for (key, answer) in self.read_all(keys).await {
            let (record, now) = match answer {
                Ok(Some(Snapshot { record, at })) => (Some(record), at.now),
                Ok(None) => (None, self.store_now()),
                Err(error) if self.filter.is_key() => return Err(error),
                // The next list shows whether the record is still different.
                Err(Error::Unavailable { .. }) => continue,
                Err(_no_record) => (None, self.store_now()),
            };
            read.push((record.as_ref().map_or(now, |record| record.last_seen), key, record, now));
        }
        // About in the order of the changes.
        read.sort_by_key(|(changed, ..)| *changed);
        for (_, key, record, now) in read {
            // Reads are linearizable, so each is later than the state before.
            let at = StoreClock { now, hlc: self.hlc };
            self.apply(key, RecordState { record, at });
        }
        if !self.pending.is_empty() {
            // After a change, more may follow soon.
            self.backoff = retries();
        }
        self.complete(self.store_now()).await;
        Ok(())
    }

    /// Compares a list with the records, and notes the expiries of refreshed holders. Returns the keys whose holders are
    /// different.
    fn compare(&mut self, leases: Vec<ListedLease>) -> Vec<Key> {
        // The holders of each key that has entries, and when they expire.
        let mut listed: BTreeMap<Key, BTreeMap<FencingToken, Option<StoreTime>>> = BTreeMap::new();
        for ListedLease { key, holder, read_at, .. } in leases {
            self.record_clock(read_at);
            let live = listed.entry(key).or_default();
            // An entry that only keeps the key unavailable is no holder.
            if holder.released_at.is_none() && !holder.is_expired() {
                let end = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                let expires = Some(holder.free_in).filter(|left| *left != Duration::MAX);
                live.insert(holder.token, expires.map(|left| read_at.after(end(left))));
            }
        }
        self.records.retain(|key, record| !record.holders.is_empty() || listed.contains_key(key));
        for key in self.records.keys().filter(|key| !listed.contains_key(*key)).cloned().collect::<Vec<_>>() {
            listed.insert(key, BTreeMap::new());
        }
        let mut changed = Vec::new();
        for (key, live) in listed {
            let record = self.records.get(&key);
            let holders =
                record.iter().flat_map(|record| &record.holders).filter(|holder| holder.released_at.is_none());
            if !live.keys().eq(&holders.map(|holder| holder.version).collect::<BTreeSet<_>>()) {
                changed.push(key.clone());
            }
            let moved_to =
                |holder: &Holder| live.get(&holder.version).copied().flatten().filter(|end| *end != holder.expires_at);
            let is_refreshed = |record: &&Record| record.holders.iter().any(|holder| moved_to(holder).is_some());
            if let Some(mut record) = record.filter(is_refreshed).cloned() {
                for holder in &mut record.holders {
                    holder.expires_at = moved_to(holder).unwrap_or(holder.expires_at);
                }
                self.keep(key, Some(record));
            }
        }
        changed
    }
}

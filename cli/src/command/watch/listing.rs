//! Events of many keys, derived from lists of their leases.
//!
//! The library's watch covers one key. For many keys, the leases are listed every second, and each list is compared
//! with the one before. A lease that was granted and ended between two lists is missed.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
    time::Duration,
};

use mongoseal::{Error, FencingToken, HolderInfo, Key, ListedLease, Mongoseal, Result, StoreTime};

use super::{Change, KeyEvent, POLL_INTERVAL, WatchEvent};
use crate::print_message;

/// The leases of some keys, listed repeatedly.
pub(super) struct Listing {
    seal: Mongoseal,
    prefix: String,
    key: Option<Key>,
    /// The leases of the last list, if there was one.
    known: Option<BTreeMap<(FencingToken, Key), Known>>,
    /// Whether it was reported that MongoDB does not answer.
    is_unavailable: bool,
}

/// A lease as in the last list.
struct Known {
    holder: HolderInfo,
    read_at: StoreTime,
    is_expired: bool,
}

impl Listing {
    pub(super) fn new(seal: &Mongoseal, prefix: &str) -> Self {
        Self { seal: seal.clone(), prefix: prefix.to_owned(), key: None, known: None, is_unavailable: false }
    }

    /// Restricts the list to this key, if there is one.
    pub(super) fn only(mut self, key: Option<&str>) -> Result<Self> {
        self.key = key.map(str::parse).transpose()?;
        Ok(self)
    }

    async fn list(&self) -> Result<Vec<ListedLease>> {
        let mut leases = self.seal.leases().prefix(&self.prefix).with_expired();
        if let Some(key) = &self.key {
            leases = leases.key(key);
        }
        let (mut stream, mut list) = (leases.await?, Vec::new());
        while let Some(lease) = stream.next().await {
            list.push(lease?);
        }
        Ok(list)
    }

    /// Lists the leases, for the screen.
    pub(super) async fn leases(&self) -> Result<Vec<ListedLease>> {
        self.list().await
    }

    /// Lists the leases after the interval, and returns the events since the last list.
    pub(super) async fn next(&mut self) -> Result<Vec<KeyEvent>> {
        if self.known.is_some() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        match self.list().await {
            Ok(list) => {
                self.is_unavailable = false;
                self.compare(list).await
            }
            Err(error @ Error::Unavailable { .. }) if self.known.is_some() => {
                if !mem::replace(&mut self.is_unavailable, true) {
                    print_message(&format!("cannot list leases, retrying: {error}"));
                }
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    async fn compare(&mut self, list: Vec<ListedLease>) -> Result<Vec<KeyEvent>> {
        let is_first = self.known.is_none();
        let mut before = self.known.take().unwrap_or_default();
        let (mut now, mut arrived, mut ended) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut read_at = None;
        for ListedLease { key, holder, read_at: at, .. } in list {
            read_at = Some(at);
            let is_expired = holder.is_expired();
            let place = (holder.token, key);
            let known = before.remove(&place);
            if known.is_none() && !is_expired {
                let remaining = holder.remaining;
                let change = if is_first { Change::Holds { remaining } } else { Change::Granted { remaining } };
                let when = if is_first { at } else { holder.since };
                arrived.push(event(&place, &holder, when, change));
            }
            // A known lease has no second grant, even if it lives again after its expiry because a clock was set back.
            if known.is_some_and(|known| !known.is_expired) && is_expired {
                ended.push(event(&place, &holder, at, Change::Expired));
            }
            if let Entry::Vacant(vacant) = now.entry(place) {
                vacant.insert(Known { holder, read_at: at, is_expired });
            }
        }
        for (place, known) in before.into_iter().filter(|(_, known)| !known.is_expired) {
            let (change, at) = self.end_of(&place, &known, read_at).await;
            ended.push(event(&place, &known.holder, at, change));
        }
        self.known = Some(now);
        // The end of a lease comes before the next grant of its key.
        ended.extend(arrived);
        Ok(ended)
    }

    /// Returns how a lease ended that is no longer listed, as far as its record shows.
    async fn end_of(
        &self,
        (token, key): &(FencingToken, Key),
        known: &Known,
        read_at: Option<StoreTime>,
    ) -> (Change, StoreTime) {
        let about = read_at.unwrap_or(known.read_at);
        match self.seal.inspect(key).await {
            Ok(None) => (Change::Removed, about),
            Ok(Some(record)) => {
                let revoked = record.history.into_iter().find(|past| past.tokens.contains(token));
                if let Some(past) = revoked {
                    return (Change::Revoked { by: past.by, reason: past.reason }, past.at);
                }
                let elapsed = record.read_at.since(known.read_at);
                let remaining = known.holder.remaining.unwrap_or(Duration::MAX);
                (if elapsed > remaining { Change::Expired } else { Change::Released }, record.last_seen)
            }
            Err(_unreadable) => (Change::Other, about),
        }
    }
}

fn event((token, key): &(FencingToken, Key), holder: &HolderInfo, at: StoreTime, change: Change) -> KeyEvent {
    KeyEvent { key: key.clone(), event: WatchEvent { token: *token, owner: holder.owner.clone(), at, change } }
}

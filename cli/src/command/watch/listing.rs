//! What becomes of many keys, from one list of their leases to the next.
//!
//! The library tells of one key at a time, each with a change stream of its own. Of many keys the leases are
//! listed every second: one that came and went in between is left out.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
    time::Duration,
};

use mongoseal::{Error, FencingToken, HolderInfo, Key, ListedLease, Mongoseal, Result, StoreTime};

use super::{Happened, OFTEN, Seen, What};
use crate::say;

/// The leases of some keys, listed again and again.
pub(super) struct Listing {
    seal: Mongoseal,
    prefix: String,
    key: Option<Key>,
    /// What the last list had, if there was one.
    known: Option<BTreeMap<(FencingToken, Key), Known>>,
    /// Whether it was said that MongoDB does not answer.
    is_silent: bool,
}

/// A lease as it was listed last.
struct Known {
    holder: HolderInfo,
    read_at: StoreTime,
    /// Whether it was told that its time is over.
    is_over: bool,
}

impl Listing {
    pub(super) fn new(seal: &Mongoseal, prefix: &str) -> Self {
        Self { seal: seal.clone(), prefix: prefix.to_owned(), key: None, known: None, is_silent: false }
    }

    /// Of this key only, where there is one.
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

    /// The leases there are, for a screen; why not, where they cannot be listed.
    pub(super) async fn leases(&self) -> Result<Vec<ListedLease>> {
        self.list().await
    }

    /// Lists them again, and says what happened since.
    pub(super) async fn next(&mut self) -> Result<Vec<Happened>> {
        if self.known.is_some() {
            tokio::time::sleep(OFTEN).await;
        }
        match self.list().await {
            Ok(list) => {
                self.is_silent = false;
                self.compare(list).await
            }
            Err(error @ Error::Unavailable { .. }) if self.known.is_some() => {
                if !mem::replace(&mut self.is_silent, true) {
                    say(&format!("nothing can be told for now: {error}"));
                }
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    async fn compare(&mut self, list: Vec<ListedLease>) -> Result<Vec<Happened>> {
        let is_first = self.known.is_none();
        let mut before = self.known.take().unwrap_or_default();
        let (mut now, mut arrived, mut ended) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut read_at = None;
        for ListedLease { key, holder, read_at: at, .. } in list {
            read_at = Some(at);
            let is_over = holder.is_expired();
            let place = (holder.token, key);
            let known = before.remove(&place);
            if known.is_none() && !is_over {
                let remaining = holder.remaining;
                let what = if is_first { What::Holds { remaining } } else { What::Granted { remaining } };
                let when = if is_first { at } else { holder.since };
                arrived.push(happened(&place, &holder, when, what));
            }
            // One that is there again after its time was over, as when a clock was set back, is not told twice.
            if known.is_some_and(|known| !known.is_over) && is_over {
                ended.push(happened(&place, &holder, at, What::Expired));
            }
            if let Entry::Vacant(vacant) = now.entry(place) {
                vacant.insert(Known { holder, read_at: at, is_over });
            }
        }
        for (place, known) in before.into_iter().filter(|(_, known)| !known.is_over) {
            let (what, at) = self.end(&place, &known, read_at).await;
            ended.push(happened(&place, &known.holder, at, what));
        }
        self.known = Some(now);
        // Of one key, who held it before comes first.
        ended.extend(arrived);
        Ok(ended)
    }

    /// How a lease ended that is not listed any more, as far as its record shows.
    async fn end(
        &self,
        (token, key): &(FencingToken, Key),
        known: &Known,
        read_at: Option<StoreTime>,
    ) -> (What, StoreTime) {
        let about = read_at.unwrap_or(known.read_at);
        match self.seal.inspect(key).await {
            Ok(None) => (What::Removed, about),
            Ok(Some(record)) => {
                let revoked = record.history.into_iter().find(|past| past.tokens.contains(token));
                if let Some(past) = revoked {
                    return (What::Revoked { by: past.by, reason: past.reason }, past.at);
                }
                let lasted = record.read_at.since(known.read_at);
                let was_left = known.holder.remaining.unwrap_or(Duration::MAX);
                (if lasted > was_left { What::Expired } else { What::Released }, record.last_seen)
            }
            Err(_unreadable) => (What::Other, about),
        }
    }
}

fn happened((token, key): &(FencingToken, Key), holder: &HolderInfo, at: StoreTime, what: What) -> Happened {
    Happened { key: key.clone(), event: Seen { token: *token, owner: holder.owner.clone(), at, what } }
}

//! Judges the writes of records: versions and tokens grow, no more leases hold a key than each of them allows, and each
//! change is one that the state machine allows.

use std::collections::HashMap;

use mongoseal::mongodb::bson::{Bson, Document};

use super::{
    entry::{self, Change},
    finding::Finding,
    record::{Holder, Record},
};

/// A key, as far as the entries have shown it.
#[derive(Default)]
struct Key {
    /// The stored record. Parts of it are missing until an entry has them.
    document: Document,
    /// The largest token that was granted.
    newest: i64,
    /// The version of the last entry that showed it. An operator can raise it above the tokens.
    version: i64,
    /// The record of the last entry that showed all of its holders. `None`: there was none.
    record: Option<Record>,
    /// Whether an entry had the whole record.
    is_whole: bool,
}

impl Key {
    /// Forgets the record. The clock of the set numbers the next token, which is larger than those that were granted; a
    /// version that was raised above them is gone.
    fn forget(&mut self) {
        self.document.clear();
        self.record = Some(Record::default());
        self.version = self.newest;
        self.is_whole = false;
    }
}

/// Where a token stands among those of its key.
#[derive(Debug, PartialEq)]
pub(super) enum Standing {
    /// No entry has shown a grant of this token.
    Unknown,
    /// A lease with this token holds the key.
    Held,
    /// The lease has ended, and no later one was granted.
    Ended,
    /// A later lease was granted, with this token.
    Outdated(i64),
}

#[derive(Default)]
pub(super) struct Keys {
    by_name: HashMap<String, Key>,
    /// The keys of each token. Two keys can have the same.
    of_token: HashMap<i64, Vec<String>>,
    pub(super) grants: u64,
}

impl Keys {
    pub(super) fn count(&self) -> usize {
        self.by_name.len()
    }

    /// Forgets what the records were. Tokens go on to grow.
    pub(super) fn drop_all(&mut self) {
        for key in self.by_name.values_mut() {
            key.forget();
        }
    }

    /// Forgets what is known of the records, because entries are missing. Tokens go on to grow.
    pub(super) fn skip(&mut self) {
        for key in self.by_name.values_mut() {
            key.forget();
            key.record = None;
        }
    }

    pub(super) fn judge(&mut self, id: &Bson, change: Change, findings: &mut Vec<Finding>) {
        let Some(name) = id.as_str() else { return };
        let key = self.by_name.entry(name.to_owned()).or_default();
        let was_whole = key.is_whole;
        match change {
            Change::Insert(document) => {
                key.document = document;
                key.is_whole = true;
                key.record = Some(Record::default());
            }
            Change::Replace(document) => {
                key.document = document;
                key.is_whole = true;
            }
            Change::Delta(diff) => entry::apply(&mut key.document, &diff),
            Change::Delete => return key.forget(),
        }
        let floor = key.newest.max(key.version);
        let version = key.document.get_i64("version").unwrap_or(key.version);
        let is_older = version < key.version;
        if is_older {
            findings.push(Finding::version_fell(name, key.version, version));
        }
        key.version = version;
        let before = key.record.take();
        let Some(record) = Record::read(&key.document) else { return };
        // If the first entry of a key is no insert, it is not known which holders it granted the key.
        for holder in &record.holders {
            let was_there = |before: &Record| before.holders.iter().any(|other| other.token == holder.token);
            if before.as_ref().is_some_and(|before| !was_there(before)) {
                self.grants += 1;
                if holder.token <= floor {
                    findings.push(Finding::token_did_not_grow(name, floor, holder.token));
                }
            }
            let keys = self.of_token.entry(holder.token).or_default();
            if !keys.iter().any(|known| known == name) {
                keys.push(name.to_owned());
            }
        }
        let largest = record.holders.iter().map(|holder| holder.token).max().unwrap_or_default();
        key.newest = key.newest.max(largest);
        if let Some(now) = record.now {
            let live: Vec<_> = record.holders.iter().filter(|one| one.is_live(now)).collect();
            if live.iter().any(|holder| live.len() > holder.limit) {
                findings.push(Finding::held_twice(name, live.iter().map(|holder| holder.token)));
            }
        }
        // An older copy is no change of the record.
        if let Some(before) = before.filter(|_| was_whole && !is_older) {
            findings.extend(before.broken_by(&record).into_iter().map(|what| Finding::of_key(name, what)));
        }
        key.record = Some(record);
    }

    pub(super) fn has_granted(&self, key: &str, token: i64) -> bool {
        self.of_token.get(&token).is_some_and(|keys| keys.iter().any(|known| known == key))
    }

    /// Where a token stands at this time of the server, in milliseconds since the Unix epoch. If it is of several keys, the
    /// best counts.
    pub(super) fn standing(&self, token: i64, at: i64) -> Standing {
        let of_key = |name: &String| {
            let key = &self.by_name[name];
            let holds = |one: &Holder| one.token == token && one.is_live(at);
            match (key.record.as_ref().map(|record| record.holders.iter().any(holds)), key.newest > token) {
                // Sharers hold the key beside later ones.
                (Some(true), _) | (None, false) => Standing::Held,
                (_, true) => Standing::Outdated(key.newest),
                (Some(false), false) => Standing::Ended,
            }
        };
        let all = self.of_token.get(&token).into_iter().flatten().map(of_key);
        all.min_by_key(|standing| match standing {
            Standing::Held => 0,
            Standing::Ended => 1,
            Standing::Outdated(_) => 2,
            Standing::Unknown => 3,
        })
        .unwrap_or(Standing::Unknown)
    }
}

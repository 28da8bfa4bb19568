//! Judges the oplog of a MongoDB replica set: whether the records of leases and the documents of fenced collections kept their
//! promises.
//!
//! Mechanism: the oplog has each write of a set in the order in which it was committed. The judges see the writes of records
//! and of fenced documents in that order, so they know which token was the newest of its key at each write.
//!
//! ```
//! use mongoseal_audit::{Auditor, Kind};
//! use mongoseal::mongodb::bson::doc;
//!
//! let mut auditor = Auditor::new("app.mongoseal", [("app.orders", "fence")]);
//! let entry = doc! { "op": "u", "ns": "app.orders", "o": { "_id": 1, "n": 1 }, "o2": { "_id": 1 } };
//! let found = auditor.judge(&entry);
//! assert_eq!(found[0].kind, Kind::Unfenced);
//! assert!(!auditor.summary().is_clean());
//! ```
//!
//! | file | contains |
//! |---|---|
//! | `entry.rs` | the writes in an entry of the oplog |
//! | `keys.rs` | the judge of records |
//! | `fenced.rs` | the judge of fenced documents |
//! | `record.rs` | which changes of a record the state machine allows |
//! | `finding.rs` | what the judges find |

mod entry;
mod fenced;
mod finding;
mod keys;
mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use entry::{Reader, Step, Write};
use fenced::Fenced;
pub use fenced::OfCollection;
pub use finding::{Finding, Kind};
use keys::Keys;
use mongoseal::{FencingToken, mongodb::bson::Document};
use serde::Serialize;

/// Judges the entries of an oplog, in their order. Its memory grows with the keys and the documents that it has seen.
pub struct Auditor {
    leases: String,
    keys: Keys,
    fenced: BTreeMap<String, Fenced>,
    reader: Reader,
    summary: Summary,
}

/// What was read and found.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// How many writes were read.
    pub read: u64,
    /// How many writes of these collections were not understood.
    pub unread: u64,
    /// How many keys there were.
    pub keys: usize,
    /// How many grants there were. The first entry of a key shows whether it is one only if it inserts the record.
    pub grants: u64,
    /// Broken promises.
    pub violations: u64,
    /// Writes of fenced collections.
    pub fenced: Vec<OfCollection>,
}

impl Summary {
    /// Whether no promise was broken and no writer was without a token.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations == 0 && self.fenced.iter().all(|fenced| fenced.without_token == 0)
    }
}

impl Auditor {
    /// Judges the records in a collection of leases, and the documents of fenced collections. The names begin with that of the
    /// database. Beside each fenced collection is the field with its tokens.
    pub fn new<'a>(leases: &str, fenced: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let fenced = fenced.into_iter().map(|(name, field)| (name.to_owned(), Fenced::new(name, field)));
        Self {
            leases: leases.to_owned(),
            keys: Keys::default(),
            fenced: fenced.collect(),
            reader: Reader::default(),
            summary: Summary::default(),
        }
    }

    /// The collections whose writes are judged. Pass their entries and all commands (`op: "c"`): a transaction is one.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        self.fenced.keys().chain([&self.leases]).cloned().collect()
    }

    /// Judges the next entry, and returns what it shows.
    pub fn judge(&mut self, entry: &Document) -> Vec<Finding> {
        let steps = self.reader.steps(entry);
        let is_lease = |step: &Step| matches!(step, Step::Write(write) if write.namespace == self.leases);
        let under_lease = steps.len() > 1 && steps.iter().any(is_lease);
        let at = entry.get_datetime("wall").map_or(0, |wall| wall.timestamp_millis());
        let mut findings = Vec::new();
        for step in steps {
            match step {
                Step::Write(Write { namespace, id, change }) if namespace == self.leases => {
                    self.summary.read += 1;
                    self.keys.judge(&id, change, &mut findings);
                }
                Step::Write(Write { namespace, id, change }) => {
                    let Some(fenced) = self.fenced.get_mut(&namespace) else { continue };
                    self.summary.read += 1;
                    fenced.judge(&id, &change, (under_lease, at), &self.keys, &mut findings);
                }
                Step::Dropped(name) => {
                    let is_dropped = |known: &str| known == name || (name.ends_with('.') && known.starts_with(&name));
                    if is_dropped(&self.leases) {
                        self.keys.drop_all();
                    }
                    self.fenced.iter_mut().filter(|(known, _)| is_dropped(known)).for_each(|(_, one)| one.drop_all());
                }
                Step::Unread(namespace) => {
                    let is_judged = namespace == self.leases || self.fenced.contains_key(&namespace);
                    self.summary.unread += u64::from(is_judged);
                }
            }
        }
        let violations = findings.iter().filter(|finding| finding.kind == Kind::Violation).count();
        self.summary.violations += u64::try_from(violations).unwrap_or(u64::MAX);
        findings
    }

    /// Forgets what it knows of records and documents, because the next entry does not follow the last one. The tokens that
    /// it saw still count: each later grant of a key has a larger one.
    pub fn skip(&mut self) {
        self.reader = Reader::default();
        self.keys.skip();
        self.fenced.values_mut().for_each(Fenced::skip);
    }

    /// What was read and found so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let fenced = self.fenced.values().map(Fenced::summary).collect();
        Summary { keys: self.keys.count(), grants: self.keys.grants, fenced, ..self.summary.clone() }
    }

    /// Whether an entry showed a lease with this token on this key.
    #[must_use]
    pub fn has_granted(&self, key: &str, token: FencingToken) -> bool {
        self.keys.has_granted(key, token.into())
    }
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auditor").field("summary", &self.summary()).finish_non_exhaustive()
    }
}

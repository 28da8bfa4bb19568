//! Whether the TTL index may be missing.
//!
//! Purpose: the index is created again only after an insert, and not too often.
//!
//! Mechanism: the answer of an upsert says whether it inserted a record. The state keeps that and the time of the last
//! check.

use std::{sync::Mutex, time::Duration};

use crate::types::{instant::Instant, lock::lock};
use mongodb::bson::Document;

/// The longest time after the last check until the index is created again. If the retention is shorter, that is the
/// time, so that a record is not kept for many times its retention; but never less than [`MIN_INTERVAL`].
const MAX_INTERVAL: Duration = Duration::from_secs(600);
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Whether the index may be missing.
#[derive(Default)]
pub(in crate::store::mongo) struct IndexState(Mutex<LastCheck>);

/// The last check of the index.
#[derive(Default)]
struct LastCheck {
    /// When it was. The last instant, if this user may not create the index: no check is due after it.
    at: Instant,
    /// Whether a record was, or may have been, inserted since.
    has_inserted: bool,
}

impl IndexState {
    /// Notes whether the answer of an upsert says that it inserted a record.
    pub(in crate::store::mongo) fn record(&self, reply: &Document) {
        if reply.get_document("lastErrorObject").is_ok_and(|last| last.contains_key("upserted")) {
            self.record_doubt();
        }
    }

    /// Notes an upsert without an answer.
    pub(in crate::store::mongo) fn record_doubt(&self) {
        lock(&self.0).has_inserted = true;
    }

    pub(in crate::store::mongo) fn begin(&self, now: Instant) {
        *lock(&self.0) = LastCheck { at: now, has_inserted: false };
    }

    /// Begins a check, if it is due. Returns whether it did.
    pub(in crate::store::mongo) fn begin_if_due(&self, now: Instant, retention: Duration) -> bool {
        let interval = retention.clamp(MIN_INTERVAL, MAX_INTERVAL);
        let mut last = lock(&self.0);
        let is_due = last.has_inserted && now >= last.at.after(interval);
        if is_due {
            (last.at, last.has_inserted) = (now, false);
        }
        is_due
    }

    pub(in crate::store::mongo) fn forbid(&self) {
        lock(&self.0).at = Instant::MAX;
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn the_index_is_made_again_after_an_insert_and_no_sooner_than_the_interval_allows() {
        let (state, retention) = (IndexState::default(), Duration::from_secs(3_600));
        let at = |seconds| Instant::at(Duration::from_secs(seconds));
        let short = Duration::from_secs(5);
        let inserted = doc! { "lastErrorObject": { "n": 1, "updatedExisting": false, "upserted": "k" } };
        state.begin(at(1_000));
        state.record(&doc! { "lastErrorObject": { "n": 1, "updatedExisting": true } });
        assert!(!state.begin_if_due(at(9_000), retention), "nothing was inserted");
        state.record(&inserted);
        assert!(!state.begin_if_due(at(1_599), retention));
        assert!(state.begin_if_due(at(1_600), retention));
        assert!(!state.begin_if_due(at(9_000), retention), "once for each insert");
        state.record(&inserted);
        assert!(!state.begin_if_due(at(1_603), short), "a short retention is a short interval");
        assert!(state.begin_if_due(at(1_605), short));
        state.record(&inserted);
        state.forbid();
        assert!(!state.begin_if_due(at(9_000), retention), "this user may not");
    }
}

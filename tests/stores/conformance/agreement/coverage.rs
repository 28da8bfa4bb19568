//! What the sequences have reached.

use std::{
    collections::BTreeMap,
    sync::{Mutex, atomic},
};

use mongoseal::record::{Holder, Outcome, Record};

/// What the sequences must reach, each at least once. Random sequences reach the rarest once in 18 to 46.
const REACHED: &str = "granted, queued, no room to wait, refused, refreshed, released, absent, revoked, \
    transferred, downgraded, raised, pruned, nothing to prune, nothing changed, shared, several handed over at once, \
    a holder expired, a waiter expired, released jointly, revoked jointly, kept jointly, \
    completed, reset, a minimum hold outlasted the lease, a maximum hold cut the expiry, completed after the expiry, \
    not all of them, waited together, acquired together, left together";

/// What was seen, so that the test can show that it reached what it is about.
#[derive(Debug, Default)]
pub(super) struct Seen {
    requests: atomic::AtomicUsize,
    outcomes: Mutex<BTreeMap<&'static str, usize>>,
}

impl Seen {
    pub(super) fn count(&self, name: &'static str) {
        *self.outcomes.lock().unwrap().entry(name).or_default() += 1;
    }

    /// How often it has counted this.
    pub(super) fn times(&self, name: &str) -> usize {
        self.outcomes.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    /// Checks that the sequences have reached what they must.
    pub(super) fn ensure_reached(&self) {
        for reached in REACHED.split(", ") {
            assert!(self.times(reached) > 0, "never {reached}: {self:?}");
        }
    }

    pub(super) fn note(&self, before: Option<&Record>, after: Option<&Record>, outcome: &'static str) {
        self.requests.fetch_add(1, atomic::Ordering::Relaxed);
        self.count(outcome);
        let (Some(before), Some(after)) = (before, after) else { return };
        if before == after {
            self.count("nothing changed");
        }
        if after.holders.len() > 1 {
            self.count("shared");
        }
        let waited = |holder: &&Holder| before.queue.iter().any(|waiter| waiter.terms.lease == holder.terms.lease);
        let handed_over = after.holders.iter().filter(waited).count();
        if handed_over > 1 {
            self.count("several handed over at once");
        }
        if after.holders.iter().any(|holder| holder.released_at.is_some()) {
            self.count("a minimum hold outlasted the lease");
        }
        if after.holders.iter().any(|holder| holder.not_after == Some(holder.expires_at)) {
            self.count("a maximum hold cut the expiry");
        }
        let expired = before.holders.iter().any(|holder| holder.expires_at <= after.last_seen);
        if expired && before.done != after.done {
            self.count("completed after the expiry");
        }
        let now = after.last_seen;
        if before.holders.iter().any(|holder| holder.expires_at <= now) {
            self.count("a holder expired");
        }
        if before.queue.iter().any(|waiter| waiter.expires_at <= now) {
            self.count("a waiter expired");
        }
    }
}

pub(super) fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Granted { .. } => "granted",
        Outcome::Queued { .. } => "queued",
        Outcome::Full { .. } => "no room to wait",
        Outcome::Refused { .. } => "refused",
        Outcome::Refreshed { .. } => "refreshed",
        Outcome::Released => "released",
        Outcome::Absent => "absent",
        Outcome::Revoked { .. } => "revoked",
        Outcome::Transferred { .. } => "transferred",
        Outcome::Downgraded => "downgraded",
        Outcome::Raised { .. } => "raised",
        Outcome::Completed => "completed",
        Outcome::ValuePut => "value put",
        Outcome::ValueOutdated { .. } => "value outdated",
        Outcome::Reset { .. } => "reset",
        Outcome::Pruned { holders } if holders.is_empty() => "nothing to prune",
        Outcome::Pruned { .. } => "pruned",
    }
}

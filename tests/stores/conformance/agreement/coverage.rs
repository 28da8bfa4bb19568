//! What the sequences have reached.

use std::{collections::BTreeMap, sync::Mutex};

use mongoseal::record::{Holder, Outcome, Record};

/// What the sequences must reach, each at least once. Random sequences reach the rarest once in 18 to 46.
const REACHED: &str = "granted, queued, no room to wait, refused, refreshed, released, absent, revoked, \
    transferred, downgraded, raised, pruned, nothing to prune, nothing changed, shared, several handed over at once, \
    a holder expired, a waiter expired, released jointly, revoked jointly, kept jointly, \
    completed, reset, a minimum hold outlasted the lease, a maximum hold cut the expiry, completed after the expiry, \
    not all of them, waited together, acquired together, left together";

/// What was seen, so that the test can show that it reached what it is about.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<BTreeMap<&'static str, usize>>);

impl Seen {
    pub(super) fn count(&self, name: &'static str) {
        *self.0.lock().unwrap().entry(name).or_default() += 1;
    }

    /// How often it has counted this.
    pub(super) fn times(&self, name: &str) -> usize {
        self.0.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    /// Checks that the sequences have reached what they must.
    pub(super) fn ensure_reached(&self) {
        for reached in REACHED.split(", ") {
            assert!(self.times(reached) > 0, "never {reached}: {self:?}");
        }
    }

    pub(super) fn note(&self, before: Option<&Record>, after: Option<&Record>, outcome: &'static str) {
        self.count(outcome);
        let (Some(before), Some(after)) = (before, after) else { return };
        let now = after.last_seen;
        let waited = |holder: &&Holder| before.queue.iter().any(|waiter| waiter.terms.lease == holder.terms.lease);
        let has_expired = before.holders.iter().any(|holder| holder.expires_at <= now);
        for (name, is_reached) in [
            ("nothing changed", before == after),
            ("shared", after.holders.len() > 1),
            ("several handed over at once", after.holders.iter().filter(waited).count() > 1),
            ("a minimum hold outlasted the lease", after.holders.iter().any(|holder| holder.released_at.is_some())),
            (
                "a maximum hold cut the expiry",
                after.holders.iter().any(|holder| holder.not_after == Some(holder.expires_at)),
            ),
            ("completed after the expiry", has_expired && before.done != after.done),
            ("a holder expired", has_expired),
            ("a waiter expired", before.queue.iter().any(|waiter| waiter.expires_at <= now)),
        ] {
            if is_reached {
                self.count(name);
            }
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

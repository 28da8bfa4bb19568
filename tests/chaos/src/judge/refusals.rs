//! Invariant I24: a commit that is refused leaves no open transaction behind.
//!
//! It judges what no other fault concerns, so it needs a run with `--only`. If `refuse-commits` is the only fault, the server ends no
//! transaction by itself. Beside other faults it does so after 5 seconds, because a worker may be killed.

use super::{Case, SLACK, Violation, outcomes::Called};
use crate::{
    faults::Kind,
    words::{Fault, Micros, micros},
    worker::{OPERATION_TIMEOUT, WRITTEN_KEYS},
};

/// How long a transaction that no client ends is open at most, in a run with other faults: `transactionLifetimeLimitSeconds`,
/// and half of it, after which the server looks for such transactions again.
const LEFT_OPEN: Micros = 7_500_000;

/// How many writes an acquire or a transaction is at most, one after another.
const WRITES: u64 = 6;

impl Case<'_> {
    /// The writes of documents and the acquires of their keys that began while a transaction which the refusals left open
    /// would still be, and nothing else was wrong.
    pub(crate) fn after_refusals(&self) -> impl Iterator<Item = Called<'_>> {
        let refusals = self.settled_faults().filter(|fault| fault.kind == Kind::RefuseCommits);
        refusals.flat_map(move |refusal| {
            let after = refusal.end + SLACK..refusal.end + LEFT_OPEN;
            self.called()
                .filter(|one| ["write", "acquire"].contains(&one.verb) && WRITTEN_KEYS.contains(&one.key))
                .filter(move |one| after.contains(&one.begin))
                // What concerned it may be told later.
                .filter(|one| !self.is_sabotaged || one.end + LEFT_OPEN <= self.latest())
                .filter(|one| !self.faults.iter().any(|fault| may_concern(fault, one)))
        })
    }

    /// Such a write, and such an acquire, has an answer.
    pub(super) fn refused_commits_lock_nothing(&self, found: &mut Vec<Violation>) {
        for one in self.after_refusals().filter(|one| one.outcome == "unavailable") {
            if self.slowness(WRITES, one.worker, one.begin, one.end) < micros(OPERATION_TIMEOUT) {
                let Called { key, worker, begin, end, .. } = one;
                let what =
                    format!("{key} of worker {worker} had no answer from {begin} to {end}, after refused commits");
                found.push(Violation { of: "I24", what });
            }
        }
    }
}

/// Whether a fault may concern it. The transaction of a worker that was killed or cut off is open for as long as one that
/// no client ends.
fn may_concern(fault: &Fault, one: &Called<'_>) -> bool {
    let lasts = if fault.kind == Kind::RefuseCommits { 0 } else { LEFT_OPEN };
    fault.begin <= one.end && fault.end + lasts >= one.begin
}

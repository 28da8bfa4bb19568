//! Invariant I14: an outage does not end the wait of an acquire that was queued.

use super::{Case, Violation};
use crate::{
    faults::Kind,
    words::{Acquire, Fault, Micros, micros},
    worker::OPERATION_TIMEOUT,
};

impl Case<'_> {
    /// The acquires that waited through an outage longer than the operation timeout, and had been queued before it.
    pub(crate) fn outlasting(&self) -> impl Iterator<Item = &Acquire> {
        let outages: Vec<&Fault> = self.settled_faults().filter(|fault| fault.kind == Kind::Outage).collect();
        let outlasts = move |acquire: &&&Acquire| {
            let Some(queued) = &acquire.queued else { return false };
            outages.iter().any(|outage| queued.since < outage.begin && outage.end < acquire.end)
        };
        self.acquires.iter().filter(outlasts).copied()
    }

    /// An acquire that was queued ends in an error only after its wait.
    pub(super) fn waits_outlast_outages(&self, found: &mut Vec<Violation>) {
        for acquire in &self.acquires {
            let is_unanswered = !["granted", "held", "full"].contains(&acquire.outcome.as_str());
            let Some(queued) = acquire.queued.as_ref().filter(|_| is_unanswered) else { continue };
            let ends = acquire.begin + wait(acquire);
            if acquire.end < ends {
                let Acquire { key, worker, begin, end, .. } = acquire;
                let what = format!(
                    "acquire {key} of worker {worker}, begun at {begin} and queued at {}, ended in an error at {end}, and its wait at {ends}",
                    queued.since
                );
                found.push(Violation { of: "I14", what });
            }
        }
    }
}

/// How long an acquire waits.
fn wait(acquire: &Acquire) -> Micros {
    acquire.within.saturating_sub(micros(OPERATION_TIMEOUT))
}

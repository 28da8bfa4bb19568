//! Invariant I15: a runtime whose threads are blocked costs no lease of a handle with a thread of its own.

use super::{Case, Lease, SLACK, Violation};
use crate::{faults::Kind, words::Micros, worker::OF_THREAD};

impl Case<'_> {
    /// The leases of such handles that were held while a runtime was blocked for a whole ttl, and nothing else was wrong. Gives
    /// with each when it was lost by that, or the end of the block.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = (&Lease<'_>, Micros)> {
        let blocks = self.settled_faults().filter(|fault| fault.kind == Kind::BlockClient);
        blocks.flat_map(move |block| {
            let leases =
                self.leases.iter().filter(|(key, _)| key.starts_with(OF_THREAD)).flat_map(|(_, leases)| leases);
            leases.filter_map(move |lease| {
                let Lease { acquire, lost, ends, .. } = lease;
                let is_of_it = self.slots.get(&acquire.worker) == block.slot.as_ref();
                let held_before = acquire.end < block.begin && ends.is_none_or(|(at, _)| at > block.end);
                let outlives = block.begin + acquire.ttl < block.end;
                // The holder tells of a loss when its own threads run again.
                let soon = block.end + SLACK + acquire.ttl;
                let at = match lost {
                    Some((at, "expired", _)) if *at <= soon => *at,
                    Some((at, _, _)) if *at <= soon => return None,
                    _ => block.end,
                };
                let alone = || !self.is_disturbed(acquire.worker, block, acquire.end, at);
                (is_of_it && held_before && outlives && alone()).then_some((lease, at))
            })
        })
    }

    /// Such a lease is not lost by expiry.
    pub(super) fn leases_outlive_blocks(&self, found: &mut Vec<Violation>) {
        for (lease, at) in self.blocked().filter(|(lease, at)| lease.lost.is_some_and(|(lost, ..)| lost == *at)) {
            let what = format!("{} expired at {at} while the threads of its process were blocked", lease.name());
            found.push(Violation { of: "I15", what });
        }
    }
}

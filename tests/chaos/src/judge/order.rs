//! Invariants I1, I2, I3 and I11: tokens, the fence, and the queue.

use std::collections::HashMap;

use super::{Case, Lease, Violation};
use crate::{words::micros, worker::OPERATION_TIMEOUT};

impl Case<'_> {
    /// I1: no token twice for a key.
    pub(super) fn tokens_are_unique(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            let mut seen: HashMap<u64, &Lease<'_>> = HashMap::new();
            for lease in leases {
                if let Some(other) = seen.insert(lease.token, lease)
                    && !self.are_disordered(other, lease)
                {
                    let what = format!("{} and {}", lease.name(), other.name());
                    found.push(Violation { of: "I1", what });
                }
            }
        }
    }

    /// I2: a lease whose acquire began when another's had ended has the larger token.
    pub(super) fn tokens_grow(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            let mut ended: Vec<&Lease<'_>> = leases.iter().collect();
            ended.sort_by_key(|lease| lease.acquire.end);
            let mut ended = ended.into_iter().peekable();
            let mut largest: Option<&Lease<'_>> = None;
            // In the order in which they began.
            for lease in leases {
                while let Some(other) = ended.next_if(|other| other.acquire.end < lease.begin()) {
                    if largest.is_none_or(|largest| largest.token < other.token) {
                        largest = Some(other);
                    }
                }
                let larger = largest.filter(|before| before.token >= lease.token);
                if let Some(before) = larger.filter(|before| !self.are_disordered(before, lease)) {
                    let what = format!("{} came after {}", lease.name(), before.name());
                    found.push(Violation { of: "I2", what });
                }
            }
        }
    }

    /// I3: no older token was accepted after a newer one.
    pub(super) fn the_fence_holds(&self, found: &mut Vec<Violation>) {
        let mut marks: HashMap<&str, u64> = HashMap::new();
        for write in self.writes.iter().filter(|write| write.accepted == Some(true)) {
            let mark = marks.entry(&write.key).or_default();
            if *mark > write.token {
                let what = format!("{} was accepted after {mark} for {}", write.token, write.key);
                found.push(Violation { of: "I3", what });
            }
            *mark = write.token.max(*mark);
        }
    }

    /// I11: of two who kept their place in the queue and were granted the key, the one who knew itself
    /// queued before the other asked has the smaller token.
    pub(super) fn queues_are_in_order(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            let queued: Vec<_> = leases.iter().filter_map(|lease| Some((self.place(lease)?, lease))).collect();
            for ((_, queued_by), before) in &queued {
                let after = queued.iter().find(|((asked_at, _), after)| {
                    queued_by < asked_at && before.token > after.token && !self.requeued(before, after)
                });
                if let Some((_, after)) = after {
                    let what = format!("{} was queued before {}", before.name(), after.name());
                    found.push(Violation { of: "I11", what });
                }
            }
        }
    }

    /// Whether one may have lost its place without its fault: also one that was handed the key and had not
    /// heard of it loses it by a revocation, and queues again.
    fn requeued(&self, one: &Lease<'_>, other: &Lease<'_>) -> bool {
        let begin = one.acquire.begin.min(other.acquire.begin);
        self.was_taken(&one.acquire.key, begin, one.acquire.end.max(other.acquire.end))
    }

    /// When it asked and when it knew itself queued, if it can never have lost its place.
    fn place(&self, lease: &Lease<'_>) -> Option<(u64, u64)> {
        let queued = lease.acquire.queued.as_ref()?;
        // The last attempt does not wait: it has left the queue, and is granted the key behind it.
        let wait = lease.acquire.within.saturating_sub(micros(OPERATION_TIMEOUT));
        if lease.acquire.end >= lease.acquire.begin + wait {
            return None;
        }
        let kept =
            queued.kept && lease.acquire.end.saturating_sub(queued.sent) + self.drift < lease.acquire.ttl * 9 / 10;
        kept.then_some(queued.first)
    }
}

//! What an acquire reports to the observers of its handle.

use std::time::Duration;

use super::{AcquireTask, QueuePlace};
use crate::{
    Error, FencingToken,
    engine::{
        lease_shared::LeaseShared,
        observer::{AcquireMode, AcquireOutcome, HandleEvent, Observers},
    },
    record::StoreTime,
};

impl AcquireTask {
    fn observers(&self) -> &Observers {
        &self.shared.context.settings.observers
    }

    /// Reports the first place in the queue.
    pub(super) fn report_queued(&self, position: usize) {
        if self.position.set(position).is_ok() {
            let (key, is_campaign) = (&self.key, self.is_campaign);
            self.observers().emit(|| HandleEvent::Queued { key, position, is_campaign });
        }
    }

    /// Reports a hand-over that the waiter was notified of. `at`: when the store granted the key.
    pub(super) fn report_hand_over(&self, token: FencingToken, at: Option<StoreTime>, place: &QueuePlace) {
        self.observers().emit(|| {
            // The store read its clock for the last answer after `sent`.
            let granted = at.map(|at| place.sent.saturating_add(at.since(place.now)));
            let took = granted.map(|granted| self.shared.context.clock().now().saturating_sub(granted));
            HandleEvent::HandedOver { key: &self.key, token, took }
        });
    }

    pub(super) fn report_granted(&self, lease: &LeaseShared, waited: Duration) {
        let granted = || self.finished(AcquireOutcome::Granted(lease.token), waited);
        lease.observe(self.observers(), self.is_campaign, granted);
    }

    pub(super) fn report_failed(&self, error: &Error, is_abandoned: bool, waited: Duration) {
        let outcome = if is_abandoned { AcquireOutcome::Abandoned } else { AcquireOutcome::Failed(error) };
        self.observers().emit(|| self.finished(outcome, waited));
    }

    fn finished<'a>(&'a self, outcome: AcquireOutcome<'a>, waited: Duration) -> HandleEvent<'a> {
        HandleEvent::AcquireFinished {
            key: &self.key,
            mode: AcquireMode::of(&self.on_held),
            outcome,
            waited,
            position: self.position.get().copied(),
            is_campaign: self.is_campaign,
        }
    }
}

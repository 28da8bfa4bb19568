//! What an acquire reports to its span and to the observers of its handle.

use std::{error::Error as StdError, time::Duration};

use tracing::{Span, debug, field};

use super::{AcquireTask, QueuePlace};
use crate::{
    Error, FencingToken,
    engine::{
        lease_shared::LeaseShared,
        observer::{AcquireMode, AcquireOutcome, HandleEvent, Observers},
    },
    record::StoreTime,
    spans,
};

impl AcquireTask {
    fn observers(&self) -> &Observers {
        &self.shared.context.settings.observers
    }

    /// Reports the first place in the queue.
    pub(super) fn report_queued(&self, position: usize) {
        if self.position.set(position).is_ok() {
            Span::current().record("position", position);
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

    /// Reports the grant, and ends the span.
    pub(super) fn report_granted(&self, span: Span, lease: &LeaseShared, waited: Duration) {
        let outcome = AcquireOutcome::Granted(lease.token);
        end_span(span, outcome, waited);
        lease.observe(self.observers(), self.is_campaign, || self.finished(outcome, waited));
    }

    /// Reports the failure, and ends the span.
    pub(super) fn report_failed(&self, span: Span, error: &Error, is_abandoned: bool, waited: Duration) {
        let outcome = if is_abandoned { AcquireOutcome::Abandoned } else { AcquireOutcome::Failed(error) };
        end_span(span, outcome, waited);
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

/// Ends the span of an acquire before its caller has the answer, so that the span ends before that of the caller.
fn end_span(span: Span, outcome: AcquireOutcome<'_>, waited: Duration) {
    span.record("waited", field::debug(waited));
    let ended: Result<_, &(dyn StdError + 'static)> = match outcome {
        AcquireOutcome::Granted(token) => {
            span.record("token", token.get());
            span.in_scope(|| debug!("granted"));
            Ok("granted")
        }
        AcquireOutcome::Abandoned => Ok("abandoned"),
        AcquireOutcome::Failed(error) => Err(error),
    };
    spans::end(&span, ended, "not granted");
    drop(span);
}

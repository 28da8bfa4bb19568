//! What an acquire reports to its span and to the observers of its handle.

use std::{
    error::Error as StdError,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tracing::{Span, debug, field};

use super::QueuePlace;
use crate::{
    engine::{
        context::Context,
        lease_inner::LeaseInner,
        observer::{AcquireMode, AcquireOutcome, HandleEvent, Observers},
        retry_policy::OnHeld,
    },
    record::StoreTime,
    spans,
    types::{clock::Clock, error::Error, key::Key, reading::Reading, token::FencingToken},
};

/// What the observers of an acquire need. If the acquire ends without a report, as with its runtime, dropping this reports
/// that it was abandoned.
pub(crate) struct AcquireReport {
    observers: Observers,
    clock: Clock,
    key: Key,
    mode: AcquireMode,
    is_campaign: bool,
    /// When it began.
    began: Reading,
    /// Its first place in the queue.
    position: OnceLock<usize>,
    is_finished: AtomicBool,
}

impl AcquireReport {
    pub(crate) fn new(context: &Context, key: &Key, on_held: &OnHeld, is_campaign: bool) -> Self {
        let (clock, mode) = (context.clock(), AcquireMode::of(on_held));
        Self {
            observers: context.settings.observers.clone(),
            clock,
            key: key.clone(),
            mode,
            is_campaign,
            began: clock.now(),
            position: OnceLock::new(),
            is_finished: AtomicBool::new(false),
        }
    }

    /// How long the acquire has taken.
    fn waited(&self) -> Duration {
        self.clock.now().since(self.began)
    }

    /// Reports the first place in the queue.
    pub(super) fn queued(&self, position: usize) {
        if self.position.set(position).is_ok() {
            Span::current().record("position", position);
            let (key, is_campaign) = (&self.key, self.is_campaign);
            self.observers.emit(|| HandleEvent::Queued { key, position, is_campaign });
        }
    }

    /// Reports a hand-over that the waiter was notified of. `at`: when the store granted the key.
    pub(super) fn handed_over(&self, token: FencingToken, at: Option<StoreTime>, place: &QueuePlace) {
        self.observers.emit(|| {
            // The store read its clock for the last answer after `sent`.
            let granted = at.map(|at| place.sent.after(at.since(place.now)));
            let took = granted.map(|granted| self.clock.now().since(granted));
            HandleEvent::HandedOver { key: &self.key, token, took }
        });
    }

    /// Reports the grant, and ends the span.
    pub(super) fn granted(&self, span: Span, lease: &LeaseInner) {
        let (outcome, waited) = (AcquireOutcome::Granted(lease.token), self.waited());
        self.is_finished.store(true, Ordering::Relaxed);
        end_span(span, outcome, waited);
        lease.observe(&self.observers, self.is_campaign, self.finished(outcome, waited));
    }

    /// Reports the failure, and ends the span.
    pub(super) fn failed(&self, span: Span, error: &Error, is_abandoned: bool) {
        let outcome = if is_abandoned { AcquireOutcome::Abandoned } else { AcquireOutcome::Failed(error) };
        let waited = self.waited();
        self.is_finished.store(true, Ordering::Relaxed);
        end_span(span, outcome, waited);
        self.observers.emit(|| self.finished(outcome, waited));
    }

    fn finished<'a>(&'a self, outcome: AcquireOutcome<'a>, waited: Duration) -> HandleEvent<'a> {
        HandleEvent::AcquireFinished {
            key: &self.key,
            mode: self.mode,
            outcome,
            waited,
            position: self.position.get().copied(),
            is_campaign: self.is_campaign,
        }
    }
}

impl Drop for AcquireReport {
    fn drop(&mut self) {
        if !*self.is_finished.get_mut() {
            self.observers.emit(|| self.finished(AcquireOutcome::Abandoned, self.waited()));
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

//! The events of a lease, for the observers of its handle.
//!
//! Invariant: the start of a lease is reported once, and after that its end, once.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::LeaseShared;
use crate::{
    Error,
    engine::{
        lease_state::LeaseState,
        observer::{HandleEvent, Observers},
    },
};

/// What reports the events of a lease.
pub(super) struct ObservedLease {
    observers: Observers,
    /// When, on the clock, the lease began.
    since: Duration,
    is_campaign: bool,
    is_end_reported: AtomicBool,
}

impl LeaseShared {
    /// Reports the start of the lease, and from now on its other events. `is_campaign`: it is a leadership.
    pub(crate) fn observe<'a>(
        &self,
        observers: &Observers,
        is_campaign: bool,
        start: impl FnOnce() -> HandleEvent<'a>,
    ) {
        if observers.is_empty() {
            return;
        }
        observers.emit(start);
        let since = self.clock.now();
        self.observed.get_or_init(|| {
            let is_end_reported = AtomicBool::new(false);
            Box::new(ObservedLease { observers: observers.clone(), since, is_campaign, is_end_reported })
        });
        // It may have ended before it was observed.
        self.report_end();
    }

    /// Reports the end of the lease, if it has ended.
    pub(super) fn report_end(&self) {
        let Some(observed) = self.observed.get() else { return };
        let state = self.lock().clone();
        let (key, token, is_campaign) = (&self.key, self.token, observed.is_campaign);
        let held = self.clock.now().saturating_sub(observed.since);
        let event = match &state {
            LeaseState::Lost { cause } => HandleEvent::Lost { key, token, cause, held, is_campaign },
            LeaseState::Released => HandleEvent::Released { key, token, held, is_campaign },
            LeaseState::Held | LeaseState::AtRisk => return,
        };
        if !observed.is_end_reported.swap(true, Ordering::AcqRel) {
            observed.observers.emit(|| event);
        }
    }

    /// Reports that the lease is at risk.
    pub(super) fn report_risk(&self, remaining: Duration, error: &Error) {
        if let Some(observed) = self.observed.get() {
            let (key, token) = (&self.key, self.token);
            observed.observers.emit(|| HandleEvent::AtRisk { key, token, remaining, error });
        }
    }
}

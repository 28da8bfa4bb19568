//! The refresh policy of a lease, and one request to refresh it.

use std::time::Duration;

use tracing::{Instrument, Span, debug};

use crate::{
    engine::{
        confirm::{Proof, loss_or_stale},
        context::{Context, shut_down_error},
        lease_inner::LeaseInner,
        observer::{HandleEvent, RefreshOutcome},
        retry::{self, Limit},
    },
    record::{self, BatchRequest, LeaseRefs, Outcome, Request},
    spans,
    store::answers::Applied,
    types::{
        acquire_id::AcquireId,
        deadline::Deadline,
        duration::format_duration,
        error::{Error, LossCause, Result},
        instant::Instant,
        key::Key,
        metadata::Metadata,
        token::HybridTime,
        ttl::Ttl,
    },
};

/// When the keeper refreshes the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refreshing {
    /// At a third of the ttl, so two more refreshes can fail.
    AtAThird,
    /// At this interval.
    Every(Duration),
    /// Only when the holder requests it.
    ByHand,
}

impl Refreshing {
    pub(crate) fn interval(self, ttl: Ttl) -> Option<Duration> {
        match self {
            Self::AtAThird => Some(ttl.third()),
            // An extension may have made the ttl shorter than the one that was checked.
            Self::Every(interval) => Some(interval.min(ttl.duration().checked_div(2).unwrap_or_default())),
            Self::ByHand => None,
        }
    }

    /// Refuses an interval that does not fit the ttl. A lease without expiry is refreshed at a third of `offer`.
    pub(crate) fn checked(self, ttl: Ttl, offer: Ttl) -> Result<Self> {
        let half = ttl.duration().checked_div(2).unwrap_or_default();
        match self {
            Self::Every(interval) if interval.is_zero() || interval > half => Err(Error::invalid(format!(
                "`refresh_every` cannot be {} if the ttl is {}: choose more than zero and up to half the ttl, so that one failure does not end the lease",
                format_duration(interval),
                format_duration(ttl.duration())
            ))),
            Self::AtAThird if ttl > Ttl::MAX => Ok(Self::Every(offer.third())),
            _ => Ok(self),
        }
    }
}

/// Gives this ttl to a lease that was just granted, within the call that acquires it, which records the error.
pub(crate) async fn apply_ttl(context: &Context, lease: &LeaseInner, ttl: Ttl, give_up: Deadline) -> Result<()> {
    let until = context.operation_deadline().or_at(give_up.instant()).or_at(lease.deadline());
    let confirmed = retry::until_definite(until, Limit::growing(context.settings.attempt), |deadline| {
        let span = spans::refresh(Some((&lease.key, lease.token)), 1);
        attempt(span, context, lease, ttl, None, None, deadline)
    });
    let confirmed = tokio::select! {
        biased;
        () = context.closing.cancelled() => return Err(shut_down_error()),
        confirmed = confirmed => confirmed?,
    };
    match confirmed {
        Some(Confirmed { sent, .. }) if lease.extend_deadline(sent.after(context.settings.validity(ttl))) => Ok(()),
        _ => Err(Error::unavailable("the lease ended before the store confirmed that it has no expiry: retry")),
    }
}

/// The error of a refresh that the store has not answered.
pub(crate) fn unanswered_error() -> Error {
    Error::unavailable("the store has not answered a refresh yet: check that it can be reached")
}

/// A refresh that the store confirmed.
pub(crate) struct Confirmed {
    /// When the handle or its store was about to send it. The deadline counts from here.
    pub(crate) sent: Instant,
    /// The store's hybrid time at which it was applied.
    pub(crate) hlc: HybridTime,
}

/// Sends one refresh in this span. With an `acquire_id`, that acquire is notified of a revocation from then on. Returns `None`
/// if the lease is lost. The function that calls this records the error.
pub(crate) async fn attempt(
    span: Span,
    context: &Context,
    lease: &LeaseInner,
    ttl: Ttl,
    metadata: Option<&Metadata>,
    acquire_id: Option<AcquireId>,
    deadline: Deadline,
) -> Result<Option<Confirmed>> {
    let (clock, sent) = (context.clock(), context.clock().now());
    let sending = async {
        let request = Request::Refresh(record::Refresh {
            lease: lease.id,
            ttl: ttl.millis(),
            grace: lease.grace,
            metadata: metadata.cloned(),
            acquire_id,
        });
        let proof = context.store.apply(&lease.key, request, deadline);
        let Applied { outcome, at, sent: left_at, .. } = match proof.await? {
            Proof::Answer(answer) => answer,
            Proof::Record(read) => {
                lease.lose(loss_or_stale(lease, read.as_ref())?);
                return Ok(None);
            }
        };
        let sent = left_at.map_or(sent, |left_at| left_at.max(sent));
        match outcome {
            Outcome::Refreshed { token } if token == lease.token => {
                lease.record_round_trip(clock.now().since(sent));
                debug!(key = %lease.key, token = %lease.token, "refreshed");
                Ok(Some(Confirmed { sent, hlc: at.map_or(lease.hlc, |at| at.hlc) }))
            }
            // After the lease had ended, its id was granted again: by a delayed request or in another process.
            Outcome::Refreshed { token } => {
                lease.lose(LossCause::TakenOver { token });
                Ok(None)
            }
            outcome => Err(outcome.unexpected("a refresh")),
        }
    };
    let refreshed = sending.instrument(span.clone()).await;
    let outcome = match &refreshed {
        Ok(Some(_)) => RefreshOutcome::Confirmed,
        Ok(None) => RefreshOutcome::Refused,
        Err(error) => RefreshOutcome::Failed(error),
    };
    report(&span, context, (Some(&lease.key), 1), outcome, sent);
    refreshed
}

/// Sends one refresh of several leases. Returns when it was about to be sent, its span, and whether the store has refreshed all
/// its leases. The caller records the error.
pub(crate) async fn attempt_part(
    context: &Context,
    leases: &LeaseRefs,
    ttl: Ttl,
    deadline: Deadline,
) -> (Instant, Span, Result<bool>) {
    let (sent, span) = (context.clock().now(), spans::refresh(None, leases.len()));
    let answer = context.store.apply_batch(leases, &BatchRequest::Keep { ttl: ttl.millis() }, deadline);
    let refreshed = answer.instrument(span.clone()).await;
    let outcome = match &refreshed {
        Ok(true) => {
            span.in_scope(|| debug!("refreshed together"));
            RefreshOutcome::Confirmed
        }
        Ok(false) => RefreshOutcome::Refused,
        Err(error) => RefreshOutcome::Failed(error),
    };
    report(&span, context, (None, leases.len()), outcome, sent);
    (sent, span, refreshed)
}

/// Reports the answer to a request that refreshes leases, which was sent at `sent`, to its span and to the observers.
pub(crate) fn report(
    span: &Span,
    context: &Context,
    (key, leases): (Option<&Key>, usize),
    outcome: RefreshOutcome<'_>,
    sent: Instant,
) {
    let word = match outcome {
        RefreshOutcome::Confirmed => "confirmed",
        RefreshOutcome::Refused => "refused",
        RefreshOutcome::Failed(error) => error.kind(),
    };
    span.record("outcome", word);
    let took = context.clock().now().since(sent);
    context.settings.observers.emit(|| HandleEvent::RefreshFinished { key, leases, outcome, took });
}

/// Records the error of a refresh in its span: with the risk of a lease, if `record_at_risk` finds a new one, or else by
/// itself.
pub(crate) fn record_error(span: &Span, error: &Error, record_at_risk: impl FnOnce() -> bool) {
    span.in_scope(|| {
        if !record_at_risk() {
            let error: &(dyn std::error::Error + 'static) = error;
            debug!(error, "the refresh failed");
        }
    });
}

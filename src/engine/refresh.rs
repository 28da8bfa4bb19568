//! One request to refresh a lease.

use std::time::Duration;

use tracing::debug;

use crate::{
    Deadline, Error, HybridTime, LossCause, Metadata, Result, Ttl,
    engine::{
        confirm::{confirm_loss, stale},
        context::Context,
        lease_shared::LeaseShared,
        retry::{self, Limit},
    },
    record::{self, Outcome, Request},
    store::Applied,
};

/// When the task refreshes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refreshing {
    /// At a third of the ttl: two more can fail.
    AtAThird,
    /// This often.
    Every(Duration),
    /// Only when its holder says so.
    ByHand,
}

impl Refreshing {
    pub(crate) fn interval(self, ttl: Ttl) -> Option<Duration> {
        match self {
            Self::AtAThird => Some(ttl.third()),
            // An extension may have made the ttl shorter than was checked.
            Self::Every(interval) => Some(interval.min(ttl.duration().checked_div(2).unwrap_or_default())),
            Self::ByHand => None,
        }
    }

    /// When a lease is due after a refresh that was sent at this time.
    pub(crate) fn due_after(self, ttl: Ttl, sent: Duration) -> Duration {
        self.interval(ttl).map_or(Duration::MAX, |interval| sent.saturating_add(interval))
    }

    /// Refuses an interval that is at odds with the ttl.
    pub(crate) fn check(self, ttl: Ttl) -> Result<()> {
        let half = ttl.duration().checked_div(2).unwrap_or_default();
        match self {
            Self::Every(interval) if interval.is_zero() || interval > half => Err(Error::invalid(format!(
                "a lease of {:?} cannot be refreshed every {interval:?}: choose more than zero and up to half the ttl, so that one failure does not end it",
                ttl.duration()
            ))),
            _ => Ok(()),
        }
    }
}

/// Waits until the lease has ended, and ends it when its handle or its time does.
async fn over(context: &Context, hold: &LeaseShared) {
    tokio::select! {
        biased;
        () = hold.ended.cancelled() => {}
        () = context.closing.cancelled() => hold.lose(LossCause::ShutDown),
        () = lapsed(context, hold) => hold.lose(LossCause::Expired),
    }
}

/// Waits until the deadline has passed, which may be moved on meanwhile.
async fn lapsed(context: &Context, hold: &LeaseShared) {
    while !hold.remaining().is_zero() {
        context.clock().sleep_until(hold.deadline()).await;
    }
}

/// Makes a lease that was just granted one of this ttl.
pub(crate) async fn settle(context: &Context, hold: &LeaseShared, ttl: Ttl) -> Result<()> {
    tokio::select! {
        biased;
        () = over(context, hold) => Err(Error::unavailable(
            "the lease ended before the store confirmed that it has no expiry: retry, unless the handle was shut down",
        )),
        settled = refresh(context, hold, ttl) => settled,
    }
}

/// Refreshes until the store confirms or the operation timeout is over.
async fn refresh(context: &Context, hold: &LeaseShared, ttl: Ttl) -> Result<()> {
    let longest = context.settings.longest_attempt(ttl);
    let until = context.operation_deadline().or_at(hold.deadline());
    let confirmed =
        retry::until_definite(until, Limit::growing(longest), |deadline| attempt(context, hold, ttl, None, deadline));
    match confirmed.await? {
        Some(Confirmed { sent, .. }) if hold.extend_deadline(sent.saturating_add(context.settings.validity(ttl))) => {
            Ok(())
        }
        // Lost: the caller is woken by that.
        _ => std::future::pending().await,
    }
}

/// That the store confirmed a refresh.
pub(crate) struct Confirmed {
    /// The time on the clock just before it was sent, from which the deadline counts.
    pub(crate) sent: Duration,
    /// The store's tick when it was applied.
    pub(crate) tick: HybridTime,
}

/// Sends one refresh. `None` is a lease that was lost by it.
pub(crate) async fn attempt(
    context: &Context,
    hold: &LeaseShared,
    ttl: Ttl,
    metadata: Option<&Metadata>,
    deadline: Deadline,
) -> Result<Option<Confirmed>> {
    let clock = context.clock();
    let request = Request::Refresh(record::Refresh {
        lease: hold.lease,
        ttl: ttl.millis(),
        grace: hold.grace,
        metadata: metadata.cloned(),
    });
    let sent = clock.now();
    let Applied { outcome, at, .. } = context.store.apply(&hold.key, request, deadline).await?;
    match outcome {
        Outcome::Refreshed { token } if token == hold.token => {
            hold.note_round_trip(clock.now().saturating_sub(sent));
            debug!(key = %hold.key, token = %hold.token, "refreshed");
            Ok(Some(Confirmed { sent, tick: at.map_or(hold.tick, |at| at.tick) }))
        }
        // This lease id was granted anew after the lease had ended: by a request that was long
        // under way, or in another process.
        Outcome::Refreshed { token } => {
            hold.lose(LossCause::TakenOver { token });
            Ok(None)
        }
        Outcome::Absent => match confirm_loss(context, hold, deadline).await? {
            Some(cause) => {
                hold.lose(cause);
                Ok(None)
            }
            None => Err(stale()),
        },
        outcome => {
            Err(Error::invalid(format!("the store answered a refresh with {outcome:?}: report this bug of the store")))
        }
    }
}

//! One request to refresh a lease, and the read that confirms a loss.

use std::time::Duration;

use tracing::debug;

use crate::{
    Error, LossCause, Metadata, Result, Tick, Ttl,
    hold::Hold,
    record::{self, Outcome, Request},
    retry::{self, Limit},
    seal::Inner,
    store::{Applied, Sighting},
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
async fn over(inner: &Inner, hold: &Hold) {
    tokio::select! {
        biased;
        () = hold.ended.cancelled() => {}
        () = inner.closing.cancelled() => hold.lose(LossCause::ShutDown),
        () = lapsed(inner, hold) => hold.lose(LossCause::Expired),
    }
}

/// Waits until the deadline has passed, which may be moved on meanwhile.
async fn lapsed(inner: &Inner, hold: &Hold) {
    while !hold.remaining().is_zero() {
        inner.clock().sleep_until(hold.deadline()).await;
    }
}

/// Makes a lease that was just granted one of this ttl.
pub(crate) async fn settle(inner: &Inner, hold: &Hold, ttl: Ttl) -> Result<()> {
    tokio::select! {
        biased;
        () = over(inner, hold) => Err(Error::unavailable(
            "the lease ended before the store confirmed that it has no expiry: retry, unless the handle was shut down",
        )),
        settled = refresh(inner, hold, ttl) => settled,
    }
}

/// Refreshes until the store confirms or the operation timeout is over.
async fn refresh(inner: &Inner, hold: &Hold, ttl: Ttl) -> Result<()> {
    let (clock, longest) = (inner.clock(), inner.settings.longest_attempt(ttl));
    let until = inner.give_up().min(hold.deadline());
    let confirmed =
        retry::until_definite(clock, until, Limit::growing(longest), |within| attempt(inner, hold, ttl, None, within));
    match confirmed.await? {
        Some(Confirmed { sent, .. }) if hold.kept_until(sent.saturating_add(inner.settings.lasts(ttl))) => Ok(()),
        // Lost: the caller is woken by that.
        _ => std::future::pending().await,
    }
}

/// That the store confirmed a refresh.
pub(crate) struct Confirmed {
    /// The time on the clock just before it was sent, from which the deadline counts.
    pub(crate) sent: Duration,
    /// The store's tick when it was applied.
    pub(crate) tick: Tick,
}

/// Sends one refresh. `None` is a lease that was lost by it.
pub(crate) async fn attempt(
    inner: &Inner,
    hold: &Hold,
    ttl: Ttl,
    metadata: Option<&Metadata>,
    within: Duration,
) -> Result<Option<Confirmed>> {
    let clock = inner.clock();
    let request = Request::Refresh(record::Refresh {
        lease: hold.lease,
        ttl: ttl.millis(),
        grace: hold.grace,
        metadata: metadata.cloned(),
    });
    let sent = clock.now();
    let Applied { outcome, at, .. } = inner.store.apply(&hold.key, request, within).await?;
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
        Outcome::Absent => {
            let left = sent.saturating_add(within).saturating_sub(clock.now());
            match sight(inner, hold, left).await? {
                Some(cause) => {
                    hold.lose(cause);
                    Ok(None)
                }
                None => Err(stale()),
            }
        }
        outcome => {
            Err(Error::invalid(format!("the store answered a refresh with {outcome:?}: report this bug of the store")))
        }
    }
}

/// Reads whether the lease is gone, and why. An answer that wrote nothing may be stale, so nobody
/// is told of a loss, or of a release that found nothing, before this has said so too.
pub(crate) async fn sight(inner: &Inner, hold: &Hold, within: Duration) -> Result<Option<LossCause>> {
    let (record, at) = match inner.store.read(&hold.key, within).await? {
        Sighting::Nothing => return Ok(Some(LossCause::Removed)),
        Sighting::Seen { record, at } => (record, at),
    };
    if record.live_holder(hold.lease, at.now).is_some_and(|holder| holder.version == hold.token) {
        return Ok(None);
    }
    let revoked = record.history.into_iter().rev().find(|revoked| revoked.tokens.contains(&hold.token));
    Ok(Some(match revoked {
        Some(revoked) => LossCause::Revoked { by: revoked.by, reason: revoked.reason },
        // A larger token of one who shares the key takes nothing from this one.
        None if record.version > hold.token && hold.exclusive => LossCause::TakenOver { token: record.version },
        None if record.version < hold.token => LossCause::Removed,
        None => LossCause::Expired,
    }))
}

pub(crate) fn stale() -> Error {
    Error::unavailable("the store answered from a stale copy: retry")
}

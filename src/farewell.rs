//! What becomes of a lease at the store when it has ended here.

use std::{mem, sync::Arc, time::Duration};

use tracing::{debug, warn};

use crate::{
    Error, FencingToken, LeaseId, LossCause, Released, Result,
    hold::Hold,
    lease::End,
    record::{self, Outcome, Request},
    refresh::{sight, stale},
    retry::{self, Limit},
    seal::Inner,
    shutdown_releases::{self, BatchOutcome},
    together::{Together, WithGroup},
};

/// What becomes of a lease at the store, other than its release.
#[derive(Debug)]
pub(crate) enum Farewell {
    /// It is left to its ttl.
    Orphan,
    /// It is given to this lease id.
    Transfer(LeaseId),
    /// It is released together with others.
    Together(Arc<Together>),
    /// Its group is being released by this handle.
    WithGroup(WithGroup),
}

/// Does what is to be done at the store about a lease that has ended.
pub(crate) async fn say(inner: &Arc<Inner>, hold: &Hold) -> Result<End> {
    let end = end(inner, hold).await;
    if let Err(error) = &end {
        if hold.is_lost() == Some(LossCause::ShutDown) {
            // The shutdown warns of all of them at once.
            inner.shutdown_releases.note_unreleased();
            debug!(key = %hold.key, token = %hold.token, %error, "not released");
            return end;
        }
        let error: &(dyn std::error::Error + 'static) = error;
        let (key, token) = (&hold.key, hold.token);
        if matches!(hold.farewell.get(), Some(Farewell::Transfer(_))) {
            warn!(%key, %token, error, "the lease could not be transferred: see the error, and inspect the key for its holder");
        } else {
            warn!(%key, %token, error, "the lease could not be released: its ttl ends it, or a revocation if it has no expiry");
        }
    }
    end
}

async fn end(inner: &Arc<Inner>, hold: &Hold) -> Result<End> {
    match (hold.is_lost(), hold.farewell.get()) {
        (Some(LossCause::Transferred), Some(Farewell::Transfer(to))) => {
            let given = transfer(inner, hold, *to).await;
            if matches!(given, Err(Error::Invalid { .. })) {
                // Nobody here holds it any more, and its ttl may be for ever.
                drop(release(inner, hold, inner.give_up(), false).await);
            }
            given.map(End::Transferred)
        }
        (Some(cause), Some(Farewell::WithGroup(group))) if cause != LossCause::ShutDown => {
            if !group.released(inner).await {
                drop(release(inner, hold, inner.give_up(), true).await);
            }
            Ok(End::Released(Released::Gone { cause }))
        }
        (Some(cause), _) if cause != LossCause::ShutDown => Ok(End::Released(Released::Gone { cause })),
        (Some(LossCause::ShutDown), _) => {
            let (sent_before, until) = match shutdown_releases::release(inner, hold).await {
                BatchOutcome::Released => return Ok(End::Released(Released::Ours)),
                BatchOutcome::Single { was_sent, until } => (was_sent, until),
                BatchOutcome::OutOfTime => {
                    return Err(Error::unavailable(
                        "the shutdown had no time left to release the lease: raise `operation_timeout`; its ttl ends it, or a revocation if it has no expiry",
                    ));
                }
            };
            release(inner, hold, until, sent_before).await.map(End::Released)
        }
        (None, Some(Farewell::Orphan)) => Ok(End::Released(Released::Ours)),
        (None, Some(Farewell::Together(others))) => {
            let until = inner.give_up();
            let within = until.saturating_sub(inner.clock().now()).min(inner.settings.attempt);
            if others.released(inner, within).await {
                Ok(End::Released(Released::Ours))
            } else {
                release(inner, hold, until, true).await.map(End::Released)
            }
        }
        _ => release(inner, hold, inner.give_up(), false).await.map(End::Released),
    }
}

/// Gives the key back, for a lease that has ended here by the will of this process, and whose release may
/// have been sent before.
async fn release(inner: &Inner, hold: &Hold, until: Duration, mut sent_before: bool) -> Result<Released> {
    let clock = inner.clock();
    let released = retry::until_definite(clock, until, Limit::growing(inner.settings.attempt), |within| {
        let sent_before = mem::replace(&mut sent_before, true);
        async move {
            let until = clock.now().saturating_add(within);
            let request = Request::Release(record::Release { lease: hold.lease, token: hold.token });
            match inner.store.apply(&hold.key, request, within).await?.outcome {
                Outcome::Released => Ok(Released::Ours),
                Outcome::Absent => match sight(inner, hold, until.saturating_sub(clock.now())).await? {
                    None => Err(stale()),
                    // Asked before, without an answer. If the deadline is ahead and nobody came
                    // since, it was that request which ended the lease; else who knows.
                    Some(LossCause::Expired) if sent_before && hold.deadline() > clock.now() => Ok(Released::Ours),
                    Some(LossCause::Expired | LossCause::TakenOver { .. }) if sent_before => Ok(Released::Unknown),
                    Some(cause) => Ok(Released::Gone { cause }),
                },
                outcome => Err(Error::invalid(format!(
                    "the store answered a release with {outcome:?}: report this bug of the store"
                ))),
            }
        }
    });
    let released = released.await?;
    debug!(key = %hold.key, token = %hold.token, ?released, "released");
    Ok(released)
}

/// Gives the lease to another lease id, for one that has ended here for that.
async fn transfer(inner: &Inner, hold: &Hold, to: LeaseId) -> Result<FencingToken> {
    let clock = inner.clock();
    let transferred = retry::until_definite(clock, inner.give_up(), inner.settings.attempt, |within| async move {
        let until = clock.now().saturating_add(within);
        let request = record::Transfer { lease: hold.lease, token: hold.token, to };
        match inner.store.apply(&hold.key, Request::Transfer(request), within).await?.outcome {
            Outcome::Transferred { token } if token > hold.token => Ok(token),
            Outcome::Transferred { .. } | Outcome::Refused { .. } => Err(Error::invalid(format!(
                "lease id {to} holds {:?} already, so the lease was not transferred and is released: acquire the key again, and choose another lease id",
                hold.key
            ))),
            Outcome::Absent => match sight(inner, hold, until.saturating_sub(clock.now())).await? {
                Some(cause) => Err(hold.lost(cause)),
                None => Err(stale()),
            },
            outcome => Err(Error::invalid(format!(
                "the store answered a transfer with {outcome:?}: report this bug of the store"
            ))),
        }
    });
    transferred.await
}

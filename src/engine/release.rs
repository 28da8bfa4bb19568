//! Does at the store what is to be done about a lease that has ended here: releases it, gives it away, or leaves it.

use std::{mem, sync::Arc};

use tracing::{debug, warn};

use crate::{
    Deadline, Error, FencingToken, LeaseId, LossCause, Result,
    engine::{
        confirm::{confirm_loss, stale},
        context::Context,
        end_action::{End, EndAction, ReleaseOutcome},
        lease_shared::LeaseShared,
        retry::{self, Limit},
        shutdown_release::{BatchOutcome, ShutdownReleases},
    },
    record::{self, Outcome, Request},
};

/// Does what is to be done at the store about a lease that has ended.
pub(crate) async fn run(
    context: &Arc<Context>,
    at_shutdown: &Arc<ShutdownReleases>,
    hold: &LeaseShared,
) -> Result<End> {
    let end = end(context, at_shutdown, hold).await;
    if let Err(error) = &end {
        if hold.is_lost() == Some(LossCause::ShutDown) {
            // The shutdown warns of all of them at once.
            at_shutdown.note_unreleased();
            debug!(key = %hold.key, token = %hold.token, %error, "not released");
            return end;
        }
        let error: &(dyn std::error::Error + 'static) = error;
        let (key, token) = (&hold.key, hold.token);
        if matches!(hold.end_action.get(), Some(EndAction::Transfer(_))) {
            warn!(%key, %token, error, "the lease could not be transferred: see the error, and inspect the key for its holder");
        } else {
            warn!(%key, %token, error, "the lease could not be released: its ttl ends it, or a revocation if it has no expiry");
        }
    }
    end
}

async fn end(context: &Arc<Context>, at_shutdown: &Arc<ShutdownReleases>, hold: &LeaseShared) -> Result<End> {
    match (hold.is_lost(), hold.end_action.get()) {
        (Some(LossCause::Transferred), Some(EndAction::Transfer(to))) => {
            let given = transfer(context, hold, *to).await;
            if matches!(given, Err(Error::Invalid { .. })) {
                // Nobody here holds it any more, and its ttl may be for ever.
                drop(release(context, hold, context.operation_deadline(), false).await);
            }
            given.map(End::Transferred)
        }
        (Some(cause), Some(EndAction::WithGroup(group))) if cause != LossCause::ShutDown => {
            if !group.released(context).await {
                drop(release(context, hold, context.operation_deadline(), true).await);
            }
            Ok(End::Released(ReleaseOutcome::AlreadyLost { cause }))
        }
        (Some(cause), _) if cause != LossCause::ShutDown => Ok(End::Released(ReleaseOutcome::AlreadyLost { cause })),
        (Some(LossCause::ShutDown), _) => {
            let (sent_before, until) = match at_shutdown.release(context, hold).await {
                BatchOutcome::Released => return Ok(End::Released(ReleaseOutcome::Released)),
                BatchOutcome::Single { was_sent, until } => (was_sent, until),
                BatchOutcome::OutOfTime => {
                    return Err(Error::unavailable(
                        "the shutdown had no time left to release the lease: raise `operation_timeout`; its ttl ends it, or a revocation if it has no expiry",
                    ));
                }
            };
            release(context, hold, until, sent_before).await.map(End::Released)
        }
        (None, Some(EndAction::Orphan)) => Ok(End::Released(ReleaseOutcome::Released)),
        (None, Some(EndAction::Jointly(others))) => {
            let until = context.operation_deadline();
            if others.released(context, until.or_after(context.settings.attempt)).await {
                Ok(End::Released(ReleaseOutcome::Released))
            } else {
                release(context, hold, until, true).await.map(End::Released)
            }
        }
        _ => release(context, hold, context.operation_deadline(), false).await.map(End::Released),
    }
}

/// Gives the key back, for a lease that has ended here by the will of this process, and whose release may
/// have been sent before.
async fn release(
    context: &Context,
    hold: &LeaseShared,
    until: Deadline,
    mut sent_before: bool,
) -> Result<ReleaseOutcome> {
    let clock = context.clock();
    let released = retry::until_definite(until, Limit::growing(context.settings.attempt), |deadline| {
        let sent_before = mem::replace(&mut sent_before, true);
        async move {
            let request = Request::Release(record::Release { lease: hold.lease, token: hold.token });
            match context.store.apply(&hold.key, request, deadline).await?.outcome {
                Outcome::Released => Ok(ReleaseOutcome::Released),
                Outcome::Absent => match confirm_loss(context, hold, deadline).await? {
                    None => Err(stale()),
                    // Asked before, without an answer. If the deadline is ahead and nobody came
                    // since, it was that request which ended the lease; else who knows.
                    Some(LossCause::Expired) if sent_before && hold.deadline() > clock.now() => {
                        Ok(ReleaseOutcome::Released)
                    }
                    Some(LossCause::Expired | LossCause::TakenOver { .. }) if sent_before => {
                        Ok(ReleaseOutcome::Unknown)
                    }
                    Some(cause) => Ok(ReleaseOutcome::AlreadyLost { cause }),
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
async fn transfer(context: &Context, hold: &LeaseShared, to: LeaseId) -> Result<FencingToken> {
    let transferred = retry::until_definite(
        context.operation_deadline(),
        context.settings.attempt,
        |deadline| async move {
            let request = record::Transfer { lease: hold.lease, token: hold.token, to };
            match context.store.apply(&hold.key, Request::Transfer(request), deadline).await?.outcome {
                Outcome::Transferred { token } if token > hold.token => Ok(token),
                Outcome::Transferred { .. } | Outcome::Refused { .. } => Err(Error::invalid(format!(
                    "lease id {to} holds {:?} already, so the lease was not transferred and is released: acquire the key again, and choose another lease id",
                    hold.key
                ))),
                Outcome::Absent => match confirm_loss(context, hold, deadline).await? {
                    Some(cause) => Err(hold.lost(cause)),
                    None => Err(stale()),
                },
                outcome => Err(Error::invalid(format!(
                    "the store answered a transfer with {outcome:?}: report this bug of the store"
                ))),
            }
        },
    );
    transferred.await
}

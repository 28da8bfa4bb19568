//! Acts at the store on a lease that has ended in this process: releases it, transfers it, or leaves it to its ttl.
//!
//! Invariant: each request can be sent twice with the effect of once.

use std::{mem, sync::Arc};

use tracing::{Instrument, debug, warn};

use crate::{
    AcquireId, Deadline, Error, FencingToken, LeaseId, LossCause, Result,
    engine::{
        completion,
        confirm::{confirm_loss, stale_error},
        context::Context,
        end_action::{End, EndAction},
        lease_shared::LeaseShared,
        lease_state::ReleaseOutcome,
        observer::HandleEvent,
        retry::{self, Limit},
        shutdown_release::{BatchOutcome, ShutdownReleases},
    },
    record::{self, Outcome, Request},
    spans,
};

/// The part of the operation timeout that a shutdown keeps for the releases after the work: the time that it gives a batch.
const RELEASE_PART: f64 = 0.2;

/// Acts at the store on a lease that has ended, and returns what it did. Its span is that of a release, and ends before
/// the caller has the answer.
pub(crate) async fn run(
    context: &Arc<Context>,
    at_shutdown: &Arc<ShutdownReleases>,
    lease: &LeaseShared,
    caller: AcquireId,
) -> Result<End> {
    let began = context.clock().now();
    let waiting = lease.end_action.get().and_then(EndAction::take_caller_span);
    let span = spans::release(waiting.as_deref(), &lease.key, lease.token);
    drop(waiting);
    let end = finish(context, at_shutdown, lease, caller).instrument(span.clone()).await;
    span.record("outcome", end.as_ref().map_or_else(Error::kind, End::word));
    if !matches!(end, Ok(End::Orphaned)) {
        context.settings.observers.emit(|| HandleEvent::ReleaseFinished {
            key: &lease.key,
            token: lease.token,
            outcome: end.as_ref().map(End::outcome),
            took: context.clock().now().saturating_sub(began),
        });
    }
    if let Err(error) = &end {
        span.in_scope(|| report_failure(at_shutdown, lease, error));
    }
    end
}

/// Records the error of a lease that was not released.
fn report_failure(at_shutdown: &ShutdownReleases, lease: &LeaseShared, error: &Error) {
    let error: &(dyn std::error::Error + 'static) = error;
    let (key, token) = (&lease.key, lease.token);
    if lease.loss() == Some(LossCause::ShutDown) {
        // The shutdown warns once for all of them.
        at_shutdown.note_unreleased();
        debug!(%key, %token, error, "not released");
    } else if matches!(lease.end_action.get(), Some(EndAction::Transfer(_))) {
        warn!(%key, %token, error, "the lease could not be transferred: see the error, and inspect the key for its holder");
    } else {
        warn!(%key, %token, error, "the lease could not be released: it ends with its ttl, or by a revocation if it has no expiry");
    }
}

async fn finish(
    context: &Arc<Context>,
    at_shutdown: &Arc<ShutdownReleases>,
    lease: &LeaseShared,
    caller: AcquireId,
) -> Result<End> {
    match (lease.loss(), lease.end_action.get()) {
        (Some(LossCause::Transferred), Some(EndAction::Transfer(to))) => {
            let given = transfer(context, lease, *to).await;
            if matches!(given, Err(Error::Invalid { .. })) {
                // No process holds the lease now, and it may have no expiry.
                drop(release(context, lease, context.operation_deadline(), false).await);
            }
            given.map(End::Transferred)
        }
        (Some(cause), Some(EndAction::WithGroup(group))) if cause != LossCause::ShutDown => {
            if !group.wait(context).await {
                drop(release(context, lease, context.operation_deadline(), true).await);
            }
            Ok(End::Released(ReleaseOutcome::AlreadyLost { cause }))
        }
        (Some(cause), _) if cause != LossCause::ShutDown => Ok(End::Released(ReleaseOutcome::AlreadyLost { cause })),
        (Some(LossCause::ShutDown), _) if lease.is_at_work() => {
            let reserve = context.settings.operation_timeout.mul_f64(RELEASE_PART);
            let until = context.operation_deadline();
            if context.wait_until(until.sooner_by(reserve), lease.work_ended()).await.is_none() {
                return Err(Error::unavailable(
                    "the work under the lease has not ended since the shutdown, so the lease is not released: end the work when its lease ends, or raise `operation_timeout`",
                ));
            }
            release(context, lease, until, false).await.map(End::Released)
        }
        (Some(LossCause::ShutDown), _) => {
            let (sent_before, until) = match at_shutdown.release(context, lease).await {
                BatchOutcome::Released => return Ok(End::Released(ReleaseOutcome::Released)),
                BatchOutcome::Single { was_sent, until } => (was_sent, until),
                BatchOutcome::OutOfTime => {
                    return Err(Error::unavailable(
                        "the shutdown had no time left to release the lease, which ends with its ttl, or by a revocation if it has no expiry: raise `operation_timeout`",
                    ));
                }
            };
            release(context, lease, until, sent_before).await.map(End::Released)
        }
        (None, Some(EndAction::Complete(tick, keep))) => {
            completion::complete(context, lease, *tick, *keep).await?;
            Ok(End::Completed)
        }
        (None, Some(EndAction::TakeBack)) => {
            let request = Request::Leave(record::Leave { lease: lease.id, caller });
            send(context, lease, context.operation_deadline(), false, request).await.map(End::Released)
        }
        (None, Some(EndAction::Orphan)) => Ok(End::Orphaned),
        (None, Some(EndAction::Jointly(others))) => {
            let until = context.operation_deadline();
            if others.run(context, until.or_after(context.settings.attempt)).await {
                Ok(End::Released(ReleaseOutcome::Released))
            } else {
                release(context, lease, until, true).await.map(End::Released)
            }
        }
        _ => release(context, lease, context.operation_deadline(), false).await.map(End::Released),
    }
}

/// Releases a lease that this process has ended. `sent_before`: a release may have been sent already.
async fn release(context: &Context, lease: &LeaseShared, until: Deadline, sent_before: bool) -> Result<ReleaseOutcome> {
    let release = Request::Release(record::Release { lease: lease.id, token: lease.token });
    send(context, lease, until, sent_before, release).await
}

/// Sends a request that releases the lease.
async fn send(
    context: &Context,
    lease: &LeaseShared,
    until: Deadline,
    mut sent_before: bool,
    request: Request,
) -> Result<ReleaseOutcome> {
    let clock = context.clock();
    let released = retry::until_definite(until, Limit::growing(context.settings.attempt), |deadline| {
        let sent_before = mem::replace(&mut sent_before, true);
        let request = request.clone();
        async move {
            match context.store.apply(&lease.key, request, deadline).await?.outcome {
                Outcome::Released => Ok(ReleaseOutcome::Released),
                Outcome::Absent => match confirm_loss(context, lease, deadline).await? {
                    None => Err(stale_error()),
                    // An earlier send has no answer. If the deadline is ahead and the key was not granted again, that
                    // send ended the lease. Otherwise the outcome is unknown.
                    Some(LossCause::Expired) if sent_before && lease.deadline() > clock.now() => {
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
    debug!(key = %lease.key, token = %lease.token, ?released, "released");
    Ok(released)
}

/// Transfers a lease, which has ended in this process for that, to another lease id.
async fn transfer(context: &Context, lease: &LeaseShared, to: LeaseId) -> Result<FencingToken> {
    let transferred = retry::until_definite(
        context.operation_deadline(),
        context.settings.attempt,
        |deadline| async move {
            let request = record::Transfer { lease: lease.id, token: lease.token, to };
            match context.store.apply(&lease.key, Request::Transfer(request), deadline).await?.outcome {
                Outcome::Transferred { token } if token > lease.token => Ok(token),
                Outcome::Transferred { .. } | Outcome::Refused { .. } => Err(Error::invalid(format!(
                    "the lease id {to} already holds {:?}, so the lease was released and not transferred: acquire the key again, and choose another lease id",
                    lease.key
                ))),
                Outcome::Absent => match confirm_loss(context, lease, deadline).await? {
                    Some(cause) => Err(lease.lost_error(cause)),
                    None => Err(stale_error()),
                },
                outcome => Err(Error::invalid(format!(
                    "the store answered a transfer with {outcome:?}: report this bug of the store"
                ))),
            }
        },
    );
    transferred.await
}

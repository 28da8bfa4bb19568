//! Acts at the store on a lease that has ended in this process: releases it, transfers it, completes its tick, or leaves it
//! to its ttl.
//!
//! Mechanism: the keeper starts a task for each lease that has ended, which calls [`run`]. What happens depends on the cause
//! of the end and on the [`EndAction`] that the holder has set. A lease may be released by one command together with others.
//!
//! Invariants:
//! - Each request can be sent twice with the effect of once.
//! - A tick counts as completed only if a write of this lease says so, or a linearizable read.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
};

use tracing::{Instrument, debug, warn};

use crate::{
    engine::{
        confirm::{Proof, loss_or_stale},
        context::Context,
        end_action::{BatchOutcome, Completion, End, EndAction, PendingOutcome},
        handle_inner::HandleInner,
        lease_inner::LeaseInner,
        lease_state::{LeaseState, ReleaseOutcome},
        observer::HandleEvent,
        retry::{self, Limit},
        value::{self, PutEnd, keep_millis},
    },
    record::{self, Outcome, Request},
    spans,
    store::answers::Applied,
    types::{
        deadline::Deadline,
        error::{EndReason, Error, LossCause, Result},
        lease_id::LeaseId,
        lock::lock,
        token::FencingToken,
    },
};

/// The part of the operation timeout that a shutdown keeps for the releases after the work.
const RELEASE_PART: f64 = 0.2;

/// Acts at the store on a lease that has ended, and returns what it did. Its span is that of a release, and ends before
/// the caller has the answer.
pub(crate) async fn run(handle: &Arc<HandleInner>, lease: &LeaseInner, batch: Option<PendingOutcome>) -> Result<End> {
    let context = &*handle.context;
    let began = context.clock().now();
    let caller = lock(&lease.caller).take();
    let span = spans::release(caller.as_deref(), &lease.key, lease.token);
    drop(caller);
    let end = finish(handle, lease, batch).instrument(span.clone()).await;
    span.record("outcome", end.as_ref().map_or_else(Error::kind, End::word));
    if !matches!(end, Ok(End::Orphaned)) {
        context.settings.observers.emit(|| HandleEvent::ReleaseFinished {
            key: &lease.key,
            token: lease.token,
            outcome: end.as_ref().map(End::outcome),
            took: context.clock().now().since(began),
        });
    }
    if let Err(error) = &end {
        span.in_scope(|| report_failure(handle, lease, error));
    }
    end
}

/// Records the error of a lease that was not released.
fn report_failure(handle: &HandleInner, lease: &LeaseInner, error: &Error) {
    let error: &(dyn std::error::Error + 'static) = error;
    let (key, token) = (&lease.key, lease.token);
    if lease.recorded_state() == LeaseState::SHUT_DOWN {
        // The shutdown warns once for all of them.
        handle.releases.record_unreleased();
        debug!(%key, %token, error, "not released");
    } else if matches!(lease.end_action.get(), Some(EndAction::Transfer(_))) {
        warn!(%key, %token, error, "the lease could not be transferred: see the error, and inspect the key for its holder");
    } else {
        warn!(%key, %token, error, "the lease could not be released: it ends with its ttl, or by a revocation if it has no expiry");
    }
}

/// Whether a lease has ended with the others of its set, and one command releases them.
pub(crate) fn is_joint(lease: &LeaseInner) -> bool {
    lease.recorded_state() == LeaseState::RELEASED && matches!(lease.end_action.get(), Some(EndAction::Jointly))
}

async fn finish(handle: &Arc<HandleInner>, lease: &LeaseInner, batch: Option<PendingOutcome>) -> Result<End> {
    let context = &*handle.context;
    let until = context.operation_deadline();
    let outcome = match batch {
        Some(pending) => *pending.wait().await,
        None => BatchOutcome::Unsent,
    };
    match (lease.recorded_state(), lease.end_action.get()) {
        (LeaseState::SHUT_DOWN, _) if !lease.is_ungiven.load(Ordering::Acquire) => {
            let worked = lease.is_at_work();
            let reserve = context.settings.operation_timeout.mul_f64(RELEASE_PART);
            if worked && until.sooner_by(reserve).wait_for(lease.work_ended()).await.is_none() {
                return Err(Error::unavailable(
                    "the work under the lease has not ended since the shutdown, so the lease is not released: end the work when its lease ends, or raise `operation_timeout`",
                ));
            }
            let until = if worked { until } else { handle.releases.deadline(context) };
            let (pending, is_first) = handle.releases.join((lease.key.clone(), lease.token), until);
            if is_first {
                let handle = Arc::clone(handle);
                context.spawn(async move { handle.releases.send_next(&handle.context).await });
            }
            let outcome = *pending.wait().await;
            if outcome == BatchOutcome::Unsent && until.has_passed() {
                return Err(Error::unavailable(
                    "the shutdown had no time left to release the lease, which ends with its ttl, or by a revocation if it has no expiry: raise `operation_timeout`",
                ));
            }
            release(outcome, context, lease, until).await
        }
        (LeaseState::Ended { reason: EndReason::Transferred }, Some(EndAction::Transfer(to))) => {
            let given = transfer(context, lease, *to).await;
            if matches!(given, Err(Error::Invalid { .. })) {
                // No process holds the lease now, and it may have no expiry.
                drop(release(outcome, context, lease, context.operation_deadline()).await);
            }
            given.map(End::Transferred)
        }
        (LeaseState::Ended { reason: EndReason::Transferred }, _) => {
            Ok(End::Released(ReleaseOutcome::AlreadyTransferred))
        }
        (LeaseState::Lost { cause }, Some(EndAction::WithGroup(group))) => {
            let outcome = tokio::select! {
                biased;
                outcome = group.wait() => *outcome,
                // The caller may not poll the call that releases the group.
                () = context.closing.cancelled() => BatchOutcome::Unconfirmed,
                () = until.passed() => BatchOutcome::Unconfirmed,
            };
            drop(release(outcome, context, lease, context.operation_deadline()).await);
            Ok(End::Released(ReleaseOutcome::AlreadyLost { cause }))
        }
        (LeaseState::Lost { cause }, _) => Ok(End::Released(ReleaseOutcome::AlreadyLost { cause })),
        (_, Some(EndAction::Complete(completion))) => {
            complete(context, lease, completion).await.map(|()| End::Completed)
        }
        (_, Some(EndAction::ReleaseWithValue(write))) => {
            let (of, last) = ((lease.id, lease.token), &lease.last_write);
            match value::put(context, &lease.key, of, last, write, until).await? {
                PutEnd::Stored => Ok(End::ReleasedWithValue),
                PutEnd::Lost { cause, is_overwritten: false } => {
                    Ok(End::Released(ReleaseOutcome::AlreadyLost { cause }))
                }
                PutEnd::Lost { .. } => Err(Error::unavailable(format!(
                    "it is unknown whether the value of {:?} was stored: no answer came before a later holder wrote another: inspect the key",
                    lease.key
                ))),
            }
        }
        (LeaseState::SHUT_DOWN, _) | (_, Some(EndAction::TakeBack)) => {
            let request = Request::Leave(record::Leave { lease: lease.id, acquire_id: lease.acquire_id });
            send(context, lease, until, false, request).await
        }
        (_, Some(EndAction::Orphan)) => Ok(End::Orphaned),
        (_, Some(EndAction::Jointly | EndAction::Transfer(_) | EndAction::WithGroup(_)) | None) => {
            release(outcome, context, lease, until).await
        }
    }
}

/// Releases a lease alone, unless its batch has released it.
async fn release(outcome: BatchOutcome, context: &Context, lease: &LeaseInner, until: Deadline) -> Result<End> {
    if outcome == BatchOutcome::Released {
        return Ok(End::Released(ReleaseOutcome::Released));
    }
    let release = Request::Release(record::Release { lease: lease.id, token: lease.token });
    send(context, lease, until, outcome == BatchOutcome::Unconfirmed, release).await
}

/// Sends a request that releases the lease. `sent_before`: a release may have been sent already.
async fn send(
    context: &Context,
    lease: &LeaseInner,
    until: Deadline,
    mut sent_before: bool,
    request: Request,
) -> Result<End> {
    let clock = context.clock();
    let released = retry::until_definite(until, Limit::growing(context.settings.attempt), |deadline| {
        let sent_before = mem::replace(&mut sent_before, true);
        let request = request.clone();
        async move {
            match context.store.apply(&lease.key, request, deadline).await? {
                Proof::Answer(Applied { outcome: Outcome::Released, .. }) => Ok(ReleaseOutcome::Released),
                Proof::Answer(answer) => Err(answer.outcome.unexpected("a release")),
                Proof::Record(read) => Ok(match loss_or_stale(lease, read.as_ref())? {
                    // An earlier send has no answer. If the deadline is ahead and the key was not granted again, that
                    // send ended the lease. Otherwise the outcome is unknown.
                    LossCause::Expired if sent_before && lease.deadline() > clock.now() => ReleaseOutcome::Released,
                    LossCause::Expired | LossCause::TakenOver { .. } if sent_before => ReleaseOutcome::Unknown,
                    cause => ReleaseOutcome::AlreadyLost { cause },
                }),
            }
        }
    });
    let released = released.await?;
    debug!(key = %lease.key, token = %lease.token, ?released, "released");
    Ok(End::Released(released))
}

/// Transfers a lease, which has ended in this process for that, to another lease id.
async fn transfer(context: &Context, lease: &LeaseInner, to: LeaseId) -> Result<FencingToken> {
    let transferred = retry::until_definite(
        context.operation_deadline(),
        context.settings.attempt,
        |deadline| async move {
            let request = record::Transfer { lease: lease.id, token: lease.token, to };
            let outcome = match context.store.apply(&lease.key, Request::Transfer(request), deadline).await? {
                Proof::Answer(answer) => answer.outcome,
                Proof::Record(read) => return Err(lease.lost_error(loss_or_stale(lease, read.as_ref())?)),
            };
            match outcome {
                Outcome::Transferred { token } if token > lease.token => Ok(token),
                Outcome::Transferred { .. } | Outcome::Refused { .. } => Err(Error::invalid(format!(
                    "the lease id {to} already holds {:?}, so the lease was released and not transferred: acquire the key again, and choose another lease id",
                    lease.key
                ))),
                outcome => Err(outcome.unexpected("a transfer")),
            }
        },
    );
    transferred.await
}

/// Completes a tick and releases the lease, in one write. The lease may have expired, if the key was not granted since.
pub(crate) async fn complete(context: &Context, lease: &LeaseInner, completion: &Completion) -> Result<()> {
    let Completion { tick, keep, ref report } = *completion;
    let keep = keep_millis(context, keep);
    let mut sent_before = false;
    let (until, limit) = (context.operation_deadline(), Limit::growing(context.settings.attempt));
    retry::until_definite(until, limit, |deadline| {
        let sent_before = mem::replace(&mut sent_before, true);
        async move {
            let by = context.settings.owner.as_str().to_owned();
            let (token, report) = (lease.token, report.clone());
            let request = Request::Complete(record::Complete { lease: lease.id, token, tick, by, keep, report });
            let read = match context.store.apply(&lease.key, request, deadline).await? {
                Proof::Answer(Applied { outcome: Outcome::Completed, .. }) => return Ok(Ok(())),
                Proof::Answer(answer) => return Err(answer.outcome.unexpected("a completion")),
                Proof::Record(read) => read,
            };
            let done = read.as_ref().and_then(|read| read.record.done.as_ref());
            if done.is_some_and(|done| done.token == lease.token) {
                return Ok(Ok(()));
            }
            match loss_or_stale(lease, read.as_ref())? {
                // A later lease may have completed its own tick over that of this lease.
                LossCause::TakenOver { token } if sent_before => Ok(Err(Error::unavailable(format!(
                    "it is unknown whether the tick {tick} of {:?} was completed: no answer came before the key was granted again, with token {token}: inspect the key for its last completed tick",
                    lease.key
                )))),
                cause => Err(lease.lost_error(cause)),
            }
        }
    })
    .await??;
    debug!(key = %lease.key, token = %lease.token, tick, "completed");
    Ok(())
}

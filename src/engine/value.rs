//! Writes the value of a key under a lease.
//!
//! Mechanism: each write has a random id, and names the write before it under the same token. The first attempt names the
//! last write that this lease knows of. If another process has written under the same lease since, the store answers with
//! its write, and the next attempt names that.
//!
//! Invariant: an attempt that is repeated has the same id, so it is applied once.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    engine::{
        confirm::{Proof, find_loss, stale_error},
        context::Context,
        end_action::ValueWrite,
        retry::{self, Limit},
    },
    record::{Outcome, PutValue, Request},
    types::{
        deadline::Deadline,
        error::{Error, LossCause, Result},
        key::Key,
        lease_id::LeaseId,
        lock::lock,
        token::FencingToken,
        ttl,
    },
};

/// How a write ended.
#[derive(Debug)]
pub(crate) enum PutEnd {
    Stored,
    /// The lease is lost, and the value is not that of the write. `is_overwritten`: a later holder has written it, so it
    /// may have been.
    Lost {
        cause: LossCause,
        is_overwritten: bool,
    },
}

/// For how long after now a record matters whose ticks or value are kept this long: the store keeps it for its retention
/// after that.
pub(crate) fn keep_millis(context: &Context, keep: Duration) -> u64 {
    ttl::millis(keep.saturating_sub(context.store.retention()))
}

/// Sends a write under this lease until its outcome is known. `last_write`: the last write under its token, 0 if none is
/// known.
pub(crate) async fn put(
    context: &Context,
    key: &Key,
    (lease, token): (LeaseId, FencingToken),
    last_write: &AtomicU64,
    write: &ValueWrite,
    until: Deadline,
) -> Result<PutEnd> {
    let ValueWrite { content, keep, releases } = write;
    let keep = keep_millis(context, *keep);
    let follow = |after| PutValue {
        lease,
        token,
        after,
        write: fastrand::u64(1..1 << 53),
        content: content.clone(),
        keep,
        releases: *releases,
    };
    let present = &Mutex::new(follow(last_write.load(Ordering::Relaxed)));
    let sent = retry::until_definite(until, Limit::growing(context.settings.attempt), |deadline| async move {
        context.prepare(deadline).await?;
        loop {
            let put = lock(present).clone();
            let read = match context.store.apply(key, Request::PutValue(put.clone()), deadline).await? {
                Proof::Answer(answer) => match answer.outcome {
                    Outcome::ValuePut => return Ok((put, PutEnd::Stored)),
                    Outcome::ValueOutdated { write } => {
                        *lock(present) = follow(write);
                        continue;
                    }
                    Outcome::Refused { .. } => return Err(shared_error(key)),
                    outcome => return Err(outcome.unexpected("a write of a value")),
                },
                Proof::Record(read) => read,
            };
            let value = read.as_ref().and_then(|read| read.record.value.as_ref());
            if put.is_in(value) {
                return Ok((put, PutEnd::Stored));
            }
            let is_overwritten = value.is_some_and(|value| value.token > token);
            let cause = match &read {
                Some(read) => find_loss(&read.record, read.at.now, (lease, token), true).ok_or_else(stale_error)?,
                None => LossCause::Removed,
            };
            return Ok((put, PutEnd::Lost { cause, is_overwritten }));
        }
    });
    let (put, end) = sent.await?;
    last_write.store(put.write, Ordering::Relaxed);
    Ok(end)
}

/// The error of a write under a lease that shares its key.
pub(crate) fn shared_error(key: &Key) -> Error {
    Error::invalid(format!(
        "the lease shares {key:?}, and only a lease that excludes others writes the value: acquire the key without `shared`, or `upgrade` the lease"
    ))
}

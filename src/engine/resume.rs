//! Takes a lease up again by its key, lease id and token.
//!
//! Purpose: a process that knows a lease of an earlier process goes on with it, and never acquires its key anew.
//!
//! Mechanism: a linearizable read finds the holder with this lease id and token. A refresh, which never creates a lease,
//! confirms that it still holds the key, and makes this handle the one that is notified of a revocation. If that refresh
//! of an earlier resume arrives late, this handle learns of a revocation with its next refresh. Then the keeper
//! gets the lease. Until then all runs in the caller's future: if the caller drops it, there is no lease that its drop would
//! release.
//!
//! Invariant: nothing but refreshes is sent until the lease is confirmed, and they keep what its acquire has set.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::{
        confirm::find_loss,
        context::Context,
        handle_inner::HandleInner,
        held_lease::Lease,
        keeper,
        lease_inner::LeaseInner,
        lease_state::LeaseState,
        observer::HandleEvent,
        refresh::{self, Confirmed, Refreshing},
        retry::{self, Limit},
    },
    record::{Holder, LeaseSpec, Record},
    spans,
    store::{answers::Snapshot, runtime},
    types::{
        acquire_id::AcquireId,
        deadline::Deadline,
        duration::format_duration,
        error::{Error, LossCause, Result},
        instant::Instant,
        key::Key,
        lease_id::LeaseId,
        token::{FencingToken, HybridTime},
        ttl::Ttl,
    },
};

/// A lease to take up, and what changes by that.
#[derive(Debug)]
pub(crate) struct ResumeSpec {
    pub(crate) key: Key,
    pub(crate) id: LeaseId,
    pub(crate) token: FencingToken,
    /// The new ttl. `None`: the ttl of the record.
    pub(crate) ttl: Option<Duration>,
    pub(crate) refreshing: Refreshing,
}

/// What the record tells of a lease that is held.
struct Found {
    terms: LeaseSpec,
    ttl: Ttl,
    refreshing: Refreshing,
    /// The lease lasts until this time, if it is not refreshed.
    until: Instant,
    /// The end of the maximum hold.
    last_deadline: Option<Instant>,
    hlc: HybridTime,
}

/// Takes a lease up, and gives it to the keeper.
pub(crate) async fn resume(handle: &Arc<HandleInner>, spec: ResumeSpec) -> Result<Lease> {
    let context = &handle.context;
    context.ensure_open()?;
    spec.id.ensure_some()?;
    let give_up = context.operation_deadline();
    // The caller may just have orphaned the lease: its end must be over.
    let registry = &handle.siblings().registry;
    give_up.wait_for(registry.wait_for_ends(&spec.key)).await;
    registry.ensure_unheld(spec.id)?;
    let found = find(context, &spec, give_up).await?;
    let (ttl, refreshing) = (found.ttl, found.refreshing);
    let limit = Limit::growing(context.settings.attempt);
    let acquire_id = handle.siblings().next_acquire_id();
    let confirmed =
        retry::until_definite(give_up, limit, |answer_by| confirm(handle, &spec, &found, acquire_id, answer_by));
    let lease = confirmed.await?;
    // If the handle was shut down meanwhile, the lease stays as it is.
    context.ensure_open()?;
    registry.add_resumed(&lease)?;
    let (key, token) = (&lease.key, lease.token);
    lease.observe(&context.settings.observers, false, HandleEvent::Resumed { key, token });
    let held = keeper::keep(handle, &lease, (ttl, refreshing));
    // If the runtime of the handle has ended, nothing keeps the lease.
    if held.lease_inner().recorded_state() == LeaseState::SHUT_DOWN {
        return Err(runtime::ended("the lease has no keeper"));
    }
    Ok(held)
}

/// Reads the lease, and refuses one that is lost.
async fn find(context: &Context, spec: &ResumeSpec, give_up: Deadline) -> Result<Found> {
    let lost = |cause| Error::Lost { key: spec.key.clone(), token: spec.token, cause };
    // The store reads its clock later.
    let sent = context.clock().now();
    let Some(Snapshot { mut record, at }) = context.read_record(&spec.key, give_up).await? else {
        return Err(lost(LossCause::Removed));
    };
    if let Some(cause) = find_loss(&record, at.now, (spec.id, spec.token), is_taken_by_newer(&record, spec)) {
        return Err(lost(cause));
    }
    record.holders.retain(|holder| holder.terms.lease == spec.id);
    let Some(holder) = record.holders.pop() else { return Err(lost(LossCause::Expired)) };
    let settings = &context.settings;
    let free_in = holder.free_in(at.now);
    let ttl = new_ttl(context, spec, &holder, free_in != Duration::MAX)?;
    let refreshing = spec.refreshing.checked(ttl, settings.ttl)?;
    let left = free_in.saturating_sub(Duration::from_millis(holder.terms.grace));
    let valid = Ttl::try_from(left).map(|left| settings.validity(left)).unwrap_or_default();
    let grace = Duration::from_millis(holder.terms.grace);
    let hold = holder.not_after.map(|end| settings.less_drift(end.since(at.now).saturating_sub(grace)));
    let last_deadline = hold.map(|hold| sent.after(hold));
    Ok(Found { terms: holder.terms, ttl, refreshing, until: sent.after(valid), last_deadline, hlc: at.hlc })
}

/// Whether another lease was granted the key instead of this one. A larger version alone does not tell: another sharer
/// may have been granted the key, or an operator may have raised it.
fn is_taken_by_newer(record: &Record, spec: &ResumeSpec) -> bool {
    let mut newer = record.holders.iter().filter(|holder| holder.version > spec.token);
    newer.any(|holder| holder.terms.sharing.is_exclusive() || holder.terms.lease == spec.id)
}

/// The ttl from now on.
fn new_ttl(context: &Context, spec: &ResumeSpec, holder: &Holder, has_expiry: bool) -> Result<Ttl> {
    match (has_expiry, spec.ttl) {
        (true, Some(ttl)) => context.settings.check_ttl(ttl, Duration::from_millis(holder.terms.grace)),
        (true, None) => Ttl::try_from(Duration::from_millis(holder.terms.ttl)),
        (false, None) => Ok(Ttl::FOREVER),
        (false, Some(ttl)) => Err(Error::invalid(format!(
            "this lease has no expiry, and cannot get a ttl of {}: leave the ttl out, or release the lease",
            format_duration(ttl)
        ))),
    }
}

/// Sends one refresh, by which this handle is notified of a revocation. Returns the lease if the store confirms it.
async fn confirm(
    handle: &HandleInner,
    spec: &ResumeSpec,
    found: &Found,
    acquire_id: AcquireId,
    answer_by: Deadline,
) -> Result<Arc<LeaseInner>> {
    let context = &handle.context;
    let validity = context.settings.validity(found.ttl);
    let until = context.clock().now().after(validity).max(found.until);
    let granted = (spec.token, found.hlc);
    let (key, clock) = (spec.key.clone(), context.clock());
    let terms = LeaseSpec { acquire_id, ..found.terms.clone() };
    let deadlines = (until, found.last_deadline);
    let lease = Arc::new(LeaseInner::new(key, &terms, granted, clock, deadlines, None, &handle.mailbox));
    let span = spans::refresh(Some((&lease.key, lease.token)), 1);
    match refresh::attempt(span, context, &lease, found.ttl, None, Some(acquire_id), answer_by).await? {
        Some(Confirmed { sent, .. }) if lease.extend_deadline(sent.after(validity)) => Ok(lease),
        // The store keeps the key for the grace after that.
        Some(_) if lease.remaining_hold().is_zero() => Err(lease.lost_error(LossCause::HeldTooLong)),
        Some(_) => Err(Error::unavailable(format!(
            "the store refreshed the lease, but answered after the ttl of {} was over: retry, and choose a longer ttl if that happens again",
            format_duration(found.ttl.duration())
        ))),
        None => Err(lease.end_error()),
    }
}

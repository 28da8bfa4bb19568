//! The task of an acquire.
//!
//! Purpose: an acquire ends in a lease or leaves nothing held, even if its caller drops it or the store does not
//! answer.
//!
//! Mechanism: the task sends the request, waits in the key's queue or retries, and gives the lease to the keeper and to the
//! caller. If an acquire fails and a request is in doubt, the task takes it back.
//!
//! Invariants:
//! - A request that was sent ends before it is taken back.
//! - The task reports the end of the acquire to the observers once. If the task is dropped before, as with its runtime, it reports
//!   that the acquire was abandoned.

use std::{
    error::Error as StdError,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{Instrument, Span, debug, field};

use crate::{
    engine::{
        call_limit::CallLimit,
        confirm::{Proof, stale_error},
        context::{Context, shut_down_error},
        handle_inner::HandleInner,
        keeper,
        lease_inner::LeaseInner,
        notifier::WaiterGuard,
        observer::{AcquireMode, AcquireOutcome, HandleEvent, Observers},
        refresh::{self, Refreshing},
        retry::{self, Backoff},
        retry_policy::{Attempts, OnHeld},
        ungiven::Ungiven,
    },
    record::{self, Holder, LeaseSpec, Outcome, Request, StoreTime, WaitSpec},
    spans,
    store::answers::{Applied, Notification, Snapshot},
    types::{
        deadline::Deadline,
        duration::format_duration,
        error::{Error, Result},
        instant::Instant,
        key::Key,
        token::{FencingToken, HybridTime},
        ttl::Ttl,
    },
};

/// A checked acquire.
pub(crate) struct AcquireTask {
    pub(crate) handle: Arc<HandleInner>,
    pub(crate) key: Key,
    pub(crate) ttl: Ttl,
    /// How long, after the last request, the waiter keeps its place in the queue or the key that it was handed.
    pub(crate) wait_ttl: Ttl,
    pub(crate) terms: LeaseSpec,
    /// How long the holder may report no progress.
    pub(crate) stalled_after: Option<Duration>,
    pub(crate) refreshing: Refreshing,
    pub(crate) on_held: OnHeld,
    /// The end of the call, also if all requests are slow.
    pub(crate) limit: CallLimit,
    /// Whether a request was sent whose outcome is unknown.
    pub(crate) is_in_doubt: AtomicBool,
    /// Whether the waiter may be in the queue.
    pub(crate) is_queued: AtomicBool,
    /// Those of the handle, and of this acquire.
    pub(crate) observers: Observers,
    /// Whether it is a campaign for a leadership.
    pub(crate) is_campaign: bool,
    /// When the call began.
    pub(crate) began: Instant,
    /// Its first place in the queue.
    pub(crate) position: OnceLock<usize>,
    /// Whether its end was reported.
    pub(crate) is_reported: AtomicBool,
}

/// The answer to a request that was not refused.
enum AcquireReply {
    Granted(Arc<LeaseInner>),
    Queued(QueuePlace),
}

/// A place in the queue, from the store's last answer.
struct QueuePlace {
    /// When the request was sent and when its answer arrived.
    sent: Instant,
    answered: Instant,
    /// The store's hybrid time at the answer.
    hlc: HybridTime,
    /// The store's time at the answer.
    now: StoreTime,
    /// The key's highest token at the answer.
    version: FencingToken,
    /// How many waiters are ahead.
    position: usize,
    /// How long after the answer the key may become available without a notification.
    free: Duration,
}

/// The delay between an expiry and the request that looks for it, so that the request is not early.
const EXPIRY_MARGIN: Duration = Duration::from_millis(5);

impl AcquireTask {
    /// Acquires the key in this span, and replies.
    pub(crate) async fn run(self, mut reply: oneshot::Sender<Result<Ungiven>>, span: Span) {
        match self.obtain(&mut reply).instrument(span.clone()).await {
            Ok(lease) => {
                self.report_grant(span, &lease);
                // Before a shutdown can end it.
                lease.is_ungiven.store(true, Ordering::Release);
                let held = keeper::keep(&self.handle, &lease, (self.ttl, self.refreshing));
                // If the caller is gone, this takes the lease back.
                drop(reply.send(Ok(Ungiven(held))));
            }
            Err(error) => {
                self.report_failure(span, &error, reply.is_closed());
                self.fail(error, reply).await;
            }
        }
    }

    /// Acquires the key by the caller's policy, with the ttl of the caller: one attempt, a wait or retries.
    async fn obtain(&self, reply: &mut oneshot::Sender<Result<Ungiven>>) -> Result<Arc<LeaseInner>> {
        let (context, clock) = (&self.handle.context, self.handle.context.clock());
        tokio::select! {
            biased;
            stop = self.stopped(reply) => return Err(stop),
            // A release of the key that has not ended would refuse this acquire.
            () = context.siblings.registry.wait_for_ends(&self.key) => {}
            () = self.limit.next(context).passed() => {
                return Err(Error::unavailable(format!(
                    "an earlier release of the key {:?} by this handle or a sibling has not ended within the operation timeout: check that the store can be reached, and retry",
                    self.key
                )));
            }
        }
        let (until, mut attempts) = match &self.on_held {
            OnHeld::Once => (None, None),
            OnHeld::Wait(wait) => (Some(self.began.after(*wait)), None),
            OnHeld::Retry(policy) => (None, Some(Attempts::of(policy, self.began))),
        };
        let lease = loop {
            let error = match self.acquire_queued(reply, until).await {
                Ok(lease) => break lease,
                Err(error) => error,
            };
            let Some(attempts) = &mut attempts else { return Err(error) };
            let delay = attempts.next(error, clock.now())?;
            self.limit.note_wait();
            tokio::select! {
                biased;
                () = reply.closed() => return Err(abandoned_error()),
                waited = context.wait_to_retry(delay) => waited?,
            }
        };
        // Without a caller, the lease is taken back, and ends by its ttl if that fails.
        if self.ttl > Ttl::MAX && !reply.is_closed() {
            let applied = refresh::apply_ttl(context, &lease, self.ttl, self.limit.next(context)).await;
            self.is_in_doubt.fetch_or(applied.is_err(), Ordering::Relaxed);
            applied?;
        }
        Ok(lease)
    }

    /// Sends until the key is granted or refused, or until `until`. `None` does not wait. If no request is
    /// answered before the operation timeout, the acquire ends. Once the waiter was queued, an outage costs at most its place: it
    /// sends until its wait ends.
    async fn acquire_queued(
        &self,
        reply: &mut oneshot::Sender<Result<Ungiven>>,
        until: Option<Instant>,
    ) -> Result<Arc<LeaseInner>> {
        let (context, clock) = (&self.handle.context, self.handle.context.clock());
        let (mut backoff, mut position) = (Backoff::new(), None);
        // Before the first request, so that no grant is missed.
        let mut waiter = until.map(|_| WaiterGuard::new(context, self.terms.acquire_id.number));
        // An acquire that does not wait has no end of its own.
        let end = until.unwrap_or(Instant::MAX);
        loop {
            // The last attempt does not wait: it is granted the key or leaves the queue.
            let is_waiter = until.is_some_and(|until| clock.now() < until);
            let answer = retry::until_definite(self.limit.next(context), context.settings.attempt, |deadline| {
                // Checked between attempts only: a request that was sent must end before it can be taken back.
                // Not by `stopped`, which may miss a stop if the task has used up its turn.
                let stop = if context.closing.is_cancelled() {
                    Some(shut_down_error())
                } else {
                    reply.is_closed().then(abandoned_error)
                };
                async move {
                    match stop {
                        Some(stop) => Err(stop),
                        None => self.attempt(context, is_waiter, deadline).await,
                    }
                }
            });
            let place = match answer.await {
                Ok(AcquireReply::Granted(lease)) => return Ok(lease),
                Ok(AcquireReply::Queued(place)) => place,
                Err(error @ Error::Unavailable { .. }) if is_waiter && self.is_queued.load(Ordering::Relaxed) => {
                    debug!(error = error.as_std(), "the store is unavailable: still waiting");
                    continue;
                }
                Err(error) => return Err(error),
            };
            // An acquire that does not wait is not queued.
            let Some(waiter) = &mut waiter else { return Err(abandoned_error()) };
            // A queue that moves goes on moving.
            if position.replace(place.position) != Some(place.position) {
                backoff = Backoff::of_place(place.position);
            }
            let wake = loop {
                let is_notified = waiter.listen_since(place.hlc);
                let poll_at = self.next_poll(&place, is_notified, &mut backoff).min(end);
                let wake = tokio::select! {
                    biased;
                    stop = self.stopped(reply) => return Err(stop),
                    wake = waiter.wakes.recv() => wake,
                    () = clock.sleep_until(poll_at) => None,
                };
                // If the listener now covers the time since the waiter was queued, no poll is needed.
                if !matches!(wake, Some(Notification::Started { .. })) || !waiter.listen_since(place.hlc) {
                    break wake;
                }
            };
            // A token that is not larger was granted before the answer, and expired before it.
            if let Some(Notification::Granted { token, at, .. }) = wake
                && token > place.version
            {
                // The key was granted after the answer, so also after `place.sent`.
                let settings = &context.settings;
                let deadline = place.sent.after(settings.validity(self.wait_ttl));
                if clock.now() < deadline {
                    let last = self.terms.hold.max.map(|max| settings.less_drift(Duration::from_millis(max)));
                    let last_deadline = last.map(|last| place.sent.after(last));
                    let lease = self.new_lease((token, place.hlc), (deadline, last_deadline));
                    lease.record_round_trip(place.answered.since(place.sent));
                    self.report_hand_over(token, at, &place);
                    return Ok(lease);
                }
            }
        }
    }

    /// Waits until the acquire must end without a lease.
    async fn stopped(&self, reply: &mut oneshot::Sender<Result<Ungiven>>) -> Error {
        tokio::select! {
            biased;
            () = reply.closed() => abandoned_error(),
            () = self.handle.context.closing.cancelled() => shut_down_error(),
        }
    }

    /// When to poll next. With a listener: when the place in the queue must be renewed, and for the first in line also
    /// when the holder expires. Without a listener: at growing intervals.
    fn next_poll(&self, place: &QueuePlace, is_notified: bool, backoff: &mut Backoff) -> Instant {
        let free = place.answered.after(place.free).after(EXPIRY_MARGIN);
        let keep = self.renewal_time(place.sent);
        match (is_notified, place.position) {
            (false, _) => place.answered.after(backoff.next()).min(free),
            (true, 0) => keep.min(free),
            (true, _) => keep,
        }
    }

    /// When to renew the place in the queue: a third of the ttl after `sent`, or up to an eighth of that third sooner.
    /// The handle's waiters for one key and ttl then renew at the same time and can share a request. The hash spreads
    /// other keys, and the time at which a handle was made spreads handles.
    fn renewal_time(&self, sent: Instant) -> Instant {
        let third = self.wait_ttl.third();
        let keep = sent.after(third);
        let apart = third.checked_div(8).unwrap_or_default().as_nanos();
        let of_key = u128::from(BuildHasherDefault::<DefaultHasher>::default().hash_one(&self.key));
        let since = keep.since(self.handle.context.since).as_nanos().saturating_add(of_key);
        let beyond = since.checked_rem(apart).unwrap_or_default();
        keep.before(Duration::from_nanos(u64::try_from(beyond).unwrap_or_default()))
    }

    fn new_lease(&self, granted: (FencingToken, HybridTime), deadlines: (Instant, Option<Instant>)) -> Arc<LeaseInner> {
        let (key, clock, keeper) = (self.key.clone(), self.handle.context.clock(), &self.handle.mailbox);
        Arc::new(LeaseInner::new(key, &self.terms, granted, clock, deadlines, self.stalled_after, keeper))
    }

    /// Sends the request once.
    async fn attempt(&self, context: &Context, is_waiter: bool, answer_by: Deadline) -> Result<AcquireReply> {
        let clock = context.clock();
        context.prepare(answer_by).await?;
        let wait_ttl =
            is_waiter.then_some(WaitSpec { ttl: self.wait_ttl.millis(), queue_limit: context.settings.queue_limit });
        let request = Request::Acquire(record::Acquire { terms: self.terms.clone(), wait: wait_ttl });
        // The store counts the ttl from a later time.
        let sent = clock.now();
        let answer = context.store.apply(&self.key, request, answer_by).await;
        // A record that cannot be read may have been written.
        if matches!(answer, Err(Error::Unavailable { .. } | Error::Corrupt { .. })) {
            self.is_in_doubt.store(true, Ordering::Relaxed);
        }
        let Applied { outcome, at, changed, sent: left_at } = answer?.answer("an acquire")?;
        let sent = left_at.map_or(sent, |left_at| left_at.max(sent));
        // Only a refusal that changed the record is definite: one that wrote nothing may come from a deposed primary.
        match outcome {
            Outcome::Queued { .. } => {
                self.is_queued.store(true, Ordering::Relaxed);
                self.limit.note_wait();
            }
            Outcome::Refused { .. } if changed => self.is_queued.store(false, Ordering::Relaxed),
            _ => {}
        }
        let hlc = at.map_or(HybridTime { seconds: 0, ordinal: 0 }, |at| at.hlc);
        let left = |holder: &Holder| at.map(|at| holder.free_in(at.now)).unwrap_or_default();
        // If the holder has been released by then, the key becomes available when its minimum hold ends.
        let free = |holder: &Holder| {
            let hold = holder.held_until().zip(at).map(|(end, at)| end.since(at.now)).filter(|hold| !hold.is_zero());
            hold.into_iter().fold(left(holder), Duration::min)
        };
        match outcome {
            Outcome::Granted { token, not_after, value } => {
                let deadline = sent.after(context.settings.validity(self.wait_ttl));
                // An earlier request may have been granted the lease, so the answer counts.
                let grace = Duration::from_millis(self.terms.grace);
                let last = not_after.zip(at).map(|(end, at)| end.since(at.now).saturating_sub(grace));
                let last_deadline = last.map(|last| sent.after(context.settings.less_drift(last)));
                let deadline = last_deadline.map_or(deadline, |last| deadline.min(last));
                if clock.now() >= deadline {
                    self.is_in_doubt.store(true, Ordering::Relaxed);
                    return Err(Error::unavailable(format!(
                        "the store granted the key, but answered after the ttl of {} was over: retry, and choose a longer ttl if that happens again",
                        format_duration(self.wait_ttl.duration())
                    )));
                }
                let lease = self.new_lease((token, hlc), (deadline, last_deadline));
                lease.record_round_trip(clock.now().since(sent));
                lease.record_granted_value(value);
                Ok(AcquireReply::Granted(lease))
            }
            Outcome::Queued { position, version, holder } if is_waiter => {
                debug!(position, holder = ?holder.terms.owner, token = %holder.version, "waiting");
                self.report_queued(position);
                let free = free(&holder);
                let (answered, now) = (clock.now(), at.map(|at| at.now).unwrap_or_default());
                Ok(AcquireReply::Queued(QueuePlace { sent, answered, hlc, now, version, position, free }))
            }
            // This never clears `is_in_doubt`: a request without an answer may be executed later.
            Outcome::Refused { holder } => Err(holder.held_error(&self.key, at)),
            Outcome::Full { length } => Err(Error::QueueFull { key: self.key.clone(), length }),
            outcome => Err(outcome.unexpected("an acquire")),
        }
    }

    /// Replies with the error. If a request is in doubt, takes it back, so that it leaves nothing held. If the store cannot be
    /// reached, the ttl does so later.
    async fn fail(self, error: Error, reply: oneshot::Sender<Result<Ungiven>>) {
        let is_unfinished = self.is_in_doubt.load(Ordering::Relaxed) || self.is_queued.load(Ordering::Relaxed);
        drop(reply.send(Err(error)));
        if !is_unfinished {
            return;
        }
        let (context, key) = (&self.handle.context, &self.key);
        let leave = record::Leave { lease: self.terms.lease, acquire_id: self.terms.acquire_id };
        let left =
            retry::until_definite(context.operation_deadline(), context.settings.attempt, |deadline| async move {
                match context.store.apply(key, Request::Leave(leave), deadline).await? {
                    Proof::Record(Some(Snapshot { record, at }))
                        if record.has_acquire(leave.lease, leave.acquire_id, at.now) =>
                    {
                        Err(stale_error())
                    }
                    _ => Ok(()),
                }
            });
        match left.await {
            Ok(()) => debug!(%key, "took back a request in doubt"),
            Err(error) => {
                debug!(%key, error = error.as_std(), "could not take back a request in doubt: its ttl ends it");
            }
        }
    }

    /// How long the acquire has taken.
    fn waited(&self) -> Duration {
        self.handle.context.clock().now().since(self.began)
    }

    /// Reports the first place in the queue.
    fn report_queued(&self, position: usize) {
        if self.position.set(position).is_ok() {
            Span::current().record("position", position);
            let (key, is_campaign) = (&self.key, self.is_campaign);
            self.observers.emit(|| HandleEvent::Queued { key, position, is_campaign });
        }
    }

    /// Reports a hand-over that the waiter was notified of. `at`: when the store granted the key.
    fn report_hand_over(&self, token: FencingToken, at: Option<StoreTime>, place: &QueuePlace) {
        self.observers.emit(|| {
            // The store read its clock for the last answer after `sent`.
            let granted = at.map(|at| place.sent.after(at.since(place.now)));
            let took = granted.map(|granted| self.handle.context.clock().now().since(granted));
            HandleEvent::HandedOver { key: &self.key, token, took }
        });
    }

    /// Reports the grant, and ends the span.
    fn report_grant(&self, span: Span, lease: &LeaseInner) {
        let finished = self.finish(AcquireOutcome::Granted(lease.token), Some(span));
        lease.observe(&self.observers, self.is_campaign, finished);
    }

    /// Reports the failure, and ends the span.
    fn report_failure(&self, span: Span, error: &Error, is_abandoned: bool) {
        let outcome = if is_abandoned { AcquireOutcome::Abandoned } else { AcquireOutcome::Failed(error) };
        let finished = self.finish(outcome, Some(span));
        self.observers.emit(|| finished);
    }

    /// Ends the span, and returns the event of the end, which is not reported again.
    fn finish<'a>(&'a self, outcome: AcquireOutcome<'a>, span: Option<Span>) -> HandleEvent<'a> {
        self.is_reported.store(true, Ordering::Relaxed);
        let waited = self.waited();
        if let Some(span) = span {
            end_span(span, outcome, waited);
        }
        HandleEvent::AcquireFinished {
            key: &self.key,
            mode: AcquireMode::of(&self.on_held),
            outcome,
            waited,
            position: self.position.get().copied(),
            is_campaign: self.is_campaign,
        }
    }
}

impl Drop for AcquireTask {
    fn drop(&mut self) {
        if !*self.is_reported.get_mut() {
            self.observers.emit(|| self.finish(AcquireOutcome::Abandoned, None));
        }
    }
}

/// The error of an acquire whose caller is gone. No caller receives it.
fn abandoned_error() -> Error {
    Error::invalid("the caller no longer waits")
}

/// Ends the span of an acquire before its caller has the answer, so that the span ends before that of the caller.
fn end_span(span: Span, outcome: AcquireOutcome<'_>, waited: Duration) {
    span.record("waited", field::debug(waited));
    let ended: Result<_, &(dyn StdError + 'static)> = match outcome {
        AcquireOutcome::Granted(token) => {
            span.record("token", token.get());
            span.in_scope(|| debug!("granted"));
            Ok("granted")
        }
        AcquireOutcome::Abandoned => Ok("abandoned"),
        AcquireOutcome::Failed(error) => Err(error),
    };
    spans::end(&span, ended, "not granted");
    drop(span);
}

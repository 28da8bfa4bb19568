//! The request behind an acquire: asked, waited for, and taken back.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{Span, debug, field};

use crate::{
    Clock, Deadline, Error, FencingToken, HybridTime, Key, Result, Ttl,
    engine::{
        context::{Context, shut_down},
        held_lease::HeldLease,
        lease_ids::InUse,
        lease_shared::LeaseShared,
        lease_task::LeaseTask,
        notifier::{HolderGuard, WaiterGuard, Wake},
        refresh::{self, Refreshing},
        retry::{self, Backoff},
        retry_policy::{Attempts, OnHeld},
        shared::Shared,
    },
    record::{self, Holder, LeaseSpec, Outcome, Request, WaitSpec},
    store::Applied,
};

/// A checked request for a key, which becomes the task of the lease it is granted.
pub(crate) struct AcquireTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) in_use: InUse,
    pub(crate) key: Key,
    pub(crate) ttl: Ttl,
    /// How long it stays queued, or keeps a key it was handed, without being heard of.
    pub(crate) wait_ttl: Ttl,
    pub(crate) terms: LeaseSpec,
    pub(crate) refreshing: Refreshing,
    pub(crate) on_held: OnHeld,
    /// Whether the caller chose the lease id.
    pub(crate) chosen: bool,
    /// Whether a request was sent whose end is not known.
    pub(crate) in_doubt: AtomicBool,
    /// Whether it may be in the queue.
    pub(crate) queued: AtomicBool,
}

/// What a request that was not refused came to.
enum Answer {
    Granted(Arc<LeaseShared>),
    Queued(Place),
}

/// A place in the queue, as the store last told it.
struct Place {
    /// When, on the clock, the request was sent that was so answered, and when the answer came.
    sent: Duration,
    answered: Duration,
    /// The store's tick then.
    tick: HybridTime,
    /// The key's highest token then.
    version: FencingToken,
    /// How many wait before.
    position: usize,
    /// How long the holder lasted from then on.
    remaining: Duration,
}

/// How far past its end an expiry is looked for, so that it is not looked for too early.
const SLACK: Duration = Duration::from_millis(5);

impl AcquireTask {
    /// Asks, answers, and keeps the lease until it ends.
    pub(crate) fn task(self, reply: oneshot::Sender<Result<HeldLease>>) -> impl Future<Output = ()> + Send {
        // In a box, because it is much larger than what keeps the lease from then on.
        let granted = Box::pin(self.run(reply));
        async move {
            let Some(mut keeper) = granted.await else { return };
            keeper.keep().await;
            Box::pin(keeper.end()).await;
        }
    }

    /// Asks and answers; gives what keeps the lease.
    async fn run(self, mut reply: oneshot::Sender<Result<HeldLease>>) -> Option<Box<LeaseTask>> {
        let shared = Arc::clone(&self.shared);
        let clock = shared.context.clock();
        let began = clock.now();
        let granted = match self.obtain(&shared, &mut reply).await {
            Ok(hold) if self.ttl > Ttl::MAX => {
                let settled = refresh::settle(&shared.context, &hold, self.ttl).await;
                self.in_doubt.fetch_or(settled.is_err(), Ordering::Relaxed);
                settled.map(|()| hold)
            }
            granted => granted,
        };
        let waited = clock.now().saturating_sub(began);
        Span::current().record("waited", field::debug(waited));
        match granted {
            Ok(hold) => {
                Span::current().record("token", hold.token.get());
                debug!("granted");
                let watched = (self.terms.caller.number, &hold);
                let watch = HolderGuard::new(&shared.context, &shared.siblings().notifier, &shared.releases, watched);
                let (lease, keeper) = LeaseTask::start(shared, hold, (self.ttl, self.refreshing), self.in_use, watch);
                // Whoever is gone drops the lease here, which releases it.
                drop(reply.send(Ok(lease)));
                Some(keeper)
            }
            Err(error) => {
                debug!(%error, "not granted");
                let unfinished = self.in_doubt.load(Ordering::Relaxed) || self.queued.load(Ordering::Relaxed);
                let asks_again = self.chosen && !reply.is_closed() && matches!(error, Error::Unavailable { .. });
                if unfinished && !asks_again {
                    let _taken_back = self.in_use.into_taken_back();
                    drop(reply.send(Err(error)));
                    let leave = record::Leave { lease: self.terms.lease, caller: self.terms.caller };
                    take_back(&shared.context, &self.key, leave).await;
                } else {
                    // The caller may use the id again at once.
                    drop(self.in_use);
                    drop(reply.send(Err(error)));
                }
                None
            }
        }
    }

    /// Asks as often, and waits as long, as the caller wants.
    async fn obtain(
        &self,
        shared: &Arc<Shared>,
        reply: &mut oneshot::Sender<Result<HeldLease>>,
    ) -> Result<Arc<LeaseShared>> {
        let clock = shared.context.clock();
        let (began, mut give_up) = (clock.now(), shared.context.operation_deadline());
        tokio::select! {
            biased;
            () = reply.closed() => return Err(nobody()),
            () = shared.context.closing.cancelled() => return Err(shut_down()),
            () = self.earlier_is_over(shared) => {}
            () = give_up.passed() => {
                return Err(Error::unavailable(format!(
                    "this handle's release of the key {:?}, or the take-back of an earlier acquire, has not ended within the operation timeout: check that the store can be reached and that the runtime of the earlier lease runs, and retry",
                    self.key
                )));
            }
        }
        let policy = match &self.on_held {
            OnHeld::Once => return self.acquire_queued(shared, reply, None, give_up).await,
            OnHeld::Wait(wait) => {
                return self.acquire_queued(shared, reply, Some(began.saturating_add(*wait)), give_up).await;
            }
            OnHeld::Retry(policy) => policy,
        };
        let mut attempts = Attempts::of(policy);
        loop {
            let error = match self.acquire_queued(shared, reply, None, give_up).await {
                Err(error) => error,
                granted => return granted,
            };
            let delay = attempts.next(error, clock.now().saturating_sub(began))?;
            debug!(?delay, "held: asks again");
            tokio::select! {
                biased;
                () = reply.closed() => return Err(nobody()),
                () = shared.context.closing.cancelled() => return Err(shut_down()),
                () = clock.sleep_until(clock.now().saturating_add(delay)) => {}
            }
            give_up = shared.context.operation_deadline();
        }
    }

    /// Waits for the end of what the handle has asked earlier and gives back now: the releases of the key, so that none of
    /// these leases refuses this acquire, and the take-back of an acquire with the same lease id.
    async fn earlier_is_over(&self, shared: &Shared) {
        self.in_use.earlier_is_over().await;
        shared.releases.all_over(&self.key).await;
    }

    /// Asks until the key is granted or refused, or, on the clock, it is `until`. `None` does not wait. If no request is
    /// answered before `give_up`, the acquire ends. Once it was queued, an outage costs at most its place: it asks until
    /// its wait ends.
    async fn acquire_queued(
        &self,
        shared: &Arc<Shared>,
        reply: &mut oneshot::Sender<Result<HeldLease>>,
        until: Option<Duration>,
        give_up: Deadline,
    ) -> Result<Arc<LeaseShared>> {
        let clock = shared.context.clock();
        let mut first = Some(give_up);
        let mut backoff = Backoff::new();
        // Before anything is sent, so that nothing is handed over unheard.
        let mut turn =
            until.map(|_| WaiterGuard::new(&shared.context, &shared.siblings().notifier, self.terms.caller.number));
        // One that does not wait has no end of its own.
        let end = until.unwrap_or(Duration::MAX);
        loop {
            // The last attempt does not wait: it is granted the key or leaves the queue.
            let waits = until.is_some_and(|until| clock.now() < until);
            let give_up = first.take().unwrap_or_else(|| shared.context.operation_deadline());
            let give_up = give_up.or_at(end.saturating_add(shared.context.settings.operation_timeout));
            let answer = retry::until_definite(give_up, shared.context.settings.attempt, |deadline| {
                // Looked at between attempts and never within one: what was sent must have come to
                // its end before it can be taken back.
                let stop = if shared.context.closing.is_cancelled() {
                    Some(shut_down())
                } else {
                    reply.is_closed().then(nobody)
                };
                async move {
                    match stop {
                        Some(error) => Err(error),
                        None => self.attempt(&shared.context, waits, deadline).await,
                    }
                }
            });
            let place = match answer.await {
                Ok(Answer::Granted(hold)) => return Ok(hold),
                Ok(Answer::Queued(place)) => place,
                Err(error @ Error::Unavailable { .. }) if waits && self.queued.load(Ordering::Relaxed) => {
                    debug!(%error, "the store is away: keeps waiting");
                    continue;
                }
                Err(error) => return Err(error),
            };
            // One that does not wait is not queued.
            let Some(turn) = &mut turn else { return Err(nobody()) };
            let wake = loop {
                let heard = turn.is_heard(place.tick);
                let look = self.next_look(&place, heard, &mut backoff).min(end);
                let wake = tokio::select! {
                    biased;
                    () = reply.closed() => return Err(nobody()),
                    () = shared.context.closing.cancelled() => return Err(shut_down()),
                    wake = turn.woken() => wake,
                    () = clock.sleep_until(look) => Wake::Ask,
                };
                // Whoever is heard from where it was queued need not ask again for that.
                if !matches!(wake, Wake::Listening) || !turn.is_heard(place.tick) {
                    break wake;
                }
            };
            // A token that is not larger was handed over before the answer, and lapsed before it.
            if let Wake::Handed(token) = wake
                && token > place.version
            {
                // The key was granted after the answer, so after this was sent.
                let deadline = place.sent.saturating_add(shared.context.settings.validity(self.wait_ttl));
                if clock.now() < deadline {
                    let hold = self.hold((token, place.tick), clock, deadline);
                    hold.note_round_trip(place.answered.saturating_sub(place.sent));
                    return Ok(hold);
                }
            }
        }
    }

    /// When to ask again. Where somebody listens, that is to keep the place in the queue, and for the
    /// first in line when the holder's time is over; else ever less often.
    fn next_look(&self, place: &Place, heard: bool, backoff: &mut Backoff) -> Duration {
        let free = place.answered.saturating_add(place.remaining).saturating_add(SLACK);
        let keep = self.keeps_at(place.sent);
        match (heard, place.position) {
            (false, _) => place.answered.saturating_add(backoff.next()).min(free),
            (true, 0) => keep.min(free),
            (true, _) => keep,
        }
    }

    /// When to keep the place in the queue: a third of the `wait_ttl` after this was sent, or up to an eighth of that
    /// sooner, when the others of the handle do who wait for the key with the same `wait_ttl`; so they travel together.
    /// At other times for other keys and handles, which do not.
    fn keeps_at(&self, sent: Duration) -> Duration {
        let third = self.wait_ttl.third();
        let keep = sent.saturating_add(third);
        let apart = third.checked_div(8).unwrap_or_default().as_nanos();
        let of_key = u128::from(BuildHasherDefault::<DefaultHasher>::default().hash_one(&self.key));
        let since = keep.saturating_sub(self.shared.context.since).as_nanos().saturating_add(of_key);
        let beyond = since.checked_rem(apart).unwrap_or_default();
        keep.saturating_sub(Duration::from_nanos(u64::try_from(beyond).unwrap_or_default()))
    }

    fn hold(&self, granted: (FencingToken, HybridTime), clock: Clock, deadline: Duration) -> Arc<LeaseShared> {
        Arc::new(LeaseShared::new(self.key.clone(), &self.terms, granted, clock, deadline))
    }

    /// Sends the request once.
    async fn attempt(&self, context: &Context, waits: bool, answer_by: Deadline) -> Result<Answer> {
        let clock = context.clock();
        context.prepare(answer_by).await?;
        let wait_ttl =
            waits.then_some(WaitSpec { ttl: self.wait_ttl.millis(), queue_limit: context.settings.queue_limit });
        let request = Request::Acquire(record::Acquire { terms: self.terms.clone(), wait: wait_ttl });
        // The store counts the ttl from some time after this one.
        let sent = clock.now();
        let answer = context.store.apply(&self.key, request, answer_by).await;
        // A record that cannot be read may have been written all the same.
        if matches!(answer, Err(Error::Unavailable { .. } | Error::Corrupt { .. })) {
            self.in_doubt.store(true, Ordering::Relaxed);
        }
        let Applied { outcome, at, changed, sent: left_at } = answer?;
        let sent = left_at.map_or(sent, |left_at| left_at.max(sent));
        // Only a refusal that changed the record is definite: one that wrote nothing may come from a deposed primary.
        match outcome {
            Outcome::Queued { .. } => self.queued.store(true, Ordering::Relaxed),
            Outcome::Refused { .. } if changed => self.queued.store(false, Ordering::Relaxed),
            _ => {}
        }
        let tick = at.map_or(HybridTime { seconds: 0, ordinal: 0 }, |at| at.tick);
        let left = |holder: &Holder| at.map(|at| holder.remaining(at.now).unwrap_or(Duration::MAX)).unwrap_or_default();
        match outcome {
            Outcome::Granted { token } => {
                let deadline = sent.saturating_add(context.settings.validity(self.wait_ttl));
                if clock.now() >= deadline {
                    self.in_doubt.store(true, Ordering::Relaxed);
                    return Err(Error::unavailable(format!(
                        "the store granted the key, but answered after the ttl of {:?} was over: retry, and choose a longer ttl if that happens again",
                        self.wait_ttl.duration()
                    )));
                }
                let hold = self.hold((token, tick), clock, deadline);
                hold.note_round_trip(clock.now().saturating_sub(sent));
                Ok(Answer::Granted(hold))
            }
            Outcome::Queued { position, version, holder } if waits => {
                Span::current().record("position", position);
                debug!(position, holder = ?holder.terms.owner, token = %holder.version, "waiting");
                let remaining = left(&holder);
                Ok(Answer::Queued(Place { sent, answered: clock.now(), tick, version, position, remaining }))
            }
            // `in_doubt` is never taken back: a request without an answer may be executed later.
            Outcome::Refused { holder } => Err(Error::Held {
                key: self.key.clone(),
                remaining: left(&holder),
                owner: holder.terms.owner,
                token: holder.version,
            }),
            Outcome::Full { length } => Err(Error::QueueFull { key: self.key.clone(), length }),
            outcome => Err(Error::invalid(format!(
                "the store answered an acquire with {outcome:?}: report this bug of the store"
            ))),
        }
    }
}

/// What is said where nobody hears it.
fn nobody() -> Error {
    Error::invalid("nobody asks any more")
}

/// Sees to it that a request in doubt leaves nothing held. Where the store cannot be reached the ttl
/// does the same, later.
async fn take_back(context: &Context, key: &Key, leave: record::Leave) {
    let released = retry::until_definite(context.operation_deadline(), context.settings.attempt, |deadline| {
        context.store.apply(key, Request::Leave(leave), deadline)
    });
    match released.await {
        Ok(applied) => debug!(outcome = ?applied.outcome, "took back a request in doubt"),
        Err(error) => debug!(%error, "left a request in doubt to its ttl"),
    }
}

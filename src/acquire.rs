//! Asking for a key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{Instrument, debug, debug_span, field};

use crate::{
    Clock, Error, FencingToken, Key, Lease, LeaseId, Metadata, Result, Tick, Ttl,
    hold::Hold,
    record::{self, Holder, Outcome, Patience, Request, Terms},
    refresh::{Keeper, Refreshing},
    retry::{self, Backoff},
    seal::{self, InUse, Inner},
    store::{Applied, BoxFuture},
    wait::{Turn, Wake},
};

/// Asks for a key: awaiting it gives the [`Lease`], or [`Error::Held`], at once or after a
/// [`wait`](Self::wait).
///
/// Made by [`Mongoseal::acquire`](crate::Mongoseal::acquire).
///
/// # Errors
///
/// - [`Error::Held`]: somebody else holds the key, and held it until the wait was over.
/// - [`Error::QueueFull`]: too many wait for the key already.
/// - [`Error::Unavailable`]: nobody confirmed within the operation timeout. If the request was
///   applied after all, it is taken back in the background, and at the latest its ttl ends it.
/// - [`Error::Invalid`], [`Error::Corrupt`]: asking again gives the same.
///
/// # Cancel safety
///
/// Dropping it gives the key up: if the request was or is being granted or queued, it is taken back
/// in the background. Nothing stays held by nobody.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::{Error, Mongoseal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal
///     .acquire("reports/nightly")
///     .ttl(Duration::from_secs(60))
///     .metadata("build", "1.4.2")
///     .await?;
///
/// match seal.acquire("reports/nightly").await {
///     Err(Error::Held { owner, token, .. }) => {
///         assert_eq!((&owner, token), (lease.owner(), lease.token()));
///     }
///     other => panic!("one at a time: {other:?}"),
/// }
/// # lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an acquire asks nothing until it is awaited"]
pub struct Acquire {
    inner: Arc<Inner>,
    key: Result<Key>,
    ttl: Duration,
    metadata: Result<Metadata>,
    lease: Option<LeaseId>,
    refreshing: Refreshing,
    wait: Duration,
}

impl Acquire {
    pub(crate) fn new(inner: &Arc<Inner>, key: Result<Key>) -> Self {
        Self {
            inner: Arc::clone(inner),
            key,
            ttl: inner.settings.ttl.duration(),
            metadata: Ok(Metadata::default()),
            lease: None,
            refreshing: Refreshing::AtAThird,
            wait: Duration::ZERO,
        }
    }

    /// Waits up to this long where the key is held: queued at the store, behind those who came
    /// before and ahead of those who come later, whatever process they are in. A release hands the
    /// key to the first of them. Default: zero, one attempt.
    ///
    /// The wait is counted on the clock of the machine and can be as long as that runs:
    /// `Duration::MAX` waits for ever. A waiter is told when it is its turn, by a change stream that
    /// all waiters of the handle share. Where there is none (the user lacks `changeStream`), it asks,
    /// with growing delays of up to 0.64 seconds, and when the present holder's time is over.
    ///
    /// A waiter that dies falls out of the queue after its ttl, and one that dies when it was just
    /// handed the key costs the next one a ttl.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.wait = at_most;
        self
    }

    /// How long the lease lasts without a refresh. Default: the handle's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Adds an entry to what others see of this lease. See [`Metadata`] for its bounds.
    pub fn metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.metadata = self.metadata.and_then(|mut metadata| {
            metadata.insert(name, text)?;
            Ok(metadata)
        });
        self
    }

    /// Asks with this lease id instead of a new random one.
    ///
    /// Who asks with the id of a lease that still holds is given that lease, with its token: so a
    /// process that kept its id takes its own lease up again after a restart. The process before
    /// must have ended: two that use one id both believe they hold it. And an id is spent once its
    /// lease was released or dropped, because a release that was delayed may still be under way.
    ///
    /// An acquire with a chosen id that ends in [`Error::Unavailable`] is not taken back, so that it
    /// can be asked again; the ttl ends what it may have been granted.
    pub fn lease_id(mut self, id: LeaseId) -> Self {
        self.lease = Some(id);
        self
    }

    /// Refreshes this often, at most half the ttl, so that one failure is not the end. Default: a
    /// third of the ttl.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.refreshing = Refreshing::Every(interval);
        self
    }

    /// Does not refresh in the background: the lease ends with its ttl unless
    /// [`Lease::refresh`] is called.
    pub fn without_refresh(mut self) -> Self {
        self.refreshing = Refreshing::ByHand;
        self
    }

    /// Checks what was asked.
    fn checked(self) -> Result<Ask> {
        let Self { inner, key, ttl, metadata, lease, refreshing, wait } = self;
        let ttl = inner.settings.check_ttl(ttl)?;
        refreshing.check(ttl)?;
        let terms = Terms {
            lease: lease.unwrap_or_else(LeaseId::random),
            caller: inner.caller(),
            owner: inner.settings.owner.clone(),
            limit: 0,
            ttl: ttl.millis(),
            grace: u64::try_from(inner.settings.grace.as_millis()).unwrap_or(u64::MAX),
            metadata: metadata?,
        };
        let key = key?;
        inner.runs()?;
        let in_use = inner.use_id(terms.lease)?;
        let until = inner.clock().now().saturating_add(wait);
        let (in_doubt, queued) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Ask { in_use, key, ttl, terms, refreshing, until, chosen: lease.is_some(), in_doubt, queued })
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease>;
    type IntoFuture = BoxFuture<Result<Lease>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let ask = self.checked()?;
            let inner = Arc::clone(ask.in_use.by());
            let (reply, granted) = oneshot::channel();
            let span = debug_span!("lease", key = %ask.key, owner = %ask.terms.owner, token = field::Empty);
            inner.tasks.spawn(ask.run(reply).instrument(span));
            granted.await.unwrap_or_else(|gone| {
                Err(Error::unavailable("the runtime shut down while a key was asked for: ask again on a running one")
                    .caused_by(gone))
            })
        })
    }
}

/// A checked request for a key, which becomes the task of the lease it is granted.
struct Ask {
    in_use: InUse,
    key: Key,
    ttl: Ttl,
    terms: Terms,
    refreshing: Refreshing,
    /// When, on the clock, waiting is over.
    until: Duration,
    /// Whether the caller chose the lease id.
    chosen: bool,
    /// Whether a request was sent whose end is not known.
    in_doubt: AtomicBool,
    /// Whether it is queued, as far as is known.
    queued: AtomicBool,
}

/// What a request that was not refused came to.
enum Answer {
    Granted(Hold),
    Queued(Place),
}

/// A place in the queue, as the store last told it.
struct Place {
    /// When, on the clock, the request was sent that was so answered, and when the answer came.
    sent: Duration,
    answered: Duration,
    /// The store's tick then.
    tick: Tick,
    /// The key's highest token then.
    version: FencingToken,
    /// How many wait before.
    position: usize,
    /// How long the holder lasted from then on.
    remaining: Duration,
}

/// How far past its end an expiry is looked for, so that it is not looked for too early.
const SLACK: Duration = Duration::from_millis(5);

impl Ask {
    /// Asks, answers, and keeps the lease until it ends.
    async fn run(self, mut reply: oneshot::Sender<Result<Lease>>) {
        let inner = Arc::clone(self.in_use.by());
        let granted = self.obtain(&inner, &mut reply).await;
        match granted {
            Ok(hold) => {
                tracing::Span::current().record("token", hold.token.get());
                debug!("granted");
                let (lease, keeper) = Keeper::start(hold, self.ttl, self.refreshing, self.in_use);
                // Whoever is gone drops the lease here, which releases it.
                drop(reply.send(Ok(lease)));
                keeper.run().await;
            }
            Err(error) => {
                debug!(%error, "not granted");
                let in_doubt = self.in_doubt.load(Ordering::Relaxed);
                let queued = self.queued.load(Ordering::Relaxed);
                if queued || in_doubt && (!self.chosen || reply.is_closed()) {
                    drop(reply.send(Err(error)));
                    take_back(&inner, &self.key, self.terms.lease).await;
                } else {
                    // Whoever chose the id may ask again with it at once.
                    drop(self.in_use);
                    drop(reply.send(Err(error)));
                }
            }
        }
    }

    /// Asks until the key is granted or refused, or waiting is over.
    async fn obtain(&self, inner: &Arc<Inner>, reply: &mut oneshot::Sender<Result<Lease>>) -> Result<Hold> {
        let clock = inner.clock();
        let mut backoff = Backoff::new();
        // Before anything is sent, so that nothing is handed over unheard.
        let mut turn = (clock.now() < self.until).then(|| Turn::take(inner, self.terms.caller.number));
        loop {
            // The last attempt does not wait: it is granted the key or leaves the queue.
            let waits = clock.now() < self.until;
            let answer = retry::until_definite(clock, inner.give_up(), inner.settings.attempt, |within| {
                // Looked at between attempts and never within one: what was sent must have come to
                // its end before it can be taken back.
                let stop =
                    if inner.closing.is_cancelled() { Some(seal::shut_down()) } else { reply.is_closed().then(nobody) };
                async move {
                    match stop {
                        Some(error) => Err(error),
                        None => self.attempt(inner, waits, within).await,
                    }
                }
            });
            let place = match answer.await? {
                Answer::Granted(hold) => return Ok(hold),
                Answer::Queued(place) => place,
            };
            // One that does not wait is not queued.
            let Some(turn) = &mut turn else { return Err(nobody()) };
            let wake = loop {
                let heard = turn.is_heard(place.tick);
                let look = self.next_look(&place, heard, &mut backoff);
                let wake = tokio::select! {
                    biased;
                    () = reply.closed() => return Err(nobody()),
                    () = inner.closing.cancelled() => return Err(seal::shut_down()),
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
                let deadline = place.sent.saturating_add(inner.settings.lasts(self.ttl));
                if clock.now() < deadline {
                    return Ok(self.hold(token, clock, deadline));
                }
            }
        }
    }

    /// When to ask again. Where somebody listens, that is to keep the place in the queue, and for the
    /// first in line when the holder's time is over; else ever less often.
    fn next_look(&self, place: &Place, heard: bool, backoff: &mut Backoff) -> Duration {
        let free = place.answered.saturating_add(place.remaining).saturating_add(SLACK);
        let keep = place.sent.saturating_add(self.ttl.third());
        let look = match (heard, place.position) {
            (false, _) => place.answered.saturating_add(backoff.next()).min(free),
            (true, 0) => keep.min(free),
            (true, _) => keep,
        };
        look.min(self.until)
    }

    fn hold(&self, token: FencingToken, clock: Clock, deadline: Duration) -> Hold {
        Hold::new(self.key.clone(), self.terms.owner.clone(), self.terms.lease, token, clock, deadline)
    }

    /// Sends the request once.
    async fn attempt(&self, inner: &Inner, waits: bool, within: Duration) -> Result<Answer> {
        let clock = inner.clock();
        let until = clock.now().saturating_add(within);
        inner.prepare(within).await?;
        let patience = waits.then_some(Patience { lasts: self.ttl.millis(), room: inner.settings.queue_limit });
        let request = Request::Acquire(record::Acquire { terms: self.terms.clone(), patience });
        // The store counts the ttl from some time after this one.
        let sent = clock.now();
        let answer = inner.store.apply(&self.key, request, until.saturating_sub(sent)).await;
        // A record that cannot be read may have been written all the same.
        if matches!(answer, Err(Error::Unavailable { .. } | Error::Corrupt { .. })) {
            self.in_doubt.store(true, Ordering::Relaxed);
        }
        let Applied { outcome, at } = answer?;
        self.queued.store(matches!(outcome, Outcome::Queued { .. }), Ordering::Relaxed);
        let left = |holder: &Holder| at.map(|at| holder.expires_at.since(at.now)).unwrap_or_default();
        match outcome {
            Outcome::Granted { token } => {
                let deadline = sent.saturating_add(inner.settings.lasts(self.ttl));
                if clock.now() >= deadline {
                    self.in_doubt.store(true, Ordering::Relaxed);
                    return Err(Error::unavailable(format!(
                        "the answer came after the {:?} it was good for: choose a longer ttl",
                        self.ttl.duration()
                    )));
                }
                Ok(Answer::Granted(self.hold(token, clock, deadline)))
            }
            Outcome::Queued { position, version, holder } if waits => {
                debug!(position, holder = %holder.terms.owner, token = %holder.version, "waiting");
                let tick = at.map_or(Tick { seconds: 0, ordinal: 0 }, |at| at.tick);
                let remaining = left(&holder);
                Ok(Answer::Queued(Place { sent, answered: clock.now(), tick, version, position, remaining }))
            }
            Outcome::Refused { holder } => Err(Error::Held {
                key: self.key.clone(),
                remaining: left(&holder),
                owner: holder.terms.owner,
                token: holder.version,
            }),
            Outcome::Full { length } => Err(Error::QueueFull { key: self.key.clone(), length }),
            outcome => Err(Error::invalid(format!("the store answered an acquire with {outcome:?}: it is broken"))),
        }
    }
}

/// What is said where nobody hears it.
fn nobody() -> Error {
    Error::invalid("nobody asks any more")
}

/// Sees to it that a request in doubt leaves nothing held. Where the store cannot be reached the ttl
/// does the same, later.
async fn take_back(inner: &Inner, key: &Key, lease: LeaseId) {
    let released = retry::until_definite(inner.clock(), inner.give_up(), inner.settings.attempt, |within| {
        inner.store.apply(key, Request::Release(record::Release { lease, token: None }), within)
    });
    match released.await {
        Ok(applied) => debug!(outcome = ?applied.outcome, "took back a request in doubt"),
        Err(error) => debug!(%error, "left a request in doubt to its ttl"),
    }
}

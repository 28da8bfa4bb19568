//! The one background task of a lease: it refreshes, ends and releases it.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tracing::debug;

use crate::{
    Error, Lease, LossCause, Metadata, Result, Tick, Ttl,
    batch::{Place, Travelled},
    farewell,
    hold::Hold,
    lease::End,
    record::{self, Outcome, Request},
    retry::{self, Limit},
    seal::{InUse, Inner},
    store::{Applied, Sighting},
    wait::Watch,
    wishes::{Asked, Wish},
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
    fn interval(self, ttl: Ttl) -> Option<Duration> {
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
                "a lease of {:?} cannot be refreshed every {interval:?}: choose up to half the ttl, so that one failure is not the end",
                ttl.duration()
            ))),
            _ => Ok(()),
        }
    }
}

/// How long a lease is held before somebody listens for its revocation.
const SETTLED: Duration = Duration::from_secs(1);

/// The task of a lease.
pub(crate) struct Keeper {
    hold: Arc<Hold>,
    ttl: Ttl,
    refreshing: Refreshing,
    /// When, on the clock, to refresh, and when to listen for a revocation.
    due: Option<Duration>,
    listen_at: Option<Duration>,
    /// What was last said to others. In a box, because few leases say anything.
    words: Option<Box<Metadata>>,
    /// Its place among those that travel together.
    berth: Option<Place>,
    watch: Watch,
    in_use: InUse,
    released: oneshot::Sender<Result<End>>,
}

/// What there is to do for a lease.
enum Task {
    Asked(Asked),
    Refresh,
}

impl Keeper {
    /// A lease and the task that keeps it.
    pub(crate) fn start(
        hold: Arc<Hold>,
        ttl: Ttl,
        refreshing: Refreshing,
        in_use: InUse,
        watch: Watch,
    ) -> (Lease, Box<Self>) {
        let (released, done) = oneshot::channel();
        let lease = Lease::new(Arc::clone(in_use.by()), Arc::clone(&hold), done);
        let now = in_use.by().clock().now();
        // A lease that is held for a moment only is not worth a listener.
        let listen_at = Some(now.saturating_add(SETTLED));
        let (due, words, berth) = (None, None, None);
        let mut keeper = Self { hold, ttl, refreshing, due, listen_at, words, berth, watch, in_use, released };
        // From when the granted request was sent, which for one who waited is a while ago.
        let sent = keeper.hold.deadline().saturating_sub(keeper.inner().settings.lasts(ttl));
        keeper.due = keeper.due_after(if keeper.hold.never_expires() { now } else { sent });
        keeper.berth = keeper.place(sent);
        (lease, Box::new(keeper))
    }

    /// The handle.
    fn inner(&self) -> &Arc<Inner> {
        self.in_use.by()
    }

    fn due_after(&self, from: Duration) -> Option<Duration> {
        self.refreshing.interval(self.ttl).map(|interval| from.saturating_add(interval))
    }

    /// Soon, where a refresh has failed for good.
    fn due_later(&self) -> Option<Duration> {
        let (now, soon) = (self.inner().clock().now(), self.ttl.duration().checked_div(10).unwrap_or_default());
        self.due_after(now).map(|due| due.min(now.saturating_add(soon)))
    }

    /// A place among those that travel together. What is said to others is said by each lease for itself.
    fn place(&self, sent: Duration) -> Option<Place> {
        let alone = self.words.is_some() || self.hold.never_expires();
        let interval = self.refreshing.interval(self.ttl).filter(|_| !alone)?;
        Some(Place::take(self.inner(), &self.hold, self.ttl, interval, sent))
    }

    /// Keeps the lease until it has ended, and ends it when its handle or its time does.
    ///
    /// A task has the size of the largest that it ever waits for, for good. What is under way for a moment
    /// only is in a box of its own, here and in [`Ask::task`](crate::ask::Ask::task).
    pub(crate) async fn keep(&mut self) {
        // A runtime that shuts down drops this task where it stands.
        let _ended = EndsWithTask(Arc::clone(&self.hold));
        loop {
            // The deadline may have been moved on meanwhile, and others may have refreshed the lease.
            let next = self.due.into_iter().chain(self.listen_at).fold(self.hold.deadline(), Duration::min);
            let asked = tokio::select! {
                biased;
                () = self.hold.ended.cancelled() => return,
                () = self.inner().closing.cancelled() => {
                    self.hold.lose(LossCause::ShutDown);
                    None
                }
                asked = self.hold.wishes.next() => Some(asked),
                () = self.inner().clock().sleep_until(next) => None,
            };
            let Some(task) = asked.map(Task::Asked).or_else(|| self.by_the_clock()) else { continue };
            Box::pin(self.perform(task)).await;
        }
    }

    /// What there is to do at this time. Ends the lease when its time is over.
    fn by_the_clock(&mut self) -> Option<Task> {
        let now = self.inner().clock().now();
        if self.hold.remaining().is_zero() {
            self.hold.lose(LossCause::Expired);
        } else if self.listen_at.is_some_and(|at| at <= now) {
            self.watch.listen(self.hold.tick);
            self.listen_at = None;
        } else if self.due.is_some_and(|due| due <= now) {
            if let Some(berth) = &self.berth {
                // It may have travelled along with others.
                self.due = Some(berth.due());
            }
            return self.due.filter(|due| *due <= now).map(|_| Task::Refresh);
        }
        None
    }

    /// Does it, unless the lease ends first.
    async fn perform(&mut self, task: Task) {
        let (inner, hold) = (Arc::clone(self.inner()), Arc::clone(&self.hold));
        let done = async {
            match task {
                Task::Asked(Asked::Look) => look(self.inner(), &self.hold, self.ttl).await,
                Task::Asked(Asked::Refresh(wish)) => self.refresh(Some(*wish)).await,
                Task::Refresh => {
                    if !self.travel().await {
                        self.refresh(None).await;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = over(&inner, &hold) => {}
            () = done => {}
        }
    }

    /// Refreshes together with others, if it can; says whether it did.
    async fn travel(&mut self) -> bool {
        let Some(berth) = &self.berth else { return false };
        // By itself it learns the tick to listen from, where listening has failed since.
        let by_itself = self.listen_at.is_none() && self.watch.is_deaf();
        match berth.travel(by_itself).await {
            Travelled::Kept => self.due = Some(berth.due()),
            Travelled::InVain => self.due = self.due_later(),
            Travelled::Not => return false,
        }
        true
    }

    /// Refreshes by itself, perhaps because its holder wants it.
    async fn refresh(&mut self, wish: Option<Wish>) {
        let wanted = wish.as_ref().and_then(|wish| wish.ttl).unwrap_or(self.ttl);
        // Words that were said once are said again, or older ones that arrive late would stand.
        let metadata = wish.as_ref().and_then(|wish| wish.metadata.as_ref()).or(self.words.as_deref());
        let done = refresh(self.inner(), &self.hold, wanted, metadata, wish.is_some()).await;
        match &done {
            Ok(Kept { sent, tick }) => {
                self.ttl = wanted;
                self.words = metadata.cloned().map(Box::new);
                self.due = self.due_after(*sent);
                match &self.berth {
                    Some(berth) if wish.is_none() => berth.kept(*sent),
                    _ => {
                        drop(self.berth.take());
                        self.berth = self.place(*sent);
                    }
                }
                // Again, where listening has failed since.
                if self.listen_at.is_none() {
                    self.watch.listen(*tick);
                }
            }
            // Until the deadline somebody may mend what is wrong. A wish leaves the schedule
            // as it is.
            Err(error) => {
                self.hold.at_risk(error);
                if wish.is_none() {
                    self.due = self.due_later();
                }
            }
        }
        if let Some(wish) = wish {
            drop(wish.reply.send(done.map(|_kept| ())));
        }
    }

    /// Releases the lease that has ended, if it ended by the will of this process.
    pub(crate) async fn end(self: Box<Self>) {
        let Self { hold, berth, watch, in_use, released, .. } = *self;
        drop(berth);
        let end = farewell::say(in_use.by(), &hold).await;
        drop(watch);
        // Whoever hears of the end may ask with the same id at once.
        drop(in_use);
        drop(released.send(end));
    }
}

/// Asks whether the lease is gone, as was heard. Where nobody answers the next refresh will tell, which
/// this does not hold up for long.
async fn look(inner: &Inner, hold: &Hold, ttl: Ttl) {
    if let Ok(Some(cause)) = sight(inner, hold, inner.settings.longest_attempt(ttl)).await {
        hold.lose(cause);
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

/// That a refresh was confirmed.
struct Kept {
    /// The time on the clock just before it was sent.
    sent: Duration,
    /// The store's tick then.
    tick: Tick,
}

/// Refreshes until the store confirms or time is up: the deadline, and for a wish the operation
/// timeout. Where the store says that the lease is gone, the lease is lost and this does not return.
async fn refresh(inner: &Inner, hold: &Hold, ttl: Ttl, metadata: Option<&Metadata>, wished: bool) -> Result<Kept> {
    let until = if wished { inner.give_up().min(hold.deadline()) } else { hold.deadline() };
    let longest = inner.settings.longest_attempt(ttl);
    let confirmed = retry::until_definite(inner.clock(), until, Limit::growing(longest), |within| async move {
        let attempt = attempt(inner, hold, ttl, metadata, within).await;
        if let Err(error @ Error::Unavailable { .. }) = &attempt {
            hold.at_risk(error);
        }
        attempt
    });
    match confirmed.await? {
        Some(kept) => Ok(kept),
        // Lost: the caller is woken by that.
        None => std::future::pending().await,
    }
}

/// Makes a lease that was just granted one of this ttl.
pub(crate) async fn settle(inner: &Inner, hold: &Hold, ttl: Ttl) -> Result<()> {
    tokio::select! {
        biased;
        () = over(inner, hold) => Err(Error::unavailable(
            "the lease ended before the store confirmed that it has no expiry: ask again",
        )),
        settled = refresh(inner, hold, ttl, None, true) => settled.map(drop),
    }
}

/// Sends one refresh. `None` is a lease that was lost by it.
async fn attempt(
    inner: &Inner,
    hold: &Hold,
    ttl: Ttl,
    metadata: Option<&Metadata>,
    within: Duration,
) -> Result<Option<Kept>> {
    let clock = inner.clock();
    let request = Request::Refresh(record::Refresh {
        lease: hold.lease,
        ttl: ttl.millis(),
        grace: hold.grace,
        metadata: metadata.cloned(),
    });
    let sent = clock.now();
    let Applied { outcome, at } = inner.store.apply(&hold.key, request, within).await?;
    match outcome {
        Outcome::Refreshed { token } if token == hold.token => {
            let kept = hold.kept_until(sent.saturating_add(inner.settings.lasts(ttl)));
            debug!(key = %hold.key, token = %hold.token, kept, "refreshed");
            Ok(kept.then_some(Kept { sent, tick: at.map_or(hold.tick, |at| at.tick) }))
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
        outcome => Err(Error::invalid(format!("the store answered a refresh with {outcome:?}: it is broken"))),
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
    Error::unavailable("the store answered from a stale copy: ask again")
}

/// Ends the lease when its task is dropped, as a runtime does that shuts down.
struct EndsWithTask(Arc<Hold>);

impl Drop for EndsWithTask {
    fn drop(&mut self) {
        self.0.lose(LossCause::ShutDown);
        self.0.wishes.end();
    }
}

//! The one background task of a lease: it refreshes, ends and releases it.
//!
//! The schedule of the handle (`schedule.rs`) says when the lease is due and when it has lapsed, and refreshes most leases
//! itself. This task refreshes the lease by itself where the schedule or the holder asks for it. A refresh is sent again while
//! no attempt is answered: up to four are under way at once. Each is listened to until the deadline. The first confirmation
//! counts, and the deadline moves to the ttl after the send of the attempt that it confirms.

mod round;

use std::{future::pending, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use self::round::RefreshRound;
use crate::{
    Deadline, Error, HybridTime, LossCause, Metadata, Result, Ttl,
    engine::{
        command_queue::{Command, RefreshCommand},
        confirm::confirm_loss,
        context::Context,
        end_action::End,
        held_lease::HeldLease,
        in_flight::{InFlight, MAX_ATTEMPTS, attempt_life},
        lease_ids::InUse,
        lease_shared::LeaseShared,
        notifier::HolderGuard,
        refresh::{self, Confirmed, Refreshing},
        refresh_schedule::{Slot, Wanted},
        release,
        shared::Shared,
    },
};

/// How long a lease is held before its handle listens for its revocation.
const SETTLED: Duration = Duration::from_secs(1);

/// The task of a lease.
pub(crate) struct LeaseTask {
    hold: Arc<LeaseShared>,
    ttl: Ttl,
    refreshing: Refreshing,
    /// When, on the clock, to listen for a revocation.
    listen_at: Option<Duration>,
    /// The metadata that was last confirmed. In a box, because few leases have any.
    words: Option<Box<Metadata>>,
    /// Its place on the schedule, or when, on the clock, to take one.
    slot: Placed,
    /// How many attempts are among what was sent. One of an earlier round that is confirmed still moves the deadline.
    attempts: u8,
    /// What was sent and not answered.
    sent: InFlight<Reply>,
    /// What attempts are sent for, and how often there was such a thing.
    round: Option<Box<RefreshRound>>,
    rounds: u32,
    watch: HolderGuard,
    shared: Arc<Shared>,
    in_use: InUse,
    released: oneshot::Sender<Result<End>>,
}

/// The place of a lease on the schedule.
enum Placed {
    At(Slot),
    /// It takes one at this time: one that is held for a moment only needs none. The last request that the store confirmed
    /// was sent at `sent`, and the next one is due at `due_at`.
    From {
        time: Duration,
        sent: Duration,
        due_at: Duration,
    },
}

/// The answer to one request.
enum Reply {
    Attempt(Attempt),
    /// What a look for a loss that was heard of came to.
    Look(Result<Option<LossCause>>),
}

/// An attempt to refresh that has come to its end.
struct Attempt {
    round: u32,
    ttl: Ttl,
    /// The deadline of the lease when it was sent.
    deadline: Duration,
    /// `None` is a lease that was lost by it.
    confirmed: Result<Option<Confirmed>>,
}

/// What the task wakes up for.
enum Event {
    Command(Command),
    Answered(Reply),
    Time,
}

impl LeaseTask {
    /// A lease and the task that keeps it.
    pub(crate) fn start(
        shared: Arc<Shared>,
        hold: Arc<LeaseShared>,
        (ttl, refreshing): (Ttl, Refreshing),
        in_use: InUse,
        watch: HolderGuard,
    ) -> (HeldLease, Box<Self>) {
        let (released, done) = oneshot::channel();
        let lease = HeldLease::new(Arc::clone(&shared), Arc::clone(&hold), done);
        let now = shared.context.clock().now();
        // A lease that is held for a moment only is not worth a listener.
        let listen_at = now.saturating_add(SETTLED);
        // From when the granted request was sent, which for a waiter is a while ago.
        let sent = hold.deadline().saturating_sub(shared.context.settings.validity(ttl));
        let from = if hold.never_expires() { now } else { sent };
        let due_at = refreshing.due_after(ttl, from);
        let time = listen_at.min(due_at).min(hold.deadline());
        let task = Self {
            hold,
            ttl,
            refreshing,
            listen_at: Some(listen_at),
            words: None,
            slot: Placed::From { time, sent, due_at },
            attempts: 0,
            sent: InFlight::default(),
            round: None,
            rounds: 0,
            watch,
            shared,
            in_use,
            released,
        };
        (lease, Box::new(task))
    }

    fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    fn now(&self) -> Duration {
        self.context().clock().now()
    }

    /// When it is due after a refresh that was sent at this time.
    fn due_after(&self, sent: Duration) -> Duration {
        self.refreshing.due_after(self.ttl, sent)
    }

    /// When it is due after a refresh that has failed for good: soon.
    fn due_soon(&self) -> Duration {
        let (now, soon) = (self.now(), self.ttl.duration().checked_div(10).unwrap_or_default());
        self.due_after(now).min(now.saturating_add(soon))
    }

    /// Takes a place on the schedule.
    fn place(&mut self, sent: Duration, due_at: Duration) {
        let wanted = Wanted {
            ttl: self.ttl,
            interval: self.refreshing.interval(self.ttl),
            is_single: self.is_single(),
            has_listened: self.listen_at.is_none(),
            sent,
            due_at,
        };
        self.slot = Placed::At(Slot::take(&self.shared.schedules, &self.hold, wanted));
    }

    /// Whether it is refreshed by itself. A lease with metadata of its own is.
    fn is_single(&self) -> bool {
        self.words.is_some() || self.hold.never_expires()
    }

    /// Keeps the lease until it has ended, and ends it when its handle or its time does.
    ///
    /// A task has the size of the largest that it ever waits for, for good. What is under way for a moment
    /// only is in a box of its own, here and in [`Ask::task`](crate::engine::acquire_task::Ask::task).
    pub(crate) async fn keep(&mut self) {
        // A runtime that shuts down drops this task where it stands.
        let _ended = EndsWithTask(Arc::clone(&self.hold));
        loop {
            let sleep = self.wake_at().map(|at| Box::pin(self.context().clock().sleep_until(at)));
            let takes_wishes = self.round.as_ref().is_none_or(|round| round.wish.is_none());
            let Self { hold, sent, shared, .. } = self;
            let event = tokio::select! {
                biased;
                () = hold.ended.cancelled() => return,
                () = shared.context.closing.cancelled() => {
                    hold.lose(LossCause::ShutDown);
                    continue;
                }
                answer = sent.next(), if !sent.is_empty() => Event::Answered(answer),
                asked = hold.commands.next(takes_wishes) => Event::Command(asked),
                () = slept(sleep) => Event::Time,
            };
            match event {
                Event::Answered(Reply::Attempt(attempt)) => self.answered(attempt),
                Event::Answered(Reply::Look(Ok(Some(cause)))) => self.hold.lose(cause),
                Event::Command(Command::Refresh(wish)) => self.begin(Some(*wish)),
                Event::Command(Command::RefreshSingle { was_sent }) => self.refresh_single(was_sent),
                Event::Command(Command::Look) => self.look(),
                // If a look for a loss was not answered, the next refresh will tell.
                Event::Answered(Reply::Look(_)) | Event::Command(Command::End) | Event::Time => {}
            }
            self.by_the_clock();
        }
    }

    /// When, on the clock, there is something to do. The schedule sees to all else.
    fn wake_at(&self) -> Option<Duration> {
        let placed_at = match self.slot {
            Placed::At(_) => None,
            Placed::From { time, .. } => Some(time),
        };
        let resent_at = self.round.as_ref().map(|round| {
            let next = round.risk_at.into_iter().fold(round.until.min(self.hold.deadline()), Duration::min);
            if self.can_send() { next.min(round.next_attempt) } else { next }
        });
        [self.listen_at, placed_at, resent_at].into_iter().flatten().min()
    }

    /// Does what is due. Ends the lease when its time is over.
    fn by_the_clock(&mut self) {
        let now = self.now();
        if self.hold.remaining().is_zero() {
            self.hold.lose(LossCause::Expired);
            return;
        }
        if self.listen_at.is_some_and(|at| at <= now) {
            self.watch.listen(self.hold.tick);
            self.listen_at = None;
            if let Placed::At(slot) = &self.slot {
                slot.has_listened();
            }
        }
        if let Placed::From { time, sent, due_at } = self.slot
            && time <= now
        {
            self.place(sent, due_at);
        }
        self.give_up(now);
        if self.can_send() {
            self.send(now);
        }
        if let Some(round) = &mut self.round {
            round.look_at_silence(now, &self.hold);
        }
    }

    /// Ends a refresh that was not confirmed in time. The holder is told why.
    fn give_up(&mut self, now: Duration) {
        if let Some(mut round) = self.round.take_if(|round| round.until <= now)
            && let Some(wish) = round.wish.take()
        {
            drop(wish.reply.send(Err(round.last_error.unwrap_or_else(round::unanswered))));
            self.unconfirmed(now);
        }
    }

    /// A refresh by itself has ended without being confirmed.
    fn unconfirmed(&self, due_at: Duration) {
        if let Placed::At(slot) = &self.slot {
            slot.unconfirmed(due_at);
        }
    }

    /// Refreshes by itself, because the schedule asks for it. What its holder asked for is a refresh, too.
    fn refresh_single(&mut self, was_sent: bool) {
        if self.round.is_none() {
            self.begin(None);
            if let Some(round) = self.round.as_mut().filter(|_| was_sent) {
                round.resend.skip_first();
            }
        }
    }

    /// Begins to refresh by itself, perhaps because its holder wants it. That comes before what is under way.
    fn begin(&mut self, wish: Option<RefreshCommand>) {
        let now = self.now();
        let ttl = wish.as_ref().and_then(|wish| wish.ttl).unwrap_or(self.ttl);
        // Metadata that was confirmed once is sent again, or an older one that arrives late would stand.
        let metadata = wish.as_ref().and_then(|wish| wish.metadata.clone()).or_else(|| self.words.as_deref().cloned());
        let until = if wish.is_some() { self.context().operation_deadline().reading() } else { Duration::MAX };
        self.rounds = self.rounds.wrapping_add(1);
        self.round = Some(Box::new(RefreshRound::begin(self.rounds, wish, (ttl, metadata), (now, until), &self.hold)));
    }

    /// Whether an attempt may be under way beside those that are. A change of the metadata waits for those: one that
    /// arrives late would take it back.
    fn can_send(&self) -> bool {
        let Some(round) = &self.round else { return false };
        if round.begins_with_a_change() {
            return self.attempts == 0;
        }
        usize::from(self.attempts) < MAX_ATTEMPTS
    }

    /// Sends the next attempt, if it is time.
    fn send(&mut self, now: Duration) {
        let (context, hold) = (Arc::clone(self.context()), Arc::clone(&self.hold));
        let Some(round) = self.round.as_mut().filter(|round| round.next_attempt <= now) else { return };
        round.next_attempt = now.saturating_add(round.resend.next());
        let deadline = hold.deadline();
        let left = round.until.min(deadline).saturating_sub(now);
        let attempt_deadline = Deadline::after(context.clock(), attempt_life(left));
        let (round, ttl, metadata) = (round.number, round.ttl, round.metadata.clone());
        self.attempts = self.attempts.saturating_add(1);
        self.sent.push(Box::pin(async move {
            let confirmed = refresh::attempt(&context, &hold, ttl, metadata.as_ref(), attempt_deadline).await;
            Reply::Attempt(Attempt { round, ttl, deadline, confirmed })
        }));
    }

    fn look(&mut self) {
        let (context, hold) = (Arc::clone(self.context()), Arc::clone(&self.hold));
        let deadline = Deadline::after(context.clock(), attempt_life(hold.remaining()));
        self.sent.push(Box::pin(async move { Reply::Look(confirm_loss(&context, &hold, deadline).await) }));
    }

    /// An attempt has come to its end.
    fn answered(&mut self, Attempt { round, ttl, deadline, confirmed }: Attempt) {
        self.attempts = self.attempts.saturating_sub(1);
        match confirmed {
            // The lease is lost, which the next look at its state finds.
            Ok(None) => {}
            Ok(Some(Confirmed { sent, tick })) => {
                let until = sent.saturating_add(self.context().settings.validity(ttl));
                if self.hold.extend_deadline(until)
                    && let Some(done) = self.round.take_if(|current| current.number == round)
                {
                    self.confirmed(*done, sent, tick);
                }
            }
            // What comes of an earlier round is no news.
            Err(error) => {
                let now = self.now();
                let Some(current) = self.round.as_mut().filter(|current| current.number == round) else { return };
                // If another attempt was confirmed meanwhile, this one had too little time.
                if self.hold.deadline() <= deadline {
                    self.hold.at_risk(&error);
                }
                if matches!(error, Error::Unavailable { .. }) {
                    current.next_attempt = current.next_attempt.min(now.saturating_add(current.backoff.next()));
                    current.last_error = Some(error);
                    return;
                }
                // Until the deadline somebody may mend what is wrong. A wish leaves the schedule as it is.
                if let Some(wish) = self.round.take().and_then(|round| round.wish) {
                    drop(wish.reply.send(Err(error)));
                }
                self.unconfirmed(self.due_soon());
            }
        }
    }

    /// The store confirmed a refresh that was sent at this time.
    fn confirmed(&mut self, round: RefreshRound, sent: Duration, tick: HybridTime) {
        self.ttl = round.ttl;
        self.words = round.metadata.map(Box::new);
        match &self.slot {
            Placed::At(slot) if slot.ttl == self.ttl && slot.is_single == self.is_single() => slot.confirmed(sent),
            _ => self.place(sent, self.due_after(sent)),
        }
        // Again, if listening has failed since.
        if self.listen_at.is_none() {
            self.watch.listen(tick);
        }
        if let Some(wish) = round.wish {
            drop(wish.reply.send(Ok(())));
        }
    }

    /// Releases the lease that has ended, if it ended by the will of this process.
    pub(crate) async fn end(self: Box<Self>) {
        let Self { hold, slot, watch, shared, in_use, released, .. } = *self;
        drop(slot);
        let end = release::run(&shared.context, &shared.shutdown_releases, &hold).await;
        drop(watch);
        // The caller that hears of the end may ask with the same id at once.
        drop(in_use);
        drop(released.send(end));
    }
}

/// Waits for the end of a sleep; for ever without one.
async fn slept(sleep: Option<Pin<Box<impl Future<Output = ()>>>>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => pending().await,
    }
}

/// Ends the lease when its task is dropped, as a runtime does that shuts down.
struct EndsWithTask(Arc<LeaseShared>);

impl Drop for EndsWithTask {
    fn drop(&mut self) {
        self.0.lose(LossCause::ShutDown);
        self.0.commands.end();
    }
}

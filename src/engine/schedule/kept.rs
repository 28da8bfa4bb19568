//! A lease on the schedule.

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Single, SingleEnd, Todo};
use crate::{
    engine::{lease_inner::LeaseInner, mailbox::RefreshCommand, refresh::Refreshing, retry},
    types::{
        error::{Error, LossCause, Result},
        instant::Instant,
        metadata::Metadata,
        ttl::Ttl,
    },
};

/// The reply to a refresh for a holder, and the error if it was not confirmed.
pub(crate) type Reply = (oneshot::Sender<Result<()>>, Option<Error>);

/// A lease on the schedule.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) lease: Arc<LeaseInner>,
    pub(super) ttl: Ttl,
    refreshing: Refreshing,
    /// The metadata that was confirmed last. Boxed, because few leases have any.
    metadata: Option<Box<Metadata>>,
    /// When the last confirmed request was sent.
    pub(super) sent: Instant,
    /// When the next refresh is due.
    due_at: Instant,
    /// When to listen for a revocation. `None`: the handle does, or has tried.
    pub(super) listen_at: Option<Instant>,
    /// When it is checked next.
    pub(super) check_at: Instant,
    pub(super) stage: Stage,
    /// Whether it is refreshed alone until a refresh is confirmed.
    is_alone: bool,
    /// Whether it has shared another part since a refresh was confirmed.
    was_late: bool,
    /// How many of its single refreshes have failed since one was confirmed.
    pub(super) failures: u32,
    /// When it is at risk if no refresh is confirmed. `None`: it is not being refreshed.
    risk_at: Option<Instant>,
    /// How many of its single refreshes are in flight. A confirmed one of an earlier round still extends the deadline.
    in_flight: u8,
    /// How many refreshes for its holder there were.
    rounds: u32,
    /// The refresh for the holder that is under way. Boxed, because few leases have any.
    round: Option<Box<Round>>,
}

/// The stage of a lease's refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The lease waits for a part. The earliest deadline comes first.
    Due(Instant),
    /// The lease waits for a part, or to be refreshed alone. The earliest deadline comes first.
    Late(Instant),
    /// The lease waits to be refreshed alone. Whether it has failed, and its deadline.
    Queued(bool, Instant),
    /// The lease was sent with the attempt of this number.
    Sent(u64),
    /// The lease is not due.
    Waiting,
}

/// A refresh that the holder requests: sent until one of its attempts is confirmed.
#[derive(Debug)]
struct Round {
    number: u32,
    command: Box<RefreshCommand>,
    is_sent: bool,
    last_error: Option<Error>,
    /// The refreshes that wait for it.
    waiting: VecDeque<Box<RefreshCommand>>,
}

impl Kept {
    /// For a lease that was granted by a request that was sent at `sent`, and of whose revocation the handle wants to know
    /// from `listen_at` on.
    pub(crate) fn new(
        lease: Arc<LeaseInner>,
        (ttl, refreshing): (Ttl, Refreshing),
        sent: Instant,
        listen_at: Instant,
    ) -> Self {
        let mut kept = Self {
            lease,
            ttl,
            refreshing,
            metadata: None,
            sent,
            due_at: Instant::MAX,
            listen_at: Some(listen_at),
            check_at: Instant::MAX,
            stage: Stage::Waiting,
            is_alone: false,
            was_late: false,
            failures: 0,
            risk_at: None,
            in_flight: 0,
            rounds: 0,
            round: None,
        };
        kept.wait();
        kept
    }

    /// Whether it is refreshed alone each time.
    fn is_single(&self) -> bool {
        self.metadata.is_some() || self.ttl > Ttl::MAX
    }

    /// When there is something to do for it, if nothing is answered before.
    pub(super) fn next_check(&self) -> Instant {
        let due_at = Some(self.due_at).filter(|_| self.stage == Stage::Waiting);
        let until = self.round.as_ref().map(|round| round.command.until);
        let times = [due_at, self.risk_at, self.listen_at, until, self.lease.stalls_at()];
        times.into_iter().flatten().fold(self.lease.deadline(), Instant::min)
    }

    /// Why its time is over. A lease that stalls is not released: the store keeps the key until the ttl is over, because the work
    /// may still write.
    pub(super) fn find_loss(&self, now: Instant) -> Option<LossCause> {
        let stalls_at = self.lease.stalls_at().filter(|at| *at <= now);
        let is_expired = self.lease.remaining().is_zero();
        is_expired.then_some(LossCause::Expired).or(stalls_at.map(|_| LossCause::Stalled))
    }

    /// Does what is due. `retry`: how long to wait after a failure.
    pub(super) fn check(&mut self, now: Instant, retry: Duration, todo: &mut Todo) {
        if self.listen_at.take_if(|at| *at <= now).is_some() {
            let hlc = self.lease.hlc;
            todo.listen_since = Some(todo.listen_since.map_or(hlc, |since| since.min(hlc)));
        }
        if let Some(round) = self.round.take_if(|round| round.command.until <= now) {
            self.risk_at = self.risk_at.filter(|_| self.refreshing.interval(self.ttl).is_some());
            self.wait_for_interval(now, retry);
            let Round { command, last_error, waiting, .. } = *round;
            todo.unconfirmed.push((command.reply, last_error));
            self.begin_round(now, waiting);
        }
        if let Some(risk_at) = self.risk_at.as_mut().filter(|at| **at <= now) {
            *risk_at = Instant::MAX;
            todo.silent.push(Arc::clone(&self.lease));
        }
        if self.stage == Stage::Waiting && self.due_at <= now {
            if self.is_single() || self.is_alone {
                self.queue(now, false);
            } else {
                self.begin(now);
                self.stage = Stage::Due(self.lease.deadline());
            }
        }
    }

    /// Begins a refresh, if none has begun.
    pub(super) fn begin(&mut self, now: Instant) {
        let Self { lease, ttl, risk_at, .. } = self;
        risk_at.get_or_insert_with(|| now.after(lease.risk_after(*ttl)));
    }

    /// Queues it to be refreshed alone. A change of the metadata waits for earlier attempts, which could undo it.
    pub(super) fn queue(&mut self, now: Instant, has_failed: bool) {
        self.begin(now);
        self.is_alone = true;
        self.failures = self.failures.saturating_add(u32::from(has_failed));
        if self.in_flight > 0 && self.new_round().is_some_and(|round| round.command.metadata.is_some()) {
            (self.stage, self.due_at) = (Stage::Waiting, Instant::MAX);
        } else {
            self.stage = Stage::Queued(self.failures > 0, self.lease.deadline());
        }
    }

    /// Lets it share another part, or be refreshed alone. Its part was late, was large and failed, or was overtaken by a release.
    pub(super) fn share_again(&mut self, now: Instant) {
        if mem::replace(&mut self.was_late, true) {
            self.queue(now, false);
        } else {
            self.stage = Stage::Late(self.lease.deadline());
        }
    }

    /// Notes a confirmed request that was sent at `sent`.
    pub(super) fn record_confirmed(&mut self, sent: Instant) {
        if sent < self.sent {
            return;
        }
        self.sent = sent;
        (self.failures, self.risk_at, self.was_late) = (0, None, false);
        if self.round.is_none() {
            self.wait();
        }
    }

    /// Waits for its interval after the last confirmed request.
    fn wait(&mut self) {
        self.is_alone = false;
        self.wait_for_interval(Instant::ORIGIN, Duration::ZERO);
    }

    /// Waits for its interval, and from now on for `retry` at least. A lease without expiry has no other bound on `retry`
    /// than its interval.
    pub(super) fn wait_for_interval(&mut self, now: Instant, retry: Duration) {
        let next = |interval| self.sent.after(interval).max(now.after(retry.min(interval)));
        self.due_at = self.refreshing.interval(self.ttl).map_or(Instant::MAX, next);
        self.stage = Stage::Waiting;
    }

    /// Whether a part that is sent now may take the lease before it is due.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        let half = self.refreshing.interval(self.ttl).and_then(|interval| interval.checked_div(2));
        self.stage == Stage::Waiting
            && !self.is_single()
            && !self.is_alone
            && half.is_some_and(|half| self.sent.after(half) <= now)
            && self.lease.is_valid()
    }

    /// The number of the refresh for the holder that is under way.
    pub(super) fn round(&self) -> Option<u32> {
        self.round.as_ref().map(|round| round.number)
    }

    /// The refresh for the holder, if no attempt of it was sent.
    fn new_round(&self) -> Option<&Round> {
        self.round.as_deref().filter(|round| !round.is_sent)
    }

    /// Queues a refresh for the holder, beside any that is under way.
    pub(super) fn request(&mut self, now: Instant, command: Box<RefreshCommand>) {
        match &mut self.round {
            Some(round) => {
                // Keeps only refreshes whose callers still wait.
                round.waiting.retain(|command| !command.reply.is_closed());
                round.waiting.push_back(command);
            }
            None => self.begin_round(now, VecDeque::from([command])),
        }
    }

    /// Begins the first of these refreshes whose caller still waits.
    fn begin_round(&mut self, now: Instant, mut waiting: VecDeque<Box<RefreshCommand>>) {
        while let Some(command) = waiting.pop_front() {
            // If the caller is gone, it was told that the refresh failed, so the refresh must not be sent.
            if !command.reply.is_closed() {
                self.rounds = self.rounds.wrapping_add(1);
                let (number, is_sent, last_error) = (self.rounds, false, None);
                self.round = Some(Box::new(Round { number, command, is_sent, last_error, waiting }));
                return self.queue(now, false);
            }
        }
    }

    /// Notes that a refresh of it alone is sent, whose lease ends at this time. Returns the refresh for the holder of which it
    /// is an attempt, the ttl, the metadata, and when it is of no use any more.
    pub(super) fn send_alone(&mut self, ends_at: Instant) -> (Option<u32>, Ttl, Option<Metadata>, Instant) {
        self.in_flight = self.in_flight.saturating_add(1);
        // Confirmed metadata is sent again: otherwise older metadata that arrives late would stay.
        let confirmed = self.metadata.as_deref();
        let Some(round) = &mut self.round else { return (None, self.ttl, confirmed.cloned(), ends_at) };
        round.is_sent = true;
        let RefreshCommand { ttl, metadata, until, .. } = &*round.command;
        (Some(round.number), ttl.unwrap_or(self.ttl), metadata.as_ref().or(confirmed).cloned(), ends_at.min(*until))
    }

    /// Notes how a refresh of it alone ended. `retry`: how long to wait after a refusal. Returns the reply to the holder.
    pub(super) fn end_single(
        &mut self,
        single: &Single,
        end: SingleEnd,
        now: Instant,
        retry: Duration,
    ) -> Option<Reply> {
        self.in_flight = self.in_flight.saturating_sub(1);
        let was_sent = self.stage == Stage::Sent(single.number);
        let of = |round: &mut Box<Round>| Some(round.number) == single.round;
        let (mut done, mut refusal) = (None, None);
        match end {
            Ok(Some(sent)) => {
                done = self.round.take_if(of);
                self.record_confirmed(sent);
                if was_sent && self.round.is_none() {
                    // It may have been sent before another that was confirmed.
                    self.wait();
                }
                if let Some(round) = &done {
                    self.change(round.command.ttl, round.command.metadata.as_ref(), sent);
                }
            }
            Err(error @ Error::Unavailable { .. }) => {
                if was_sent {
                    self.failures = self.failures.saturating_add(1);
                    self.due_at = now.after(retry::delay_after(self.failures));
                    self.stage = Stage::Waiting;
                }
                if let Some(round) = self.round.as_mut().filter(|round| Some(round.number) == single.round) {
                    round.last_error = Some(error);
                }
            }
            // The cause may pass before the deadline.
            Err(error) => {
                done = self.round.take_if(of);
                refusal = Some(error);
                if was_sent {
                    self.wait_for_interval(now, retry);
                }
            }
            Ok(None) => {}
        }
        if self.in_flight == 0 && self.stage == Stage::Waiting && self.new_round().is_some() {
            self.queue(now, false);
        }
        let Round { command, waiting, .. } = *done?;
        self.begin_round(now, waiting);
        Some((command.reply, refusal))
    }

    /// Notes the ttl and the metadata of a confirmed refresh, which was sent at this time.
    fn change(&mut self, ttl: Option<Ttl>, metadata: Option<&Metadata>, sent: Instant) {
        let before = (self.ttl, self.is_single());
        self.ttl = ttl.unwrap_or(self.ttl);
        if let Some(metadata) = metadata {
            self.metadata = Some(Box::new(metadata.clone()));
        }
        if before != (self.ttl, self.is_single()) {
            (self.sent, self.was_late, self.failures, self.risk_at) = (sent, false, 0, None);
            self.wait();
        }
    }
}

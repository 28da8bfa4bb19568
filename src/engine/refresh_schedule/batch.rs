//! Leases of one schedule that are refreshed together.

use std::{
    mem,
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::timeout;

use super::{Schedule, Schedules, leases::Stage, round::Round};
use crate::{
    Error, Result, Ttl,
    engine::{in_flight::InFlight, lease_shared::LeaseShared},
};

/// The most leases of one batch.
const MAX_BATCH: usize = 5_000;

/// How long a store may take for each lease of the batches that are under way: MongoDB took 155 microseconds, three members
/// on a small machine, until a majority had confirmed.
pub(super) const EACH: Duration = Duration::from_micros(500);

/// Leases that are refreshed together.
pub(super) struct Batch {
    pub(super) schedules: Arc<Schedules>,
    schedule: Arc<Schedule>,
    pub(super) ttl: Ttl,
    pub(super) members: Vec<Member>,
    /// How long the store may take to answer all of it.
    pub(super) longest: Duration,
}

/// A lease of a batch.
#[derive(Clone)]
pub(super) struct Member {
    slot: u64,
    pub(super) hold: Arc<LeaseShared>,
}

/// The answer to a request for some leases of a batch.
pub(super) struct Answer {
    /// Which of them.
    pub(super) some: Range<usize>,
    /// The time on the clock just before it was sent.
    pub(super) sent: Duration,
    pub(super) members: Vec<Member>,
    /// Whether the store has refreshed all of them.
    pub(super) kept: Result<bool>,
}

impl Batch {
    /// Refreshes the leases of a schedule that are due when it is the turn of this batch, or after `patience`.
    pub(super) async fn run(schedules: Arc<Schedules>, schedule: Arc<Schedule>, ttl: Ttl, patience: Duration) {
        let closing = schedules.context.closing.clone();
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = Self::refresh(schedules, schedule, ttl, patience) => {}
        }
    }

    async fn refresh(schedules: Arc<Schedules>, schedule: Arc<Schedule>, ttl: Ttl, patience: Duration) {
        let turn_of = Arc::clone(&schedules);
        let mut turn = timeout(patience, turn_of.turn.lock()).await.ok();
        let longest = schedules.context.settings.longest_attempt(ttl);
        let members = Self::members(&schedules, &schedule, ttl, longest);
        // More may be due than are members of this one.
        schedule.changed.notify_one();
        let Some(earliest) = members.iter().map(|member| member.hold.deadline()).min() else { return };
        let clock = schedules.context.clock();
        let began = clock.now();
        let _under_way = UnderWay::begin(&schedules, members.len());
        let batch = Self { schedules: Arc::clone(&schedules), schedule, ttl, members, longest };
        let holds = || batch.members.iter().map(|member| &member.hold);
        let until = holds().map(|hold| hold.deadline()).max().unwrap_or_default();
        let silence = holds().map(|hold| hold.risk_after(ttl)).max().unwrap_or_default();
        let turn_ends = began.saturating_add(schedules.patience(earliest.saturating_sub(began)));
        let (mut turn_ends, mut risk_at) = (Some(turn_ends), Some(began.saturating_add(silence)));
        let mut round = Round::begin(&batch, began);
        while !round.is_over() && clock.now() < until {
            let wake_at = [turn_ends, risk_at].into_iter().flatten().fold(until.min(round.next), Duration::min);
            let answer = tokio::select! {
                biased;
                answer = round.sent.next() => Some(answer),
                () = clock.sleep_until(wake_at) => None,
            };
            let now = clock.now();
            if turn_ends.take_if(|at| answer.is_some() || *at <= now).is_some() {
                drop(turn.take());
            }
            if risk_at.take_if(|at| *at <= now).is_some() {
                batch.at_risk_since(round.open(0..batch.members.len()), began, &unanswered());
            }
            match answer {
                Some(answer) => round.answered(answer, now),
                None if round.next <= now => round.resend(now),
                None => {}
            }
        }
        let sent = mem::take(&mut round.sent);
        batch.end(began);
        batch.listen(sent).await;
    }

    /// The leases that are due now. One that cannot be refreshed together with others is left to its task.
    fn members(schedules: &Schedules, schedule: &Schedule, ttl: Ttl, longest: Duration) -> Vec<Member> {
        let most = longest.as_micros().checked_div(EACH.as_micros()).and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(MAX_BATCH).clamp(2, MAX_BATCH).min(schedules.max_batch(ttl));
        let taken = schedule.leases().take_batch(schedules.context.clock().now(), most, ttl);
        let mut members: Vec<_> = taken.into_iter().map(|(slot, hold)| Member { slot, hold }).collect();
        // The answer to a batch has no tick from which to listen. That to a single lease has one.
        let is_deaf = schedules.notifier.is_deaf(schedules.context.clock().now());
        let single = if members.len() == 1 {
            Some(0)
        } else if is_deaf {
            let leases = schedule.leases();
            members.iter().position(|member| leases.by_slot.get(&member.slot).is_some_and(|lease| lease.has_listened))
        } else {
            None
        };
        if let Some(single) = single {
            let member = members.swap_remove(single);
            leave(schedule, [&member], false);
        }
        // Neighbours lie side by side at the store, too.
        members.sort_unstable_by(|one, other| one.hold.key.cmp(&other.hold.key));
        members
    }

    /// Leaves some of them to their tasks.
    pub(super) fn leave<'a>(&self, members: impl IntoIterator<Item = &'a Member>) {
        leave(&self.schedule, members, true);
    }

    /// All that are still in the batch are due again.
    fn end(&self, began: Duration) {
        let now = self.schedules.context.clock().now();
        let soon = now.saturating_add(self.ttl.duration().checked_div(10).unwrap_or_default());
        self.schedule.update(self.members.iter().map(|member| member.slot), |lease| {
            if lease.stage == Stage::InBatch {
                lease.stage = Stage::Waiting;
                if lease.sent < began {
                    lease.due_at = lease.interval.map_or(soon, |interval| soon.min(now.saturating_add(interval)));
                }
            }
        });
        self.schedule.changed.notify_one();
    }

    /// Listens to what was sent and not answered, for leases that ask by themselves meanwhile.
    async fn listen(&self, mut sent: InFlight<Answer>) {
        while !sent.is_empty() {
            let answer = sent.next().await;
            self.note_answer(&answer);
        }
    }

    /// Notes what came of a request.
    pub(super) fn note_answer(&self, Answer { members, sent, kept, .. }: &Answer) {
        match kept {
            Ok(true) => {
                let until = sent.saturating_add(self.schedules.context.settings.validity(self.ttl));
                let took = self.schedules.context.clock().now().saturating_sub(*sent);
                // Collected, because moving a deadline on wakes those who follow the lease, and that must not happen under
                // the lock of the schedule.
                let kept: Vec<_> = members
                    .iter()
                    .filter(|Member { hold, .. }| hold.extend_deadline(until) && hold.is_valid())
                    .collect();
                for Member { hold, .. } in &kept {
                    hold.note_round_trip(took);
                }
                self.schedule.update(kept.into_iter().map(|member| member.slot), |lease| lease.confirmed(*sent));
            }
            Err(error @ Error::Unavailable { .. }) => self.at_risk_since(members, *sent, error),
            Ok(false) | Err(_) => {}
        }
    }

    /// Puts those at risk of which no request was confirmed that was sent at this time or later.
    fn at_risk_since<'a>(&self, members: impl IntoIterator<Item = &'a Member>, sent: Duration, error: &Error) {
        let until = sent.saturating_add(self.schedules.context.settings.validity(self.ttl));
        at_risk(members.into_iter().filter(|member| member.hold.deadline() < until), error);
    }
}

fn leave<'a>(schedule: &Schedule, members: impl IntoIterator<Item = &'a Member>, was_sent: bool) {
    let members: Vec<_> = members.into_iter().collect();
    schedule.update(members.iter().map(|member| member.slot), |lease| lease.stage = Stage::Single);
    for member in members {
        member.hold.commands.refresh_single(was_sent);
    }
}

pub(super) fn at_risk<'a>(members: impl IntoIterator<Item = &'a Member>, error: &Error) {
    for Member { hold, .. } in members.into_iter().filter(|member| member.hold.is_valid()) {
        hold.at_risk(error);
    }
}

fn unanswered() -> Error {
    Error::unavailable("the store has not answered a refresh of several leases yet: check that it can be reached")
}

/// That so many leases are in a batch that is under way, until this is dropped.
struct UnderWay<'a>(&'a Schedules, usize);

impl<'a> UnderWay<'a> {
    fn begin(schedules: &'a Schedules, leases: usize) -> Self {
        schedules.under_way.fetch_add(leases, Ordering::Relaxed);
        Self(schedules, leases)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(self.1, Ordering::Relaxed);
    }
}

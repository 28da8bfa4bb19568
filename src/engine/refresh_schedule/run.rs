//! Runs a batch: waits for its turn, collects the leases that are due, and sends until all are confirmed or given up.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::timeout;

use super::{
    Schedule, Schedules,
    batch::{Batch, EACH, Member, leave},
    round::BatchRound,
};
use crate::{Error, Ttl};

/// The most leases of one batch.
const MAX_BATCH: usize = 5_000;

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
        let mut round = BatchRound::begin(&batch, began);
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

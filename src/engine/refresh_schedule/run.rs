//! Runs a batch: waits for the batch before, takes the leases that are due, and sends until all are confirmed or given
//! up.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::timeout;

use super::{
    Schedule, Schedules,
    batch::{Batch, MAX_TIME_PER_LEASE, Member, leave},
    round::BatchRound,
};
use crate::{Error, Ttl};

/// The most leases of one batch.
const MAX_BATCH: usize = 5_000;

impl Batch {
    /// Refreshes the leases of a schedule that are due, when the batch before has ended or after `max_wait`.
    pub(super) async fn run(schedules: Arc<Schedules>, schedule: Arc<Schedule>, ttl: Ttl, max_wait: Duration) {
        let closing = schedules.context.closing.clone();
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = Self::refresh(schedules, schedule, ttl, max_wait) => {}
        }
    }

    async fn refresh(schedules: Arc<Schedules>, schedule: Arc<Schedule>, ttl: Ttl, max_wait: Duration) {
        let lock_owner = Arc::clone(&schedules);
        let mut batch_lock = timeout(max_wait, lock_owner.batch_lock.lock()).await.ok();
        let longest = schedules.context.settings.longest_attempt(ttl);
        let members = Self::take_members(&schedules, &schedule, ttl, longest);
        // More leases may be due than this batch has taken.
        schedule.changed.notify_one();
        let Some(earliest) = members.iter().map(|member| member.lease.deadline()).min() else { return };
        let clock = schedules.context.clock();
        let began = clock.now();
        let _under_way = UnderWay::begin(&schedules, members.len());
        let batch = Self { schedules: Arc::clone(&schedules), schedule, ttl, members, longest };
        let leases = || batch.members.iter().map(|member| &member.lease);
        let until = leases().map(|lease| lease.deadline()).max().unwrap_or_default();
        let silence = leases().map(|lease| lease.risk_after(ttl)).max().unwrap_or_default();
        let lock_ends = began.saturating_add(schedules.max_wait(earliest.saturating_sub(began)));
        let (mut lock_ends, mut risk_at) = (Some(lock_ends), Some(began.saturating_add(silence)));
        let mut round = BatchRound::begin(&batch, began);
        while !round.is_over() && clock.now() < until {
            let wake_at = [lock_ends, risk_at].into_iter().flatten().fold(until.min(round.next), Duration::min);
            let answer = tokio::select! {
                biased;
                answer = round.sent.next() => Some(answer),
                () = clock.sleep_until(wake_at) => None,
            };
            let now = clock.now();
            if lock_ends.take_if(|at| answer.is_some() || *at <= now).is_some() {
                drop(batch_lock.take());
            }
            if risk_at.take_if(|at| *at <= now).is_some() {
                batch.note_at_risk_since(round.unfinished(0..batch.members.len()), began, &unanswered_error());
            }
            match answer {
                Some(answer) => round.handle_answer(answer, now),
                None if round.next <= now => round.resend(now),
                None => {}
            }
        }
        let sent = mem::take(&mut round.sent);
        batch.end(began);
        batch.receive_late_answers(sent).await;
    }

    /// Takes the leases that are due. Leaves a lease that must be refreshed alone to its task.
    fn take_members(schedules: &Schedules, schedule: &Schedule, ttl: Ttl, longest: Duration) -> Vec<Member> {
        let most = longest.as_micros().checked_div(MAX_TIME_PER_LEASE.as_micros());
        let most = most
            .and_then(|most| usize::try_from(most).ok())
            .unwrap_or(MAX_BATCH)
            .clamp(2, MAX_BATCH)
            .min(schedules.max_batch(ttl));
        let taken = schedule.leases().take_batch(schedules.context.clock().now(), most, ttl);
        let mut members: Vec<_> = taken.into_iter().map(|(slot, lease)| Member { slot, lease }).collect();
        // The answer for a single lease has a tick from which to listen. The answer to a batch has none.
        let is_listener_missing = schedules.notifier.is_listener_missing(schedules.context.clock().now());
        let single = if members.len() == 1 {
            Some(0)
        } else if is_listener_missing {
            let leases = schedule.leases();
            members.iter().position(|member| leases.by_slot.get(&member.slot).is_some_and(|lease| lease.has_listened))
        } else {
            None
        };
        if let Some(single) = single {
            let member = members.swap_remove(single);
            leave(schedule, [&member], false);
        }
        // Keys that are neighbours are stored close to each other, too.
        members.sort_unstable_by(|one, other| one.lease.key.cmp(&other.lease.key));
        members
    }
}

fn unanswered_error() -> Error {
    Error::unavailable("the store has not answered a refresh of several leases yet: check that it can be reached")
}

/// Counts the leases of a batch in flight, until this is dropped.
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

//! One refresh of a batch: sent as one request, in parts, or left to the tasks of its leases.

use std::{collections::VecDeque, mem, ops::Range, sync::Arc, time::Duration};

use tracing::debug;

use super::batch::{Batch, BatchReply, MAX_TIME_PER_LEASE, Member, note_at_risk};
use crate::{
    Deadline, Error,
    engine::{
        in_flight::{InFlight, Resend, attempt_life},
        observer::{HandleEvent, RefreshOutcome},
        retry::Backoff,
    },
    record::{BatchRequest, lease_refs},
};

/// How often a batch may fail at once before it is split.
const MAX_FAILURES: u32 = 3;

/// The most leases of a part of a batch. If a lease of a part is over or cannot be refreshed, the tasks of the part
/// refresh its leases alone.
const PART_SIZE: usize = 64;

/// The most parts in flight. A slow store is not sent all of a batch a second time at once.
const MAX_PARTS: usize = 8;

/// One refresh of a batch.
///
/// A request that is not answered, or fails after a long time, may wait for one record that cannot be written, such as
/// one locked by an open transaction. So the batch is sent again in small parts, a few at a time. If the store answers
/// some of the parts, the leases of the others are refreshed alone. If it answers none, all leases are sent as one
/// request again.
pub(super) struct BatchRound<'a> {
    batch: &'a Batch,
    /// Which leases are refreshed or left to their tasks.
    is_done: Vec<bool>,
    pub(super) sent: InFlight<BatchReply>,
    /// When, on the clock, the refresh is sent again.
    pub(super) next: Duration,
    /// When it was sent first, and how many leases were in flight then.
    began: Duration,
    under_way: u32,
    resend: Resend,
    backoff: Backoff,
    failures: u32,
    /// Whether it is sent in parts.
    is_split: bool,
    /// The parts that were not sent.
    parts: VecDeque<Range<usize>>,
    /// The parts that were sent and are not done, and when they were sent. `None`: the request has failed.
    sent_parts: Vec<(Range<usize>, Option<Duration>)>,
    /// The time of the slowest part that was answered.
    slowest: Option<Duration>,
    /// When all of it is sent again, if no part is answered.
    resend_all_at: Duration,
}

impl<'a> BatchRound<'a> {
    pub(super) fn begin(batch: &'a Batch, now: Duration) -> Self {
        let under_way = batch.schedules.under_way();
        // If a network opens connections slowly, many concurrent requests would wait for them.
        let round_trips = batch.members.iter().map(|member| member.lease.round_trip());
        let usual = round_trips.max().unwrap_or_default().mul_f64(1.5);
        let mut round = Self {
            batch,
            is_done: vec![false; batch.members.len()],
            sent: InFlight::default(),
            next: now,
            began: now,
            under_way,
            resend: Resend::of(batch.ttl, MAX_TIME_PER_LEASE.saturating_mul(under_way)).no_sooner(usual),
            backoff: Backoff::new(),
            failures: 0,
            is_split: false,
            parts: VecDeque::new(),
            sent_parts: Vec::new(),
            slowest: None,
            resend_all_at: Duration::MAX,
        };
        round.send_all(now);
        round
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_done.iter().all(|done| *done)
    }

    /// The members in this range that are not done.
    pub(super) fn unfinished(&self, range: Range<usize>) -> impl Iterator<Item = &'a Member> {
        let open = self.batch.members.iter().zip(&self.is_done).skip(range.start).take(range.len());
        open.filter(|(_, is_done)| !**is_done).map(|(member, _)| member)
    }

    fn all(&self) -> Range<usize> {
        0..self.batch.members.len()
    }

    fn send_all(&mut self, now: Duration) {
        self.send(self.all());
        self.next = now.saturating_add(self.resend.next());
    }

    /// Sends one refresh of the members in this range that are held and not done.
    fn send(&mut self, range: Range<usize>) {
        let held = self.unfinished(range.clone()).filter(|member| member.lease.is_valid());
        let members: Vec<Member> = held.cloned().collect();
        if members.is_empty() {
            return self.finish(range);
        }
        let left = members.iter().map(|member| member.lease.remaining()).max().unwrap_or_default();
        let (schedules, ttl) = (Arc::clone(&self.batch.schedules), self.batch.ttl);
        self.sent.push(Box::pin(async move {
            let leases = lease_refs(members.iter().map(|Member { lease, .. }| (lease.key.clone(), lease.token)));
            let sent = schedules.context.clock().now();
            let request = BatchRequest::Keep { ttl: ttl.millis() };
            let refreshed = schedules
                .context
                .store
                .apply_batch(&leases, &request, Deadline::after(schedules.context.clock(), attempt_life(left)))
                .await;
            debug!(leases = members.len(), ?refreshed, "refreshed together");
            schedules.context.settings.observers.emit(|| HandleEvent::RefreshFinished {
                key: None,
                leases: members.len(),
                outcome: match &refreshed {
                    Ok(true) => RefreshOutcome::Confirmed,
                    Ok(false) => RefreshOutcome::Refused,
                    Err(error) => RefreshOutcome::Failed(error),
                },
                took: schedules.context.clock().now().saturating_sub(sent),
            });
            BatchReply { range, sent, members, refreshed }
        }));
    }

    pub(super) fn handle_answer(&mut self, answer: BatchReply, now: Duration) {
        self.batch.note_answer(&answer);
        let BatchReply { range, sent, refreshed, .. } = answer;
        let took = now.saturating_sub(sent);
        match refreshed {
            Ok(true) => {
                if self.sent_parts.iter().any(|(part, _)| *part == range) {
                    self.slowest = self.slowest.max(Some(took));
                } else if range == self.all() {
                    self.batch.schedules.note_took(took, self.under_way);
                }
                self.finish(range);
            }
            Ok(false) if range.len() <= PART_SIZE => self.leave(range),
            Ok(false) => self.split(now),
            Err(Error::Unavailable { .. }) => {
                self.failures = self.failures.saturating_add(1);
                self.next = self.next.min(now.saturating_add(self.backoff.next()));
                self.sent_parts.iter_mut().filter(|(part, _)| *part == range).for_each(|(_, at)| *at = None);
                if took > self.batch.longest.mul_f64(0.5) || self.failures > MAX_FAILURES {
                    self.split(now);
                }
            }
            Err(error) => {
                note_at_risk(self.unfinished(self.all()), &error);
                self.is_done.fill(true);
            }
        }
        self.send_parts(now);
    }

    /// Sends again what was not answered in time, or splits the batch.
    pub(super) fn resend(&mut self, now: Duration) {
        if !self.is_split {
            self.next = self.wait_limit(0.5);
            if self.next <= now {
                self.split(now);
            }
            return;
        }
        self.next = now.saturating_add(self.check_interval());
        if let Some(slowest) = self.slowest {
            let late_after = self.check_interval().max(slowest.saturating_mul(4));
            let late =
                self.sent_parts.extract_if(.., |(_, at)| at.is_none_or(|at| at.saturating_add(late_after) <= now));
            for (part, _) in late.collect::<Vec<_>>() {
                self.leave(part);
            }
            self.send_parts(now);
        } else if self.resend_all_at.max(self.wait_limit(0.75)) <= now
            || self.sent_parts.iter().all(|(_, at)| at.is_none())
        {
            self.send_all(now);
            self.resend_all_at = self.next;
        }
    }

    /// Until when a store that is slow, but answers other batches, is sent nothing more: at most this part of the time
    /// to the earliest deadline.
    fn wait_limit(&self, part: f64) -> Duration {
        let earliest = self.batch.members.iter().map(|member| member.lease.deadline()).min().unwrap_or_default();
        let longest = earliest.saturating_sub(self.began).mul_f64(part);
        self.began.saturating_add(self.batch.schedules.expected_time(self.under_way).min(longest))
    }

    /// Sends the leases in small parts, once.
    fn split(&mut self, now: Duration) {
        if mem::replace(&mut self.is_split, true) {
            return;
        }
        if self.batch.members.len() <= PART_SIZE {
            return self.leave(self.all());
        }
        let starts = (0..self.batch.members.len()).step_by(PART_SIZE);
        self.parts = starts.map(|start| start..start.saturating_add(PART_SIZE).min(self.batch.members.len())).collect();
        self.resend_all_at = now.saturating_add(self.resend.next());
        self.next = now.saturating_add(self.check_interval());
        self.send_parts(now);
    }

    /// How often unanswered parts are checked.
    fn check_interval(&self) -> Duration {
        self.resend.interval().checked_div(8).unwrap_or_default()
    }

    /// Sends parts until as many as may be are in flight.
    fn send_parts(&mut self, now: Duration) {
        while self.sent_parts.iter().filter(|(_, at)| at.is_some()).count() < MAX_PARTS
            && let Some(part) = self.parts.pop_front()
        {
            if self.unfinished(part.clone()).next().is_some() {
                self.sent_parts.push((part.clone(), Some(now)));
                self.send(part);
            }
        }
    }

    /// Leaves the members that are not done to their tasks.
    fn leave(&mut self, range: Range<usize>) {
        self.batch.leave(self.unfinished(range.clone()));
        self.finish(range);
    }

    fn finish(&mut self, range: Range<usize>) {
        self.sent_parts.retain(|(part, _)| *part != range);
        self.is_done.get_mut(range).into_iter().flatten().for_each(|done| *done = true);
    }
}

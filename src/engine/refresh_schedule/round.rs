//! One refresh of a batch: sent as one request, in parts, or left to its leases.

use std::{collections::VecDeque, mem, ops::Range, sync::Arc, time::Duration};

use tracing::debug;

use super::batch::{Batch, BatchReply, EACH, Member, at_risk};
use crate::{
    Deadline, Error,
    engine::{
        in_flight::{InFlight, Resend, attempt_life},
        retry::Backoff,
    },
    record::{BatchRequest, lease_refs},
};

/// How often a batch may fail at once before it is split.
const MAX_FAILURES: u32 = 3;

/// The most leases of a part of a batch. If some of a part are over, or one of it cannot be refreshed, each asks by itself.
const PART: usize = 64;

/// The most parts that are under way at once. A store that is slow is not sent all of a batch a second time at once.
const MAX_PARTS: usize = 8;

/// One refresh of a batch.
///
/// A request that is not answered, or fails after a long time, may wait for one record that cannot be written, as by an
/// open transaction. So the leases are asked for again in small parts, a few parts at a time. If the store answers some of the
/// parts, the leases of those it does not answer ask by themselves; if it answers none, all are one request again.
pub(super) struct BatchRound<'a> {
    batch: &'a Batch,
    /// Which of them are refreshed, or ask by themselves.
    is_done: Vec<bool>,
    pub(super) sent: InFlight<BatchReply>,
    /// When, on the clock, it is sent again.
    pub(super) next: Duration,
    /// When it was sent first, and how many leases were under way then.
    began: Duration,
    under_way: u32,
    resend: Resend,
    backoff: Backoff,
    failures: u32,
    /// Whether it is asked for in parts.
    is_split: bool,
    /// The parts that were not sent.
    parts: VecDeque<Range<usize>>,
    /// Those that were sent and are not done, and when they were sent; `None` if the request has failed.
    sent_parts: Vec<(Range<usize>, Option<Duration>)>,
    /// How long the slowest part took that was answered.
    slowest: Option<Duration>,
    /// When all of it is sent again if no part is answered.
    all_again: Duration,
}

impl<'a> BatchRound<'a> {
    pub(super) fn begin(batch: &'a Batch, now: Duration) -> Self {
        let under_way = batch.schedules.under_way();
        // Many requests at once would wait for connections that a slow network takes long to open.
        let round_trips = batch.members.iter().map(|member| member.hold.round_trip());
        let usual = round_trips.max().unwrap_or_default().mul_f64(1.5);
        let mut round = Self {
            batch,
            is_done: vec![false; batch.members.len()],
            sent: InFlight::default(),
            next: now,
            began: now,
            under_way,
            resend: Resend::of(batch.ttl, EACH.saturating_mul(under_way)).no_sooner(usual),
            backoff: Backoff::new(),
            failures: 0,
            is_split: false,
            parts: VecDeque::new(),
            sent_parts: Vec::new(),
            slowest: None,
            all_again: Duration::MAX,
        };
        round.send_all(now);
        round
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_done.iter().all(|done| *done)
    }

    /// Those of some that are not done.
    pub(super) fn open(&self, some: Range<usize>) -> impl Iterator<Item = &'a Member> {
        let open = self.batch.members.iter().zip(&self.is_done).skip(some.start).take(some.len());
        open.filter(|(_, is_done)| !**is_done).map(|(member, _)| member)
    }

    fn all(&self) -> Range<usize> {
        0..self.batch.members.len()
    }

    fn send_all(&mut self, now: Duration) {
        self.send(self.all());
        self.next = now.saturating_add(self.resend.next());
    }

    /// Sends one refresh of these, as far as they still hold and are not done.
    fn send(&mut self, some: Range<usize>) {
        let members: Vec<Member> = self.open(some.clone()).filter(|member| member.hold.is_valid()).cloned().collect();
        if members.is_empty() {
            return self.finish(some);
        }
        let left = members.iter().map(|member| member.hold.remaining()).max().unwrap_or_default();
        let (schedules, ttl) = (Arc::clone(&self.batch.schedules), self.batch.ttl);
        self.sent.push(Box::pin(async move {
            let leases = lease_refs(members.iter().map(|Member { hold, .. }| (hold.key.clone(), hold.token)));
            let sent = schedules.context.clock().now();
            let joint = BatchRequest::Keep { ttl: ttl.millis() };
            let kept = schedules
                .context
                .store
                .apply_batch(&leases, &joint, Deadline::after(schedules.context.clock(), attempt_life(left)))
                .await;
            debug!(leases = members.len(), ?kept, "refreshed together");
            BatchReply { some, sent, members, kept }
        }));
    }

    pub(super) fn answered(&mut self, answer: BatchReply, now: Duration) {
        self.batch.note_answer(&answer);
        let BatchReply { some, sent, kept, .. } = answer;
        let took = now.saturating_sub(sent);
        match kept {
            Ok(true) => {
                if self.sent_parts.iter().any(|(part, _)| *part == some) {
                    self.slowest = self.slowest.max(Some(took));
                } else if some == self.all() {
                    self.batch.schedules.note_took(took, self.under_way);
                }
                self.finish(some);
            }
            Ok(false) if some.len() <= PART => self.leave(some),
            Ok(false) => self.split(now),
            Err(Error::Unavailable { .. }) => {
                self.failures = self.failures.saturating_add(1);
                self.next = self.next.min(now.saturating_add(self.backoff.next()));
                self.sent_parts.iter_mut().filter(|(part, _)| *part == some).for_each(|(_, at)| *at = None);
                if took > self.batch.longest.mul_f64(0.5) || self.failures > MAX_FAILURES {
                    self.split(now);
                }
            }
            Err(error) => {
                at_risk(self.open(self.all()), &error);
                self.is_done.fill(true);
            }
        }
        self.send_parts(now);
    }

    /// It was not answered in time.
    pub(super) fn resend(&mut self, now: Duration) {
        if !self.is_split {
            self.next = self.patient_until(0.5);
            if self.next <= now {
                self.split(now);
            }
            return;
        }
        self.next = now.saturating_add(self.pace());
        if let Some(slowest) = self.slowest {
            let late_after = self.pace().max(slowest.saturating_mul(4));
            let late =
                self.sent_parts.extract_if(.., |(_, at)| at.is_none_or(|at| at.saturating_add(late_after) <= now));
            for (part, _) in late.collect::<Vec<_>>() {
                self.leave(part);
            }
            self.send_parts(now);
        } else if self.all_again.max(self.patient_until(0.75)) <= now
            || self.sent_parts.iter().all(|(_, at)| at.is_none())
        {
            self.send_all(now);
            self.all_again = self.next;
        }
    }

    /// Until when a store that is slow, but answers other batches, is sent nothing more: this part of the time to the deadlines
    /// at most.
    fn patient_until(&self, part: f64) -> Duration {
        let earliest = self.batch.members.iter().map(|member| member.hold.deadline()).min().unwrap_or_default();
        let longest = earliest.saturating_sub(self.began).mul_f64(part);
        self.began.saturating_add(self.batch.schedules.may_take(self.under_way).min(longest))
    }

    /// Asks for the leases in small parts, once.
    fn split(&mut self, now: Duration) {
        if mem::replace(&mut self.is_split, true) {
            return;
        }
        if self.batch.members.len() <= PART {
            return self.leave(self.all());
        }
        let starts = (0..self.batch.members.len()).step_by(PART);
        self.parts = starts.map(|start| start..start.saturating_add(PART).min(self.batch.members.len())).collect();
        self.all_again = now.saturating_add(self.resend.next());
        self.next = now.saturating_add(self.pace());
        self.send_parts(now);
    }

    /// How often parts are looked at that were sent and not answered.
    fn pace(&self) -> Duration {
        self.resend.interval().checked_div(8).unwrap_or_default()
    }

    /// Sends as many of the parts that were not sent as may be under way.
    fn send_parts(&mut self, now: Duration) {
        while self.sent_parts.iter().filter(|(_, at)| at.is_some()).count() < MAX_PARTS
            && let Some(part) = self.parts.pop_front()
        {
            if self.open(part.clone()).next().is_some() {
                self.sent_parts.push((part.clone(), Some(now)));
                self.send(part);
            }
        }
    }

    /// Lets those ask by themselves that are not done.
    fn leave(&mut self, some: Range<usize>) {
        self.batch.leave(self.open(some.clone()));
        self.finish(some);
    }

    fn finish(&mut self, some: Range<usize>) {
        self.sent_parts.retain(|(part, _)| *part != some);
        self.is_done.get_mut(some).into_iter().flatten().for_each(|done| *done = true);
    }
}

//! One refresh of a batch: sent as one request, in parts, or left to its leases.

use std::{mem, ops::Range, sync::Arc, time::Duration};

use tracing::debug;

use super::{Answer, Batch, EACH, at_risk};
use crate::{
    Error,
    hold::Hold,
    in_flight::{InFlight, Resend, attempt_life},
    record::{Joint, named},
    retry::Backoff,
};

/// How often a batch may fail at once before it is split.
const MAX_FAILURES: u32 = 3;

/// The most leases of a part of a batch. If some of a part are over, or one of it cannot be refreshed, each asks by itself.
const PART: usize = 64;

/// One refresh of a batch.
///
/// A request that is not answered, or fails after a long time, may wait for one record that cannot be written, as by an
/// open transaction. So the leases are asked for again in small parts. If the store answers some of the parts, the leases of
/// the others ask by themselves; if it answers none, all are one request again.
pub(super) struct Round<'a> {
    batch: &'a Batch,
    holds: &'a [Arc<Hold>],
    /// Which of them are refreshed, or ask by themselves.
    is_done: Vec<bool>,
    pub(super) sent: InFlight<Answer>,
    /// When, on the clock, it is sent again.
    pub(super) next: Duration,
    resend: Resend,
    backoff: Backoff,
    failures: u32,
    /// Whether the parts were asked for, and whether some of them were answered.
    is_split: bool,
    is_alive: bool,
}

impl<'a> Round<'a> {
    pub(super) fn begin(batch: &'a Batch, holds: &'a [Arc<Hold>], now: Duration) -> Self {
        let many = u32::try_from(holds.len()).unwrap_or(u32::MAX);
        // Many requests at once would wait for connections that a slow network takes long to open.
        let usual = holds.iter().map(|hold| hold.round_trip()).max().unwrap_or_default().mul_f64(1.5);
        let mut round = Self {
            batch,
            holds,
            is_done: vec![false; holds.len()],
            sent: InFlight::default(),
            next: now,
            resend: Resend::of(batch.ttl, EACH.saturating_mul(many)).no_sooner(usual),
            backoff: Backoff::new(),
            failures: 0,
            is_split: false,
            is_alive: false,
        };
        round.send_all(now);
        round
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_done.iter().all(|done| *done)
    }

    /// Those of some that are not done.
    pub(super) fn open(&self, some: Range<usize>) -> impl Iterator<Item = &'a Arc<Hold>> {
        let open = self.holds.iter().zip(&self.is_done).skip(some.start).take(some.len());
        open.filter(|(_, is_done)| !**is_done).map(|(hold, _)| hold)
    }

    fn send_all(&mut self, now: Duration) {
        self.send(0..self.holds.len());
        self.next = now.saturating_add(self.resend.next());
    }

    /// Sends one refresh of these, as far as they still hold and are not done.
    fn send(&mut self, some: Range<usize>) {
        let holds: Vec<_> = self.open(some.clone()).filter(|hold| hold.is_valid()).map(Arc::clone).collect();
        if holds.is_empty() {
            return self.finish(some);
        }
        let left = holds.iter().map(|hold| hold.remaining()).max().unwrap_or_default();
        let (inner, ttl) = (Arc::clone(&self.batch.inner), self.batch.ttl);
        self.sent.push(Box::pin(async move {
            let leases = named(holds.iter().map(|hold| (hold.key.clone(), hold.token)));
            let sent = inner.clock().now();
            let joint = Joint::Keep { ttl: ttl.millis() };
            let kept = inner.store.apply_jointly(&leases, &joint, attempt_life(left)).await;
            debug!(leases = holds.len(), ?kept, "refreshed together");
            Answer { some, sent, holds, kept }
        }));
    }

    pub(super) fn answered(&mut self, answer: Answer, now: Duration) {
        self.batch.note_answer(&answer);
        let Answer { some, sent, kept, .. } = answer;
        match kept {
            Ok(true) => {
                self.is_alive = self.is_split;
                self.finish(some);
            }
            Ok(false) if some.len() <= PART => self.leave(some),
            Ok(false) => self.split(now),
            Err(Error::Unavailable { .. }) => {
                self.failures = self.failures.saturating_add(1);
                let took = now.saturating_sub(sent);
                self.next = self.next.min(now.saturating_add(self.backoff.next()));
                if took > self.batch.longest.mul_f64(0.5) || self.failures > MAX_FAILURES {
                    self.split(now);
                }
            }
            Err(error) => {
                at_risk(self.open(0..self.holds.len()), &error);
                self.is_done.fill(true);
            }
        }
    }

    /// It was not answered in time.
    pub(super) fn resend(&mut self, now: Duration) {
        if self.is_alive || (self.is_split && self.holds.len() <= PART) {
            self.leave(0..self.holds.len());
        } else if self.is_split {
            self.send_all(now);
        } else {
            self.split(now);
        }
    }

    /// Asks for the leases in small parts, once.
    fn split(&mut self, now: Duration) {
        if mem::replace(&mut self.is_split, true) {
            return;
        }
        if self.holds.len() <= PART {
            return self.leave(0..self.holds.len());
        }
        for start in (0..self.holds.len()).step_by(PART) {
            self.send(start..start.saturating_add(PART).min(self.holds.len()));
        }
        self.next = now.saturating_add(self.resend.next());
    }

    /// Lets those ask by themselves that are not done.
    fn leave(&mut self, some: Range<usize>) {
        self.batch.note(self.open(some.clone()), |member| member.apart = true);
        self.finish(some);
    }

    fn finish(&mut self, some: Range<usize>) {
        self.is_done.get_mut(some).into_iter().flatten().for_each(|done| *done = true);
    }
}

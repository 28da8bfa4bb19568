//! What the keeper of a handle has to do, and when: its leases as plain data.
//!
//! Purpose: a hundred thousand leases need few timers and few requests, and a locked record costs no other lease.
//!
//! Mechanism: each lease is in one [`Stage`]:
//!
//! ```text
//!           due                    permit                  confirmed
//! Waiting ───────► Due ──────────────────► Sent in a part ───────────► Waiting
//!    │                                      ▲  │ one of the part not refreshed, or late again
//!    │      late, or large and failed: Late ┘  │
//!    │ due, and is refreshed alone             ▼        permit                confirmed
//!    └─────────────────────────────────────► Queued ───────────► Sent alone ──────────► Waiting
//!                                               ▲                     │ failed, or late
//!                                               └─────────────────────┘
//! ```
//!
//! Leases with one ttl are a [`Class`], whose failures delay no other class. A part is a request for leases of
//! a class: those that are due, the earliest deadlines first, and those past half of their interval. So after one interval,
//! leases that were acquired one by one share parts. A part has up to [`PART`] leases, or, if the store wants that, hundreds: it
//! is a large one then.
//!
//! - If a part of up to [`PART`] leases does not refresh them all, each of them is refreshed alone. In the queue for that, leases
//!   that were not tried come first, and then the earliest deadlines.
//! - The leases of a part that is late, of a large part that does not refresh them all, and of a part that a release overtook
//!   take what comes first, a place in another part or in that queue: if an answer waits for a new connection, too few would be
//!   refreshed alone in time. The second time, each of them is refreshed alone.
//! - After a large part that failed, the class sends none for a ttl, and each time for twice as long. After one that a release
//!   overtook, its leases are due again, and the class sends none for a sixteenth of the ttl.
//!
//! Parts and single refreshes take permits, which bound them to their shares of the connections. An attempt keeps its
//! permit until it ends: its connection is in use. A late attempt loses it if an attempt that was sent after it is
//! answered, because then its connection is dead. While nothing at all is answered, single refreshes without a permit
//! probe the store, and an answer frees the others.
//!
//! A refresh that a holder requests is sent alone until one of its attempts is confirmed. The first confirmation counts, also
//! that of an attempt before: the new deadline is the ttl after that attempt was sent.
//!
//! Invariants: each part has a fate of its own. Leases that failed take at most half of the permits, so others get a turn.
//! Nothing here wakes or calls anyone, so all of it can be done under one lock.

mod class;
mod kept;
mod pace;

use std::{collections::BTreeMap, mem, sync::Arc};

use class::Class;
pub(crate) use kept::Kept;
use kept::{Reply, Stage};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    engine::{lease_inner::LeaseInner, mailbox::RefreshCommand},
    store::pool::PART,
    types::{
        clock::Clock,
        deadline::Deadline,
        error::{Error, LossCause, Result},
        instant::Instant,
        metadata::Metadata,
        token::HybridTime,
        ttl::Ttl,
    },
};

/// The leases that a keeper keeps, by the numbers of their acquires.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// The most leases of a part that the store wants.
    part_size: usize,
    leases: BTreeMap<u64, Kept>,
    /// A handle has few, so each look at what is due visits all.
    classes: BTreeMap<Ttl, Class>,
    /// The number of the last attempt. They are in the order in which they were sent.
    attempts: u64,
}

/// What a keeper has to do.
#[derive(Default)]
pub(crate) struct Todo {
    /// The leases whose time is over, and why. They are on the schedule no more.
    pub(crate) lost: Vec<(Kept, LossCause)>,
    /// The leases whose refreshes are unanswered for too long.
    pub(crate) silent: Vec<Arc<LeaseInner>>,
    /// The refreshes for holders that were not confirmed in time, and their last errors.
    pub(crate) unconfirmed: Vec<Reply>,
    /// The hybrid time from which to listen for revocations, for leases that are held for a while now.
    pub(crate) listen_since: Option<HybridTime>,
    /// The classes that probe the store.
    pub(crate) probes: Vec<Ttl>,
    /// The class that waits longest for the permit of a part.
    pub(crate) part: Option<Ttl>,
    /// The class that waits longest to refresh a lease alone, and that whose first such lease has failed before.
    pub(crate) single: Option<Ttl>,
    pub(crate) retry: Option<Ttl>,
    /// When to look again.
    pub(crate) next: Instant,
}

/// Several leases that are refreshed by one request.
pub(crate) struct Part {
    pub(crate) ttl: Ttl,
    number: u64,
    /// By the numbers of their acquires.
    pub(crate) members: Vec<(u64, Arc<LeaseInner>)>,
    pub(crate) deadline: Deadline,
}

impl Part {
    fn is_large(&self) -> bool {
        self.members.len() > PART
    }
}

/// How a part ended, for its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartEnd {
    /// All are refreshed, by a request that was sent at this time.
    Confirmed(Instant),
    /// One at least is not refreshed.
    Partial,
    /// One at least is not refreshed, and one has ended here: its release may have come before the part.
    Overtaken,
    /// The store has not answered.
    Unanswered,
    /// The store refuses the request.
    Refused,
}

/// One refresh of one lease.
pub(crate) struct Single {
    class: Ttl,
    number: u64,
    acquire: u64,
    /// The refresh for the holder of which it is an attempt.
    pub(crate) round: Option<u32>,
    pub(crate) lease: Arc<LeaseInner>,
    pub(crate) ttl: Ttl,
    pub(crate) metadata: Option<Metadata>,
    /// The deadline of the lease when the attempt was sent.
    pub(crate) ends_at: Instant,
    pub(crate) deadline: Deadline,
}

/// How a single refresh ended: when it was sent, if it is confirmed. `None`: the lease is over, or was confirmed too late. An error:
/// the store has not answered, or refuses it.
pub(crate) type SingleEnd = Result<Option<Instant>>;

impl Schedule {
    /// For a store that wants parts of this size.
    pub(crate) fn new(part_size: usize) -> Self {
        Self { part_size, ..Self::default() }
    }

    /// Adds a lease, by the number of its acquire. The request that granted it was sent at `sent`.
    pub(crate) fn add(&mut self, number: u64, kept: Kept) {
        self.leases.insert(number, kept);
        self.update(number, |_| {});
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Takes out a lease that has ended.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Kept> {
        let kept = self.leases.remove(&number)?;
        Class::in_need(&mut self.classes, kept.ttl).take_out(number, &kept);
        Some(kept)
    }

    /// Takes out up to so many leases.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Kept> {
        let numbers: Vec<_> = self.leases.keys().copied().take(most).collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// Takes out all leases, and forgets the attempts in flight.
    pub(crate) fn clear(&mut self) -> Vec<Kept> {
        mem::replace(self, Self::new(self.part_size)).leases.into_values().collect()
    }

    /// Queues a refresh for the holder. If the lease has ended, the reply is dropped.
    pub(crate) fn request(&mut self, number: u64, now: Instant, command: Box<RefreshCommand>) {
        self.update(number, |kept| kept.request(now, command));
    }

    /// Looks again when to check a lease.
    pub(crate) fn recheck(&mut self, number: u64) {
        self.update(number, |_| {});
    }

    /// The class of this ttl, which is checked next.
    fn class(&mut self, ttl: Ttl) -> &mut Class {
        Class::in_need(&mut self.classes, ttl)
    }

    /// Changes a lease, and notes where it waits and when to check it.
    fn update(&mut self, number: u64, change: impl FnOnce(&mut Kept)) {
        let Some(kept) = self.leases.get_mut(&number) else { return };
        Class::in_need(&mut self.classes, kept.ttl).take_out(number, kept);
        change(kept);
        kept.check_at = kept.next_check();
        Class::in_need(&mut self.classes, kept.ttl).put_in(number, kept);
    }

    /// Changes those of these leases that were sent with this attempt and not since.
    fn update_sent(&mut self, attempt: u64, numbers: impl IntoIterator<Item = u64>, change: impl Fn(&mut Kept)) {
        for number in numbers {
            if self.leases.get(&number).is_some_and(|kept| kept.stage == Stage::Sent(attempt)) {
                self.update(number, &change);
            }
        }
    }

    /// Finds what to do now.
    pub(crate) fn collect(&mut self, now: Instant) -> Todo {
        let mut todo = Todo::default();
        let due = self.classes.iter().filter(|(_, class)| class.check_at <= now);
        for ttl in due.map(|(ttl, _)| *ttl).collect::<Vec<_>>() {
            self.check_class(ttl, now, &mut todo);
        }
        todo.next = Instant::MAX;
        let [mut part, mut single, mut retry] = [(Instant::MAX, None); 3];
        for (ttl, class) in &self.classes {
            let queue = if class.has_failed { &mut retry } else { &mut single };
            for (longest, since) in [(&mut part, class.part_at), (queue, class.queued_since)] {
                if let Some(since) = since.filter(|since| *since < longest.0) {
                    *longest = (since, Some(*ttl));
                }
            }
            todo.next = todo.next.min(class.check_at);
        }
        (todo.part, todo.single, todo.retry) = (part.1, single.1, retry.1);
        todo
    }

    /// Checks the leases of a class that are due for it, and finds what the class has to send.
    fn check_class(&mut self, ttl: Ttl, now: Instant, todo: &mut Todo) {
        let Some(class) = self.classes.get_mut(&ttl) else { return };
        let (late, retry) = (class.attempts.take_late(now), class.pace.retry);
        for (attempt, numbers) in late {
            if numbers.len() > PART {
                self.class(ttl).record_large_failure(now);
            }
            let act = if numbers.len() == 1 { |kept: &mut Kept, now| kept.queue(now, true) } else { Kept::share_again };
            self.update_sent(attempt, numbers, |kept| act(kept, now));
        }
        while let Some((check_at, number)) = self.classes.get(&ttl).and_then(|class| class.checks.first().copied())
            && check_at <= now
        {
            match self.leases.get(&number).and_then(|kept| kept.find_loss(now)) {
                Some(cause) => todo.lost.extend(self.remove(number).map(|kept| (kept, cause))),
                None => self.update(number, |kept| kept.check(now, retry, todo)),
            }
        }
        let Some(class) = self.classes.get_mut(&ttl) else { return };
        if class.checks.is_empty() && class.attempts.is_empty() {
            self.classes.remove(&ttl);
            return;
        }
        let single = class.first_queued().and_then(|number| self.leases.get(&number));
        class.has_failed = single.is_some_and(|kept| kept.failures > 0);
        let (part_at, probe_at) = class.send_times(now, single.is_some());
        class.part_at = part_at.filter(|at| *at <= now);
        if probe_at.is_some_and(|at| at <= now) {
            todo.probes.push(ttl);
        }
        let later = [part_at, probe_at, class.attempts.late_after(now)].into_iter().flatten().filter(|at| *at > now);
        let next = class.checks.first().map_or(Instant::MAX, |(check_at, _)| *check_at);
        class.check_at = later.fold(next, Instant::min);
    }

    /// Notes that these leases of a class are sent. Returns the number of the attempt.
    fn send(
        &mut self,
        (ttl, now): (Ttl, Instant),
        late_at: Instant,
        numbers: Vec<u64>,
        permits: Vec<OwnedSemaphorePermit>,
    ) -> u64 {
        self.attempts = self.attempts.saturating_add(1);
        let attempt = self.attempts;
        for number in &numbers {
            self.update(*number, |kept| {
                kept.begin(now);
                kept.stage = Stage::Sent(attempt);
            });
        }
        self.class(ttl).attempts.add(attempt, late_at, numbers, permits);
        attempt
    }

    /// The leases of a part: those that are due, the earliest deadlines first, and those that are ready. One lease
    /// is no part, and is queued. So is one that must be refreshed alone to listen for revocations: the answer to a
    /// single refresh has a hybrid time from which to listen, and the answer to a part has none.
    fn take_part(&mut self, now: Instant, ttl: Ttl, is_listener_missing: bool) -> Vec<u64> {
        let Some(class) = self.classes.get(&ttl) else { return Vec::new() };
        // An interval is at most half of the ttl, and a lease that is ready is past half of its interval.
        let ready_until = now.after(ttl.duration().checked_div(4).unwrap_or_default());
        let ready = class.checks.iter().take_while(|(check_at, _)| *check_at <= ready_until).map(|(_, number)| *number);
        let is_open = !class.has_late();
        let ready = ready.filter(|number| is_open && self.leases.get(number).is_some_and(|other| other.is_ready(now)));
        let mut numbers: Vec<u64> = class.due().chain(ready).take(class.part_size(now, self.part_size)).collect();
        // The longest round trip counts for all leases of a part, so a large one has none that took long.
        let is_slow =
            |number: &u64| self.leases.get(number).is_some_and(|kept| kept.lease.round_trip() > class.pace.limit);
        if numbers.len() > PART && numbers.iter().any(is_slow) {
            numbers.truncate(PART);
        }
        if numbers.len() == 1 || (is_listener_missing && !numbers.is_empty()) {
            self.update(numbers.swap_remove(0), |kept| kept.queue(now, false));
        }
        numbers
    }

    /// Takes the next part of a class, if there are leases for it.
    pub(crate) fn send_part(
        &mut self,
        ttl: Ttl,
        clock: Clock,
        permits: Vec<OwnedSemaphorePermit>,
        is_listener_missing: bool,
    ) -> Option<Part> {
        let now = clock.now();
        self.class(ttl).due_since = None;
        let numbers = self.take_part(now, ttl, is_listener_missing);
        let member = |number: &u64| Some((*number, Arc::clone(&self.leases.get(number)?.lease)));
        let mut members: Vec<_> = numbers.iter().filter_map(member).collect();
        let until = members.iter().map(|(_, lease)| lease.deadline()).max()?;
        let round_trip = members.iter().map(|(_, lease)| lease.round_trip()).max()?;
        let class = self.class(ttl);
        let pace = class.pace;
        let (limit, late) = pace.times(true, round_trip, class.part_failures);
        let number = self.send((ttl, now), now.after(late), numbers, permits);
        // Keys that are neighbours are stored close to each other, too.
        members.sort_unstable_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        Some(Part { ttl, number, members, deadline: pace.deadline(clock, until, limit) })
    }

    /// Notes how a part ended. `confirmed`: its leases whose deadlines have been moved.
    pub(crate) fn end_part(&mut self, part: &Part, end: PartEnd, confirmed: &[u64], now: Instant) {
        let class = self.class(part.ttl);
        let retry = class.pace.retry;
        class.end_part(part, end, now);
        let numbers = part.members.iter().map(|(number, _)| *number);
        match end {
            PartEnd::Confirmed(sent) => {
                for number in confirmed {
                    self.update(*number, |kept| kept.record_confirmed(sent));
                }
            }
            PartEnd::Partial if part.is_large() => {
                self.update_sent(part.number, numbers, |kept| kept.share_again(now));
            }
            PartEnd::Partial => self.update_sent(part.number, numbers, |kept| kept.queue(now, false)),
            PartEnd::Overtaken if !part.is_large() => {
                self.update_sent(part.number, numbers, |kept| kept.share_again(now));
            }
            PartEnd::Overtaken | PartEnd::Unanswered => {
                self.update_sent(part.number, numbers, |kept| kept.stage = Stage::Due(kept.lease.deadline()));
            }
            PartEnd::Refused => self.update_sent(part.number, numbers, |kept| kept.wait_for_interval(now, retry)),
        }
    }

    /// Takes the first lease of a class that waits to be refreshed alone.
    pub(crate) fn send_single(
        &mut self,
        class: Ttl,
        clock: Clock,
        permits: Vec<OwnedSemaphorePermit>,
    ) -> Option<Single> {
        let now = clock.now();
        let waiting = self.class(class);
        waiting.queued_since = None;
        let (pace, acquire) = (waiting.pace, waiting.first_queued()?);
        let kept = self.leases.get_mut(&acquire)?;
        let lease = Arc::clone(&kept.lease);
        let ends_at = lease.deadline();
        let (limit, late) = pace.times(false, lease.round_trip(), kept.failures);
        let (round, ttl, metadata, until) = kept.send_alone(ends_at);
        let number = self.send((class, now), now.after(late), vec![acquire], permits);
        let deadline = pace.deadline(clock, until, limit);
        Some(Single { class, number, acquire, round, lease, ttl, metadata, ends_at, deadline })
    }

    /// Whether an error of this attempt puts its lease at risk: not if another was confirmed meanwhile, because then this one
    /// only had too little time, and not if it was for a holder that no longer waits for it.
    pub(crate) fn is_risk(&self, single: &Single) -> bool {
        let current = self.leases.get(&single.acquire).and_then(Kept::round);
        (single.round.is_none() || single.round == current) && single.lease.deadline() <= single.ends_at
    }

    /// Notes how a single refresh ended. Returns the reply to the holder, and whether the handle listens for revocations of the
    /// lease.
    pub(crate) fn end_single(&mut self, single: &Single, end: SingleEnd, now: Instant) -> (Option<Reply>, bool) {
        let is_answered = !matches!(end, Ok(None) | Err(Error::Unavailable { .. }));
        let class = self.class(single.class);
        let retry = class.pace.retry;
        class.attempts.end(single.number, is_answered);
        let mut effect = (None, false);
        self.update(single.acquire, |kept| {
            effect = (kept.end_single(single, end, now, retry), kept.listen_at.is_none());
        });
        effect
    }
}

#[cfg(test)]
mod tests;

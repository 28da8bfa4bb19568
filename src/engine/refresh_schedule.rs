//! The schedules by which a handle refreshes its leases.
//!
//! Purpose: a hundred thousand leases need few timers and few requests, and a locked record costs no other lease.
//!
//! Mechanism: leases with one ttl whose tasks are on one runtime share a [`Schedule`], which one task runs. Each lease is
//! in one [`Stage`]:
//!
//! ```text
//!           due                    permit                  confirmed
//! Waiting ───────► Due ──────────────────► Sent in a part ───────────► Waiting
//!    │                                         │ one of the part not refreshed, or late
//!    │ due, and is refreshed alone             ▼        permit                confirmed
//!    └─────────────────────────────────────► Queued ───────────► Sent alone ──────────► Waiting
//!                                               ▲                     │ failed, or late
//!                                               └─────────────────────┘
//! ```
//!
//! A part is a request for up to [`PART`] leases: those that are due, the earliest deadlines first, and those past half
//! of their interval. So after one interval, leases that were acquired one by one share parts. If a part does not refresh
//! all its leases, or is late, each of them is refreshed alone by its task. In the queue for that, leases that were not
//! tried come first, and then the earliest deadlines.
//!
//! Parts and single refreshes take permits, which bound them to their shares of the connections. An attempt keeps its
//! permit until it ends: its connection is in use. A late attempt loses it if an attempt that was sent after it is
//! answered, because then its connection is dead. While nothing at all is answered, single refreshes without a permit
//! probe the store, and an answer frees the others.
//!
//! Invariants: each part has a fate of its own. Leases that failed take at most half of the permits, so others get a turn.
//! The task of a schedule reads the clock every two seconds, so it notices that the machine was suspended.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
};

use crate::{
    Deadline, Error, Ttl,
    engine::{
        context::Context,
        in_flight::{InFlight, attempt_life},
        lease_shared::LeaseShared,
        notifier::Notifier,
        refresh::{self, PartAnswer},
        retry,
        single_attempt::SingleAttempt,
    },
    record::lease_refs,
    store::{BoxFuture, pool::RefreshPermits},
};

/// The most leases of a part. With 64 or more, MongoDB takes the same time for each lease. If one lease of a part cannot be
/// refreshed, 63 others are refreshed alone.
const PART: usize = 64;

/// The times of a schedule. Between a refresh, at a third of the ttl, and the deadline are two thirds of the ttl.
///
/// - The store gives a part up after `limit`, a sixteenth of the ttl, and a single refresh after half of that, because
///   a record that is not locked is written in milliseconds. So if 120 of 300 leases are locked, and all of them come
///   first, 8 single refreshes at a time have tried all after 15/32 of the ttl, and a sixteenth was lost before. A second
///   is enough for any ttl.
/// - After each failure the limit doubles, up to three times, and it is never less than the last round trip, so that a
///   slow store can answer.
/// - An attempt is late after twice that time: the answer of a store that gave up has come by then. Over a slow network it
///   is late after one and a half round trips. Of a round trip, 5 seconds count, the longest that a lease outlasts.
/// - While nothing is answered, a probe goes out each twelfth of the ttl, but at least every 2.5 seconds: eight until
///   the deadline, which keep eight connections at most.
/// - Whatever the store refuses is sent again after a tenth of the ttl.
/// - A part that is not full waits for a 128th of the ttl, 50 ms at most: leases that were acquired together are due
///   together, and over a slow network each part of one or two would keep a permit for a round trip.
#[derive(Clone, Copy, Debug)]
struct Pace {
    limit: Duration,
    probe: Duration,
    retry: Duration,
    gather: Duration,
}

impl Pace {
    fn of(ttl: Ttl) -> Self {
        let part = |of: u32| ttl.duration().checked_div(of).unwrap_or_default();
        Self {
            limit: part(16).min(Duration::from_secs(1)),
            probe: part(12).min(Duration::from_millis(2_500)),
            retry: part(10),
            gather: part(128).min(Duration::from_millis(50)),
        }
    }

    /// How long the store may work on a part or a single refresh after so many failures, and after which time it is late,
    /// if the last round trip was this.
    fn times(&self, is_part: bool, round_trip: Duration, failures: u32) -> (Duration, Duration) {
        let round_trip = round_trip.min(Duration::from_secs(5));
        let limit = self.limit.mul_f64(if is_part { 1.0 } else { 0.5 }).saturating_mul(1 << failures.min(3));
        (limit.max(round_trip), limit.saturating_mul(2).max(round_trip.mul_f64(1.5)))
    }
}

/// The schedules of a handle.
#[derive(Debug)]
pub(crate) struct Schedules {
    context: Arc<Context>,
    notifier: Arc<Notifier>,
    permits: Arc<RefreshPermits>,
    by_kind: Mutex<HashMap<Kind, Arc<Schedule>>>,
}

/// Which leases share a schedule: those with one ttl whose tasks are on one runtime. So a runtime that is not driven
/// stops only its own leases.
type Kind = (Ttl, Option<runtime::Id>);

/// The schedule of the leases of one kind.
#[derive(Debug)]
struct Schedule {
    ttl: Ttl,
    pace: Pace,
    leases: Mutex<ScheduledLeases>,
    changed: Notify,
}

/// The leases of a schedule, by the numbers of their slots.
#[derive(Debug, Default)]
struct ScheduledLeases {
    slots: u64,
    by_slot: HashMap<u64, Scheduled>,
    /// When, on the clock, each lease is checked next.
    checks: BTreeSet<(Duration, u64)>,
    /// The deadlines of the leases that wait for a part.
    due: BTreeSet<(Duration, u64)>,
    /// The leases that wait to be refreshed alone: whether they have failed, and their deadlines.
    queue: BTreeSet<(bool, Duration, u64)>,
    attempts: Attempts,
    /// How many parts have failed since one was answered, and when, on the clock, the next may be sent.
    part_failures: u32,
    parts_from: Duration,
    /// Since when, on the clock, leases wait for a part.
    due_since: Option<Duration>,
    /// Since when, on the clock, leases wait to be refreshed alone, and none was.
    queued_since: Option<Duration>,
}

/// A lease on a schedule.
#[derive(Debug)]
struct Scheduled {
    lease: Arc<LeaseShared>,
    spec: ScheduleSpec,
    /// When it is checked next, as in [`ScheduledLeases::checks`].
    check_at: Duration,
    stage: Stage,
    /// Whether it is refreshed alone until a refresh is confirmed.
    is_alone: bool,
    /// Whether its holder waits for a refresh.
    is_requested: bool,
    /// How many of its single refreshes have failed since one was confirmed.
    failures: u32,
    /// When it is at risk if no refresh is confirmed. `None`: it is not being refreshed.
    risk_at: Option<Duration>,
}

/// The stage of a lease's refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not due.
    Waiting,
    /// It waits for a part, in [`ScheduledLeases::due`].
    Due(Duration),
    /// It waits to be refreshed alone, in [`ScheduledLeases::queue`].
    Queued(bool, Duration),
    /// It was sent with the attempt of this number.
    Sent(u64),
}

/// The attempts in flight, by their numbers, which are in the order in which they were sent.
#[derive(Debug, Default)]
struct Attempts {
    last: u64,
    /// The last one that was answered.
    answered: u64,
    in_flight: BTreeMap<u64, Attempt>,
}

#[derive(Debug)]
struct Attempt {
    late_at: Duration,
    /// The slots of its leases. None: it is late.
    slots: Vec<u64>,
    _permits: Vec<OwnedSemaphorePermit>,
}

/// How a lease is scheduled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduleSpec {
    pub(crate) ttl: Ttl,
    /// The time between two refreshes. `None`: only its holder requests them.
    pub(crate) interval: Option<Duration>,
    /// Whether its task refreshes it alone each time.
    pub(crate) is_single: bool,
    /// Whether its handle has listened for a revocation of it.
    pub(crate) has_listened: bool,
    /// When, on the clock, the last confirmed request was sent.
    pub(crate) sent: Duration,
    /// When the next refresh is due.
    pub(crate) due_at: Duration,
}

/// What a schedule has to do.
#[derive(Default)]
struct Todo {
    lapsed: Vec<Arc<LeaseShared>>,
    silent: Vec<Arc<LeaseShared>>,
    wants_part: bool,
    /// Whether the lease to refresh alone has failed before.
    single: Option<bool>,
    is_probe_due: bool,
    /// When, on the clock, to check again. `None`: there are no leases.
    next: Option<Duration>,
}

/// The leases of a part, by their slots, and the answer to the part with this number.
type Members = Vec<(u64, Arc<LeaseShared>)>;
type PartReply = (u64, Members, PartAnswer);

impl Scheduled {
    /// Begins a refresh, if none has begun.
    fn begin(&mut self, now: Duration) {
        let Self { lease, spec, risk_at, .. } = self;
        risk_at.get_or_insert_with(|| now.saturating_add(lease.risk_after(spec.ttl)));
    }

    /// Queues it to be refreshed alone.
    fn queue(&mut self, now: Duration, has_failed: bool) {
        self.begin(now);
        self.is_alone = true;
        self.failures = self.failures.saturating_add(u32::from(has_failed));
        self.stage = Stage::Queued(self.failures > 0, self.lease.deadline());
    }

    /// Notes a confirmed request that was sent at `sent`.
    fn note_confirmed(&mut self, sent: Duration) {
        if sent < self.spec.sent {
            return;
        }
        self.spec.sent = sent;
        self.failures = 0;
        self.risk_at = None;
        if !self.is_requested {
            self.is_alone = false;
            self.wait_at_least_until(Duration::ZERO);
        }
    }

    /// Waits for its interval, and not less than until `soon`.
    fn wait_at_least_until(&mut self, soon: Duration) {
        let next = |interval| self.spec.sent.saturating_add(interval).max(soon);
        self.spec.due_at = self.spec.interval.map_or(Duration::MAX, next);
        self.stage = Stage::Waiting;
    }

    /// Whether a part that is sent now may take the lease before it is due.
    fn is_ready(&self, now: Duration) -> bool {
        let half = self.spec.interval.and_then(|interval| interval.checked_div(2));
        self.stage == Stage::Waiting
            && !self.spec.is_single
            && !self.is_alone
            && half.is_some_and(|half| self.spec.sent.saturating_add(half) <= now)
            && self.lease.is_valid()
    }
}

impl Attempts {
    /// Ends an attempt. If it was answered, late ones that were sent before it lose their permits.
    fn end(&mut self, number: u64, is_answered: bool) {
        self.in_flight.remove(&number);
        if is_answered {
            self.answered = self.answered.max(number);
            self.in_flight.retain(|other, attempt| *other > number || !attempt.slots.is_empty());
        }
    }

    /// Takes the leases of the attempts that are late now.
    fn take_late(&mut self, now: Duration) -> Vec<(u64, Vec<u64>)> {
        let (answered, mut late) = (self.answered, Vec::new());
        self.in_flight.retain(|number, attempt| {
            if attempt.slots.is_empty() || attempt.late_at > now {
                return true;
            }
            late.push((*number, mem::take(&mut attempt.slots)));
            *number > answered
        });
        late
    }
}

impl ScheduledLeases {
    /// Changes the entry of a lease, and notes where it waits and when to check it.
    fn update<T>(&mut self, slot: u64, change: impl FnOnce(&mut Scheduled) -> T) -> Option<T> {
        let scheduled = self.by_slot.get_mut(&slot)?;
        let before = scheduled.stage;
        let changed = change(scheduled);
        if before != scheduled.stage {
            match before {
                Stage::Due(deadline) => self.due.remove(&(deadline, slot)),
                Stage::Queued(has_failed, deadline) => self.queue.remove(&(has_failed, deadline, slot)),
                Stage::Waiting | Stage::Sent(_) => true,
            };
            match scheduled.stage {
                Stage::Due(deadline) => self.due.insert((deadline, slot)),
                Stage::Queued(has_failed, deadline) => self.queue.insert((has_failed, deadline, slot)),
                Stage::Waiting | Stage::Sent(_) => true,
            };
        }
        self.checks.remove(&(scheduled.check_at, slot));
        let Scheduled { lease, spec, risk_at, .. } = &*scheduled;
        let due_at = Some(spec.due_at).filter(|_| scheduled.stage == Stage::Waiting);
        scheduled.check_at = due_at.into_iter().chain(*risk_at).fold(lease.deadline(), Duration::min);
        self.checks.insert((scheduled.check_at, slot));
        Some(changed)
    }

    /// Notes that these leases are sent. Returns the number of the attempt.
    fn send(&mut self, now: Duration, late_at: Duration, slots: Vec<u64>, permits: Vec<OwnedSemaphorePermit>) -> u64 {
        let number = self.attempts.last.saturating_add(1);
        self.attempts.last = number;
        for slot in &slots {
            self.update(*slot, |scheduled| {
                scheduled.begin(now);
                scheduled.stage = Stage::Sent(number);
            });
        }
        self.attempts.in_flight.insert(number, Attempt { late_at, slots, _permits: permits });
        number
    }

    /// Changes the entries of those of these leases that were sent with this attempt and not since.
    fn update_sent(&mut self, number: u64, slots: impl IntoIterator<Item = u64>, change: impl Fn(&mut Scheduled)) {
        for slot in slots {
            self.update(slot, |scheduled| (scheduled.stage == Stage::Sent(number)).then(|| change(scheduled)));
        }
    }

    fn remove(&mut self, slot: u64) -> Option<Arc<LeaseShared>> {
        self.update(slot, |scheduled| scheduled.stage = Stage::Waiting);
        let Scheduled { lease, check_at, .. } = self.by_slot.remove(&slot)?;
        self.checks.remove(&(check_at, slot));
        Some(lease)
    }

    /// Collects the leases that have expired or are at risk, moves those that are due or late, and finds what to send.
    fn collect(&mut self, now: Duration, pace: Pace) -> Todo {
        let mut todo = Todo::default();
        for (number, slots) in self.attempts.take_late(now) {
            let is_single = slots.len() == 1;
            self.update_sent(number, slots, |scheduled| scheduled.queue(now, is_single));
        }
        while let Some((check_at, slot)) = self.checks.first().copied()
            && check_at <= now
        {
            if self.by_slot.get(&slot).is_some_and(|scheduled| scheduled.lease.remaining().is_zero()) {
                // Its task ends it.
                todo.lapsed.extend(self.remove(slot));
                continue;
            }
            self.update(slot, |scheduled| {
                if let Some(risk_at) = scheduled.risk_at.as_mut().filter(|at| **at <= now) {
                    *risk_at = Duration::MAX;
                    todo.silent.push(Arc::clone(&scheduled.lease));
                }
                if scheduled.stage == Stage::Waiting && scheduled.spec.due_at <= now {
                    if scheduled.spec.is_single || scheduled.is_alone {
                        scheduled.queue(now, false);
                    } else {
                        scheduled.begin(now);
                        scheduled.stage = Stage::Due(scheduled.lease.deadline());
                    }
                }
            });
        }
        let first = self.queue.first().copied();
        self.queued_since = first.map(|_| self.queued_since.unwrap_or(now));
        let is_silent = self.attempts.in_flight.values().all(|attempt| attempt.slots.is_empty());
        let probe_at = self.queued_since.filter(|_| is_silent).map(|since| since.saturating_add(pace.probe));
        let gather = if self.due.len() < PART && self.by_slot.len() > 1 { pace.gather } else { Duration::ZERO };
        self.due_since = (!self.due.is_empty()).then(|| self.due_since.unwrap_or(now));
        let part_at = self.due_since.map(|since| since.saturating_add(gather).max(self.parts_from));
        todo.wants_part = part_at.is_some_and(|at| at <= now);
        todo.single = first.map(|(has_failed, ..)| has_failed);
        todo.is_probe_due = probe_at.is_some_and(|at| at <= now);
        let late_at = self.attempts.in_flight.values().map(|attempt| attempt.late_at);
        let later = late_at.chain(part_at).filter(|at| *at > now).chain(probe_at);
        todo.next = self.checks.first().map(|(check_at, _)| later.fold(*check_at, Duration::min));
        todo
    }

    /// Takes the leases of a part: those that are due, the earliest deadlines first, and those that are ready. One lease
    /// is no part, and is queued. So is one that must be refreshed alone to listen for revocations: the answer to a
    /// single refresh has a tick from which to listen, and the answer to a part has none.
    fn take_part(&mut self, now: Duration, ttl: Ttl, is_listener_missing: bool) -> Members {
        let ready_until = now.saturating_add(ttl.duration().checked_div(4).unwrap_or_default());
        let ready = self.checks.iter().take_while(|(check_at, _)| *check_at <= ready_until).map(|(_, slot)| *slot);
        let ready = ready.filter(|slot| self.by_slot.get(slot).is_some_and(|scheduled| scheduled.is_ready(now)));
        let mut slots: Vec<u64> = self.due.iter().map(|(_, slot)| *slot).chain(ready).take(PART).collect();
        let listens = |slot: &u64| self.by_slot.get(slot).is_some_and(|scheduled| scheduled.spec.has_listened);
        let is_single = |slot: &u64| slots.len() == 1 || (is_listener_missing && listens(slot));
        if let Some(single) = slots.iter().position(is_single) {
            self.update(slots.swap_remove(single), |scheduled| scheduled.queue(now, false));
        }
        let member = |slot| Some((slot, Arc::clone(&self.by_slot.get(&slot)?.lease)));
        slots.into_iter().filter_map(member).collect()
    }
}

impl Schedule {
    fn leases(&self) -> MutexGuard<'_, ScheduledLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the schedule until it has no leases: leases that are due are refreshed, and those that have expired end.
    async fn run(self: Arc<Self>, schedules: Arc<Schedules>, kind: Kind) {
        let Schedules { context, permits, .. } = &*schedules;
        let clock = context.clock();
        let (parts, singles, retries) = (permits.parts.here(), permits.singles.here(), permits.retries.here());
        let mut sent = InFlight::default();
        loop {
            let now = clock.now();
            let todo = self.leases().collect(now, self.pace);
            for lease in todo.lapsed {
                lease.commands.end_expired();
            }
            for lease in todo.silent {
                lease.note_at_risk(&refresh::unanswered_error());
            }
            if todo.is_probe_due {
                self.send_single(now, Vec::new());
                continue;
            }
            if todo.next.is_none() && schedules.forget_if_empty(kind) {
                return;
            }
            tokio::select! {
                biased;
                () = context.closing.cancelled() => return,
                reply = sent.next(), if !sent.is_empty() => self.handle_part(context, reply),
                Ok(permit) = Arc::clone(&parts).acquire_owned(), if todo.wants_part => {
                    if let Some(part) = self.send_part(&schedules, permit) {
                        sent.push(part);
                    }
                }
                permits = acquire(&singles, Some(&retries).filter(|_| todo.single == Some(true))), if todo.single.is_some() => {
                    self.send_single(clock.now(), permits);
                }
                () = self.changed.notified() => {}
                () = clock.sleep_until(todo.next.unwrap_or(Duration::MAX)) => {}
            }
        }
    }

    /// Sends the first lease of the queue, which its task refreshes alone.
    fn send_single(self: &Arc<Self>, now: Duration, permits: Vec<OwnedSemaphorePermit>) {
        let mut leases = self.leases();
        leases.queued_since = None;
        let first = leases.queue.first().and_then(|(_, _, slot)| Some((*slot, leases.by_slot.get(slot)?)));
        let Some((slot, Scheduled { lease, failures, .. })) = first else { return };
        let (limit, late) = self.pace.times(false, lease.round_trip(), *failures);
        let lease = Arc::clone(lease);
        let number = leases.send(now, now.saturating_add(late), vec![slot], permits);
        drop(leases);
        lease.commands.refresh_single(Box::new(Permission { schedule: Arc::clone(self), slot, number, limit }));
    }

    /// Sends one part, if there are leases for it.
    fn send_part(&self, schedules: &Schedules, permit: OwnedSemaphorePermit) -> Option<BoxFuture<PartReply>> {
        let Schedules { context, notifier, .. } = schedules;
        let now = context.clock().now();
        let mut leases = self.leases();
        leases.due_since = None;
        let mut members = leases.take_part(now, self.ttl, notifier.is_listener_missing(now));
        let until = members.iter().map(|(_, lease)| lease.deadline()).max()?;
        let round_trip = members.iter().map(|(_, lease)| lease.round_trip()).max()?;
        let (limit, late) = self.pace.times(true, round_trip, leases.part_failures);
        let slots = members.iter().map(|(slot, _)| *slot).collect();
        let number = leases.send(now, now.saturating_add(late), slots, vec![permit]);
        drop(leases);
        // Keys that are neighbours are stored close to each other, too.
        members.sort_unstable_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        let (context, ttl) = (Arc::clone(context), self.ttl);
        Some(Box::pin(async move {
            let named = lease_refs(members.iter().map(|(_, lease)| (lease.key.clone(), lease.token)));
            let life = attempt_life(until.saturating_sub(now));
            let deadline = Deadline::after(context.clock(), life).with_work_limit(limit);
            let answer = refresh::attempt_part(&context, &named, ttl, deadline).await;
            (number, members, answer)
        }))
    }

    /// Notes the answer to a part.
    fn handle_part(&self, context: &Context, (number, members, answer): PartReply) {
        let PartAnswer { sent, refreshed, span } = answer;
        let now = context.clock().now();
        let until = sent.saturating_add(context.settings.validity(self.ttl));
        // Before the lock is taken: a change of a deadline or a state wakes the followers of the lease.
        let mut confirmed = Vec::new();
        match &refreshed {
            Ok(true) => confirmed.extend(members.iter().filter_map(|(slot, lease)| {
                lease.note_round_trip(now.saturating_sub(sent));
                (lease.extend_deadline(until) && lease.is_valid()).then_some(*slot)
            })),
            Ok(false) => {}
            // If a later request was confirmed for a lease, this error changes nothing.
            Err(error) => refresh::record_error(&span, error, || {
                let doubtful = members.iter().filter(|(_, lease)| lease.deadline() < until && lease.is_valid());
                doubtful.filter(|(_, lease)| lease.note_at_risk(error)).count() > 0
            }),
        }
        let slots = members.iter().map(|(slot, _)| *slot);
        let mut leases = self.leases();
        leases.attempts.end(number, !matches!(refreshed, Err(Error::Unavailable { .. })));
        match refreshed {
            Ok(true) => {
                leases.part_failures = 0;
                for slot in confirmed {
                    leases.update(slot, |scheduled| scheduled.note_confirmed(sent));
                }
            }
            Ok(false) => leases.update_sent(number, slots, |scheduled| scheduled.queue(now, false)),
            Err(Error::Unavailable { .. }) => {
                leases.part_failures = leases.part_failures.saturating_add(1);
                leases.parts_from = now.saturating_add(retry::delay_after(leases.part_failures));
                leases.update_sent(number, slots, |scheduled| scheduled.stage = Stage::Due(scheduled.lease.deadline()));
            }
            Err(_refused) => {
                let soon = now.saturating_add(self.pace.retry);
                leases.update_sent(number, slots, |scheduled| scheduled.wait_at_least_until(soon));
            }
        }
    }
}

/// Waits for the permits of a single refresh. That of a lease that has failed before needs one of the retries, too.
async fn acquire(singles: &Arc<Semaphore>, retries: Option<&Arc<Semaphore>>) -> Vec<OwnedSemaphorePermit> {
    let mut permits = Vec::new();
    for semaphore in retries.into_iter().chain([singles]) {
        permits.extend(Arc::clone(semaphore).acquire_owned().await);
    }
    permits
}

impl Schedules {
    pub(crate) fn new(context: Arc<Context>, notifier: Arc<Notifier>, permits: Arc<RefreshPermits>) -> Self {
        Self { context, notifier, permits, by_kind: Mutex::default() }
    }

    fn by_kind(&self) -> MutexGuard<'_, HashMap<Kind, Arc<Schedule>>> {
        self.by_kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a schedule that has no leases. Returns whether it did.
    fn forget_if_empty(&self, kind: Kind) -> bool {
        let mut schedules = self.by_kind();
        schedules.retain(|other, schedule| *other != kind || !schedule.leases().by_slot.is_empty());
        !schedules.contains_key(&kind)
    }
}

/// The place of a lease on a schedule. Dropping it gives the place up.
#[derive(Debug)]
pub(crate) struct Slot {
    schedule: Arc<Schedule>,
    number: u64,
    /// The ttl of the schedule.
    pub(crate) ttl: Ttl,
    pub(crate) is_single: bool,
}

impl Slot {
    /// Takes a place for a lease. Its task calls this.
    pub(crate) fn take(schedules: &Arc<Schedules>, lease: &Arc<LeaseShared>, spec: ScheduleSpec) -> Self {
        let (ttl, is_single) = (spec.ttl, spec.is_single);
        let kind = (ttl, Handle::try_current().ok().map(|runtime| runtime.id()));
        // Under this lock, so that the schedule is not removed meanwhile.
        let mut by_kind = schedules.by_kind();
        let schedule = Arc::clone(by_kind.entry(kind).or_insert_with(|| {
            let schedule =
                Arc::new(Schedule { ttl, pace: Pace::of(ttl), leases: Mutex::default(), changed: Notify::new() });
            schedules.context.spawn(Arc::clone(&schedule).run(Arc::clone(schedules), kind));
            schedule
        }));
        let mut leases = schedule.leases();
        leases.slots = leases.slots.saturating_add(1);
        let number = leases.slots;
        let entry = Scheduled {
            lease: Arc::clone(lease),
            spec,
            check_at: Duration::MAX,
            stage: Stage::Waiting,
            is_alone: false,
            is_requested: false,
            failures: 0,
            risk_at: None,
        };
        leases.by_slot.insert(number, entry);
        leases.update(number, |_| ());
        let is_first = leases.checks.first().is_some_and(|(_, first)| *first == number);
        drop(leases);
        drop(by_kind);
        if is_first {
            schedule.changed.notify_one();
        }
        Self { schedule, number, ttl, is_single }
    }

    /// Notes that the handle has listened for a revocation of the lease.
    pub(crate) fn note_listened(&self) {
        self.schedule.leases().update(self.number, |scheduled| scheduled.spec.has_listened = true);
    }

    /// Queues a refresh for the holder, beside any that is under way.
    pub(crate) fn request(&self, now: Duration) {
        self.schedule.leases().update(self.number, |scheduled| {
            scheduled.is_requested = true;
            scheduled.queue(now, false);
        });
        self.schedule.changed.notify_one();
    }

    /// Ends the refresh for the holder, which was not confirmed.
    pub(crate) fn withdraw(&self, now: Duration) {
        let soon = now.saturating_add(self.schedule.pace.retry);
        self.schedule.leases().update(self.number, |scheduled| {
            scheduled.is_requested = false;
            scheduled.risk_at = scheduled.risk_at.filter(|_| scheduled.spec.interval.is_some());
            scheduled.wait_at_least_until(soon);
        });
        self.schedule.changed.notify_one();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.schedule.leases().remove(self.number);
        self.schedule.changed.notify_one();
    }
}

/// An attempt to refresh a lease of a schedule alone.
#[derive(Debug)]
struct Permission {
    schedule: Arc<Schedule>,
    slot: u64,
    number: u64,
    limit: Duration,
}

impl SingleAttempt for Permission {
    fn limit(&self) -> Duration {
        self.limit
    }

    fn confirm(&self, sent: Duration, is_done: bool) {
        let mut leases = self.schedule.leases();
        leases.attempts.end(self.number, true);
        leases.update(self.slot, |scheduled| {
            scheduled.is_requested &= !is_done;
            scheduled.note_confirmed(sent);
        });
    }

    fn fail(&self, now: Duration) {
        self.schedule.leases().update_sent(self.number, [self.slot], |scheduled| {
            scheduled.failures = scheduled.failures.saturating_add(1);
            scheduled.spec.due_at = now.saturating_add(retry::delay_after(scheduled.failures));
            scheduled.stage = Stage::Waiting;
        });
    }

    fn refuse(&self, now: Duration, is_done: bool) {
        let soon = now.saturating_add(self.schedule.pace.retry);
        let mut leases = self.schedule.leases();
        leases.attempts.end(self.number, true);
        leases.update_sent(self.number, [self.slot], |scheduled| {
            scheduled.is_requested &= !is_done;
            scheduled.wait_at_least_until(soon);
        });
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        self.schedule.leases().attempts.end(self.number, false);
        self.schedule.changed.notify_one();
    }
}

#[cfg(test)]
mod tests;

//! The schedules by which a handle refreshes its leases.
//!
//! Purpose: a hundred thousand leases need few timers and few requests, and a locked record costs no other lease.
//!
//! Mechanism: leases with one ttl share a [`Schedule`], which one task runs. Each lease is in one [`Stage`]:
//!
//! ```text
//!           due                    permit                  confirmed
//! Waiting ───────► Due ──────────────────► Sent in a part ───────────► Waiting
//!    │                                      ▲  │ one of the part not refreshed, or late again
//!    │                   late once: Late ───┘  │
//!    │ due, and is refreshed alone             ▼        permit                confirmed
//!    └─────────────────────────────────────► Queued ───────────► Sent alone ──────────► Waiting
//!                                               ▲                     │ failed, or late
//!                                               └─────────────────────┘
//! ```
//!
//! A part is a request for up to [`PART`] leases: those that are due, the earliest deadlines first, and those past half
//! of their interval. So after one interval, leases that were acquired one by one share parts. If a part does not refresh
//! all its leases, or is late for the second time, each of them is refreshed alone by its task. In the queue for that, leases
//! that were not tried come first, and then the earliest deadlines.
//!
//! The leases of a part that is late once take what comes first, a place in another part or in that queue: if an answer
//! waits for a new connection, too few would be refreshed alone in time. So do those of a part that a release overtook.
//!
//! Parts and single refreshes take permits, which bound them to their shares of the connections. An attempt keeps its
//! permit until it ends: its connection is in use. A late attempt loses it if an attempt that was sent after it is
//! answered, because then its connection is dead. While nothing at all is answered, single refreshes without a permit
//! probe the store, and an answer frees the others.
//!
//! Invariants: each part has a fate of its own. Leases that failed take at most half of the permits, so others get a turn.
//! The task of a schedule reads the clock every two seconds, so it notices that the machine was suspended.

mod pace;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use pace::Pace;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{
    engine::{
        command_queue::SingleAttempt,
        context::Context,
        in_flight,
        lease_inner::LeaseInner,
        notifier::Notifier,
        refresh::{self, PartAnswer},
        retry,
    },
    record::lease_refs,
    store::{BoxFuture, pool::RefreshPermits},
    types::{
        clock::Clock,
        deadline::Deadline,
        error::{Error, LossCause},
        lock::lock,
        reading::Reading,
        ttl::Ttl,
    },
};

/// The most leases of a part. With the default pool, eight single refreshes at a time have tried all leases of a part after
/// a quarter of the ttl. MongoDB takes the same time for each lease of a larger part.
const PART: usize = 64;

/// The schedules of a handle.
#[derive(Debug)]
pub(crate) struct Schedules {
    context: Arc<Context>,
    notifier: Arc<Notifier>,
    permits: Arc<RefreshPermits>,
    by_ttl: Mutex<HashMap<Ttl, Arc<Schedule>>>,
}

/// The schedule of the leases with one ttl.
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
    /// When each lease is checked next.
    checks: BTreeSet<(Reading, u64)>,
    /// The leases that wait for a permit: first those in [`Stage::Due`], then those in [`Stage::Queued`].
    waits: BTreeSet<(Stage, u64)>,
    attempts: Attempts,
    /// How many parts have failed since one was answered, and when the next may be sent.
    part_failures: u32,
    parts_from: Reading,
    /// Since when leases wait for a part.
    due_since: Option<Reading>,
    /// Since when leases wait to be refreshed alone, and none was.
    queued_since: Option<Reading>,
}

/// A lease on a schedule.
#[derive(Debug)]
struct Scheduled {
    lease: Arc<LeaseInner>,
    spec: ScheduleSpec,
    /// When it is checked next, as in [`ScheduledLeases::checks`].
    check_at: Reading,
    stage: Stage,
    /// Whether it is refreshed alone until a refresh is confirmed.
    is_alone: bool,
    /// Whether a part of it was late since a refresh was confirmed.
    was_late: bool,
    /// Whether its holder waits for a refresh.
    is_requested: bool,
    /// How many of its single refreshes have failed since one was confirmed.
    failures: u32,
    /// When it is at risk if no refresh is confirmed. `None`: it is not being refreshed.
    risk_at: Option<Reading>,
}

/// The stage of a lease's refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The lease waits for a part. The earliest deadline comes first.
    Due(Reading),
    /// The lease waits for a part, or to be refreshed alone. The earliest deadline comes first.
    Late(Reading),
    /// The lease waits to be refreshed alone. Whether it has failed, and its deadline.
    Queued(bool, Reading),
    /// The lease was sent with the attempt of this number.
    Sent(u64),
    /// The lease is not due.
    Waiting,
}

/// Where the stages begin in [`ScheduledLeases::waits`].
const LATE: (Stage, u64) = (Stage::Late(Reading::ORIGIN), 0);
const QUEUED: (Stage, u64) = (Stage::Queued(false, Reading::ORIGIN), 0);

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
    late_at: Reading,
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
    /// When the last confirmed request was sent.
    pub(crate) sent: Reading,
    /// When the next refresh is due.
    pub(crate) due_at: Reading,
}

/// What a schedule has to do.
#[derive(Default)]
struct Todo {
    lapsed: Vec<Arc<LeaseInner>>,
    silent: Vec<Arc<LeaseInner>>,
    wants_part: bool,
    /// Whether the lease to refresh alone has failed before.
    single: Option<bool>,
    is_probe_due: bool,
    /// When to check again. `None`: there are no leases.
    next: Option<Reading>,
}

/// The leases of a part, by their slots, and the answer to the part with this number.
type Members = Vec<(u64, Arc<LeaseInner>)>;
type PartReply = (u64, Members, PartAnswer);

impl Scheduled {
    fn new(lease: Arc<LeaseInner>, spec: ScheduleSpec) -> Self {
        let (check_at, stage, [is_alone, was_late, is_requested]) = (Reading::MAX, Stage::Waiting, [false; 3]);
        Self { lease, spec, check_at, stage, is_alone, was_late, is_requested, failures: 0, risk_at: None }
    }

    /// Begins a refresh, if none has begun.
    fn begin(&mut self, now: Reading) {
        let Self { lease, spec, risk_at, .. } = self;
        risk_at.get_or_insert_with(|| now.after(lease.risk_after(spec.ttl)));
    }

    /// Queues it to be refreshed alone.
    fn queue(&mut self, now: Reading, has_failed: bool) {
        self.begin(now);
        self.is_alone = true;
        self.failures = self.failures.saturating_add(u32::from(has_failed));
        self.stage = Stage::Queued(self.failures > 0, self.lease.deadline());
    }

    /// Lets it share another part, or be refreshed alone. Its part was late, or was overtaken by a release.
    fn share_again(&mut self, now: Reading) {
        if mem::replace(&mut self.was_late, true) {
            self.queue(now, false);
        } else {
            self.stage = Stage::Late(self.lease.deadline());
        }
    }

    /// Notes a confirmed request that was sent at `sent`.
    fn record_confirmed(&mut self, sent: Reading) {
        if sent < self.spec.sent {
            return;
        }
        self.spec.sent = sent;
        (self.failures, self.risk_at, self.was_late) = (0, None, false);
        if !self.is_requested {
            self.is_alone = false;
            self.wait_for_interval(Reading::ORIGIN, Duration::ZERO);
        }
    }

    /// Waits for its interval, and from now on for `retry` at least. A lease without expiry has no other bound on `retry`
    /// than its interval.
    fn wait_for_interval(&mut self, now: Reading, retry: Duration) {
        let next = |interval| self.spec.sent.after(interval).max(now.after(retry.min(interval)));
        self.spec.due_at = self.spec.interval.map_or(Reading::MAX, next);
        self.stage = Stage::Waiting;
    }

    /// Whether a part that is sent now may take the lease before it is due.
    fn is_ready(&self, now: Reading) -> bool {
        let half = self.spec.interval.and_then(|interval| interval.checked_div(2));
        self.stage == Stage::Waiting
            && !self.spec.is_single
            && !self.is_alone
            && half.is_some_and(|half| self.spec.sent.after(half) <= now)
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
    fn take_late(&mut self, now: Reading) -> Vec<(u64, Vec<u64>)> {
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
    fn update(&mut self, slot: u64, change: impl FnOnce(&mut Scheduled)) {
        let Some(scheduled) = self.by_slot.get_mut(&slot) else { return };
        let before = scheduled.stage;
        change(scheduled);
        self.waits.remove(&(before, slot));
        if matches!(scheduled.stage, Stage::Due(_) | Stage::Late(_) | Stage::Queued(..)) {
            self.waits.insert((scheduled.stage, slot));
        }
        self.checks.remove(&(scheduled.check_at, slot));
        let Scheduled { lease, spec, risk_at, .. } = &*scheduled;
        let due_at = Some(spec.due_at).filter(|_| scheduled.stage == Stage::Waiting);
        scheduled.check_at = due_at.into_iter().chain(*risk_at).fold(lease.deadline(), Reading::min);
        self.checks.insert((scheduled.check_at, slot));
    }

    /// Notes that these leases are sent. Returns the number of the attempt.
    fn send(&mut self, now: Reading, late_at: Reading, slots: Vec<u64>, permits: Vec<OwnedSemaphorePermit>) -> u64 {
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
            if self.by_slot.get(&slot).is_some_and(|scheduled| scheduled.stage == Stage::Sent(number)) {
                self.update(slot, &change);
            }
        }
    }

    /// Adds a lease to the schedule. Returns its slot.
    fn add(&mut self, lease: Arc<LeaseInner>, spec: ScheduleSpec) -> u64 {
        self.slots = self.slots.saturating_add(1);
        self.by_slot.insert(self.slots, Scheduled::new(lease, spec));
        self.update(self.slots, |_| {});
        self.slots
    }

    /// The slots of the leases that wait for a part, the earliest deadlines first. Those of late parts share one with no
    /// others.
    fn due(&self) -> impl Iterator<Item = u64> {
        let waits = if self.has_late() { LATE..QUEUED } else { (Stage::Due(Reading::ORIGIN), 0)..LATE };
        self.waits.range(waits).map(|(_, slot)| *slot)
    }

    fn has_late(&self) -> bool {
        self.waits.range(LATE..QUEUED).next().is_some()
    }

    /// The first lease that waits to be refreshed alone.
    fn first_queued(&self) -> Option<(u64, &Scheduled)> {
        let (_, slot) = self.waits.range(LATE..).next()?;
        Some((*slot, self.by_slot.get(slot)?))
    }

    fn remove(&mut self, slot: u64) -> Option<Arc<LeaseInner>> {
        self.update(slot, |scheduled| scheduled.stage = Stage::Waiting);
        let Scheduled { lease, check_at, .. } = self.by_slot.remove(&slot)?;
        self.checks.remove(&(check_at, slot));
        Some(lease)
    }

    /// Collects the leases that have expired or are at risk, moves those that are due or late, and finds what to send.
    fn collect(&mut self, now: Reading, pace: Pace) -> Todo {
        let mut todo = Todo::default();
        for (number, slots) in self.attempts.take_late(now) {
            let act = if slots.len() == 1 {
                |lease: &mut Scheduled, now| lease.queue(now, true)
            } else {
                Scheduled::share_again
            };
            self.update_sent(number, slots, |lease| act(lease, now));
        }
        while let Some((check_at, slot)) = self.checks.first().copied()
            && check_at <= now
        {
            if self.by_slot.get(&slot).is_some_and(|scheduled| scheduled.lease.remaining().is_zero()) {
                todo.lapsed.extend(self.remove(slot));
                continue;
            }
            self.update(slot, |scheduled| {
                if let Some(risk_at) = scheduled.risk_at.as_mut().filter(|at| **at <= now) {
                    *risk_at = Reading::MAX;
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
        todo.single = self.first_queued().map(|(_, scheduled)| scheduled.failures > 0);
        self.queued_since = todo.single.map(|_| self.queued_since.unwrap_or(now));
        let is_silent = self.attempts.in_flight.values().all(|attempt| attempt.slots.is_empty());
        let probe_at = self.queued_since.filter(|_| is_silent).map(|since| since.after(pace.probe()));
        let due = self.due().take(PART).count();
        let gather = if due < PART && self.by_slot.len() > 1 { pace.limit.mul_f64(0.125) } else { Duration::ZERO };
        self.due_since = (due > 0).then(|| self.due_since.unwrap_or(now));
        let part_at = self.due_since.map(|since| since.after(gather).max(self.parts_from));
        todo.wants_part = part_at.is_some_and(|at| at <= now);
        todo.is_probe_due = probe_at.is_some_and(|at| at <= now);
        let late_at = self.attempts.in_flight.values().map(|attempt| attempt.late_at);
        let later = late_at.chain(part_at).filter(|at| *at > now).chain(probe_at);
        todo.next = self.checks.first().map(|(check_at, _)| later.fold(*check_at, Reading::min));
        todo
    }

    /// Takes the leases of a part: those that are due, the earliest deadlines first, and those that are ready. One lease
    /// is no part, and is queued. So is one that must be refreshed alone to listen for revocations: the answer to a
    /// single refresh has a tick from which to listen, and the answer to a part has none.
    fn take_part(&mut self, now: Reading, ttl: Ttl, is_listener_missing: bool) -> Members {
        // An interval is at most half of the ttl, and a lease that is ready is past half of its interval.
        let ready_until = now.after(ttl.duration().checked_div(4).unwrap_or_default());
        let ready = self.checks.iter().take_while(|(check_at, _)| *check_at <= ready_until).map(|(_, slot)| *slot);
        let is_open = !self.has_late();
        let ready = ready.filter(|slot| is_open && self.by_slot.get(slot).is_some_and(|other| other.is_ready(now)));
        let mut slots: Vec<u64> = self.due().chain(ready).take(PART).collect();
        if slots.len() == 1 || (is_listener_missing && !slots.is_empty()) {
            self.update(slots.swap_remove(0), |scheduled| scheduled.queue(now, false));
        }
        let member = |slot| Some((slot, Arc::clone(&self.by_slot.get(&slot)?.lease)));
        slots.into_iter().filter_map(member).collect()
    }
}

impl Schedule {
    /// Runs the schedule until it has no leases: leases that are due are refreshed, and those that have expired end.
    async fn run(self: Arc<Self>, schedules: Arc<Schedules>) {
        let Schedules { context, permits, .. } = &*schedules;
        let clock = context.clock();
        let [parts, singles, retries] = [&permits.parts, &permits.singles, &permits.retries];
        let mut sent = Vec::new();
        loop {
            let now = clock.now();
            let todo = lock(&self.leases).collect(now, self.pace);
            for lease in todo.lapsed {
                lease.lose(LossCause::Expired);
            }
            for lease in todo.silent {
                lease.record_at_risk(&refresh::unanswered_error());
            }
            if todo.is_probe_due {
                self.send_single(clock, Vec::new());
                continue;
            }
            if todo.next.is_none() && schedules.forget_if_empty(self.ttl) {
                return;
            }
            tokio::select! {
                biased;
                () = context.closing.cancelled() => return,
                reply = in_flight::next_answer(&mut sent), if !sent.is_empty() => self.handle_part(context, reply),
                Ok(permit) = Arc::clone(parts).acquire_owned(), if todo.wants_part => {
                    if let Some(part) = self.send_part(&schedules, permit) {
                        sent.push(part);
                    }
                }
                permits = acquire(singles, Some(retries).filter(|_| todo.single == Some(true))), if todo.single.is_some() => {
                    self.send_single(clock, permits);
                }
                () = self.changed.notified() => {}
                () = clock.sleep_until(todo.next.unwrap_or(Reading::MAX)) => {}
            }
        }
    }

    /// Sends the first lease of the queue, which its task refreshes alone.
    fn send_single(self: &Arc<Self>, clock: Clock, permits: Vec<OwnedSemaphorePermit>) {
        let (now, mut leases) = (clock.now(), lock(&self.leases));
        leases.queued_since = None;
        let Some((slot, Scheduled { lease, failures, .. })) = leases.first_queued() else { return };
        let (limit, late) = self.pace.times(false, lease.round_trip(), *failures);
        let (lease, schedule) = (Arc::clone(lease), Arc::clone(self));
        let number = leases.send(now, now.after(late), vec![slot], permits);
        drop(leases);
        lease.commands.refresh_single(Box::new(Permission { schedule, slot, number, clock, limit }));
    }

    /// Sends one part, if there are leases for it.
    fn send_part(&self, schedules: &Schedules, permit: OwnedSemaphorePermit) -> Option<BoxFuture<PartReply>> {
        let Schedules { context, notifier, .. } = schedules;
        let now = context.clock().now();
        let mut leases = lock(&self.leases);
        leases.due_since = None;
        let mut members = leases.take_part(now, self.ttl, notifier.is_listener_missing(now));
        let until = members.iter().map(|(_, lease)| lease.deadline()).max()?;
        let round_trip = members.iter().map(|(_, lease)| lease.round_trip()).max()?;
        let (limit, late) = self.pace.times(true, round_trip, leases.part_failures);
        let slots = members.iter().map(|(slot, _)| *slot).collect();
        let number = leases.send(now, now.after(late), slots, vec![permit]);
        drop(leases);
        // Keys that are neighbours are stored close to each other, too.
        members.sort_unstable_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        let (context, ttl) = (Arc::clone(context), self.ttl);
        let deadline = self.pace.deadline(context.clock(), until, limit);
        Some(Box::pin(async move {
            let named = lease_refs(members.iter().map(|(_, lease)| (lease.key.clone(), lease.token)));
            let answer = refresh::attempt_part(&context, &named, ttl, deadline).await;
            (number, members, answer)
        }))
    }

    /// Notes the answer to a part.
    fn handle_part(&self, context: &Context, (number, members, answer): PartReply) {
        let PartAnswer { sent, refreshed, span } = answer;
        let now = context.clock().now();
        let until = sent.after(context.settings.validity(self.ttl));
        // Before the lock is taken: a change of a deadline or a state wakes the followers of the lease.
        let mut confirmed = Vec::new();
        match &refreshed {
            Ok(true) => confirmed.extend(members.iter().filter_map(|(slot, lease)| {
                lease.record_round_trip(now.since(sent));
                (lease.extend_deadline(until) && lease.is_valid()).then_some(*slot)
            })),
            Ok(false) => {}
            // If a later request was confirmed for a lease, this error changes nothing.
            Err(error) => refresh::record_error(&span, error, || {
                let doubtful = members.iter().filter(|(_, lease)| lease.deadline() < until && lease.is_valid());
                doubtful.filter(|(_, lease)| lease.record_at_risk(error)).count() > 0
            }),
        }
        let slots = members.iter().map(|(slot, _)| *slot);
        let mut leases = lock(&self.leases);
        leases.attempts.end(number, !matches!(refreshed, Err(Error::Unavailable { .. })));
        match refreshed {
            Ok(true) => {
                leases.part_failures = 0;
                for slot in confirmed {
                    leases.update(slot, |scheduled| scheduled.record_confirmed(sent));
                }
            }
            Ok(false) if members.iter().any(|(_, lease)| lease.ended.is_cancelled()) => {
                leases.update_sent(number, slots, |scheduled| scheduled.share_again(now));
            }
            Ok(false) => leases.update_sent(number, slots, |scheduled| scheduled.queue(now, false)),
            Err(Error::Unavailable { .. }) => {
                leases.part_failures = leases.part_failures.saturating_add(1);
                leases.parts_from = now.after(retry::delay_after(leases.part_failures));
                leases.update_sent(number, slots, |scheduled| scheduled.stage = Stage::Due(scheduled.lease.deadline()));
            }
            Err(_refused) => {
                leases.update_sent(number, slots, |scheduled| scheduled.wait_for_interval(now, self.pace.retry));
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
        Self { context, notifier, permits, by_ttl: Mutex::default() }
    }

    /// Removes a schedule that has no leases. Returns whether it did.
    fn forget_if_empty(&self, ttl: Ttl) -> bool {
        let mut schedules = lock(&self.by_ttl);
        schedules.retain(|other, schedule| *other != ttl || !lock(&schedule.leases).by_slot.is_empty());
        !schedules.contains_key(&ttl)
    }
}

/// The place of a lease on a schedule. Dropping it gives the place up.
#[derive(Debug)]
pub(crate) struct Slot {
    schedule: Arc<Schedule>,
    number: u64,
}

impl Slot {
    /// Takes a place for a lease. Its task calls this.
    pub(crate) fn take(schedules: &Arc<Schedules>, lease: &Arc<LeaseInner>, spec: ScheduleSpec) -> Self {
        let ttl = spec.ttl;
        // Under this lock, so that the schedule is not removed meanwhile.
        let mut by_ttl = lock(&schedules.by_ttl);
        let schedule = Arc::clone(by_ttl.entry(ttl).or_insert_with(|| {
            let schedule =
                Arc::new(Schedule { ttl, pace: Pace::of(ttl), leases: Mutex::default(), changed: Notify::new() });
            schedules.context.spawn(Arc::clone(&schedule).run(Arc::clone(schedules)));
            schedule
        }));
        let number = lock(&schedule.leases).add(Arc::clone(lease), spec);
        drop(by_ttl);
        schedule.changed.notify_one();
        Self { schedule, number }
    }

    /// Queues a refresh for the holder, beside any that is under way.
    pub(crate) fn request(&self, now: Reading) {
        lock(&self.schedule.leases).update(self.number, |scheduled| {
            scheduled.is_requested = true;
            scheduled.queue(now, false);
        });
        self.schedule.changed.notify_one();
    }

    /// Ends the refresh for the holder, which was not confirmed.
    pub(crate) fn withdraw(&self, now: Reading) {
        lock(&self.schedule.leases).update(self.number, |scheduled| {
            scheduled.is_requested = false;
            scheduled.risk_at = scheduled.risk_at.filter(|_| scheduled.spec.interval.is_some());
            scheduled.wait_for_interval(now, self.schedule.pace.retry);
        });
        self.schedule.changed.notify_one();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.schedule.leases).remove(self.number);
        self.schedule.changed.notify_one();
    }
}

/// An attempt to refresh a lease of a schedule alone.
#[derive(Debug)]
struct Permission {
    schedule: Arc<Schedule>,
    slot: u64,
    number: u64,
    clock: Clock,
    limit: Duration,
}

impl SingleAttempt for Permission {
    fn deadline(&self, until: Reading) -> Deadline {
        self.schedule.pace.deadline(self.clock, until, self.limit)
    }

    fn end(&self, now: Reading, answer: Result<Reading, &Error>, is_done: bool) {
        let mut leases = lock(&self.schedule.leases);
        leases.attempts.end(self.number, !matches!(answer, Err(Error::Unavailable { .. })));
        leases.update(self.slot, |scheduled| match answer {
            Ok(sent) => {
                scheduled.is_requested &= !is_done;
                scheduled.record_confirmed(sent);
            }
            Err(_) if scheduled.stage != Stage::Sent(self.number) => {}
            Err(Error::Unavailable { .. }) => {
                scheduled.failures = scheduled.failures.saturating_add(1);
                scheduled.spec.due_at = now.after(retry::delay_after(scheduled.failures));
                scheduled.stage = Stage::Waiting;
            }
            Err(_refused) => {
                scheduled.is_requested &= !is_done;
                scheduled.wait_for_interval(now, self.schedule.pace.retry);
            }
        });
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        lock(&self.schedule.leases).attempts.end(self.number, false);
        self.schedule.changed.notify_one();
    }
}

#[cfg(test)]
mod tests;

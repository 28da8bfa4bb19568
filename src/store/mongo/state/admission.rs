//! The bound of the requests that are under way.
//!
//! Purpose: the driver serves requests that wait for a connection in their order. A burst of acquires or reads, or acquires
//! of locked records, must not delay a refresh until its lease is lost. Beside a slow server, the driver must not fill up
//! with requests whose callers have given up: each later request would be sent after its own caller had given up, too.
//!
//! Mechanism: there are two classes, and each request but a refresh takes a permit. What asks for a lease, or reads without
//! one, waits at a gate, the oldest first, and then for one of the permits that leave some connections to what keeps leases.
//! Acquires and reads have gates of their own, because no lock keeps a read waiting.
//!
//! A request for a locked record waits at the server for as long as it may. If all of a small pool did, its refreshes would
//! share what is left. So nearly half of the permits of what asks are brisk: with one of them, the server gives an acquire up
//! soon, and it is sent again. What ends a lease, or writes or reads for its holder, takes one of its own permits or one that
//! is not brisk, and does not wait at a gate. A change stream takes a brisk one for as long as it is open, if one is free.
//!
//! Invariants: what keeps or ends a lease waits for no request that waits at the gate, and has a connection while all
//! others wait at the server. If a caller gives up while its request waits for a permit, the request is never sent. A request
//! keeps its permit until its command ends, or its time is over and it is not queued in the driver, also if its caller has
//! given up: the command keeps its connection.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::types::{
    deadline::Deadline,
    error::{Error, Result},
};

/// How long the server may work on an acquire with a brisk permit, unless acquires take long: a record that is not locked is
/// written in milliseconds.
const BRISK_LIMIT: Duration = Duration::from_millis(250);
const LONGEST_BRISK_LIMIT: Duration = Duration::from_secs(1);

/// How long a request keeps its permit at least, unless it ends.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// The permits of a client, and what its requests tell about the driver's queue.
pub(in crate::store::mongo) struct Admission {
    /// For what asks.
    steady: Arc<Semaphore>,
    brisk: Arc<Semaphore>,
    /// The right of an acquire, and of a read, to wait for a permit of what asks.
    acquires: Semaphore,
    reads: Semaphore,
    /// For what ends a lease, or writes or reads for its holder.
    ending: Arc<Semaphore>,
    order: Arc<Order>,
}

/// The order of the requests that had a permit.
#[derive(Default)]
struct Order {
    sent: AtomicU64,
    ended: AtomicU64,
    /// The number of the latest that has ended.
    latest: AtomicU64,
    /// How many milliseconds the last acquire took that changed its record.
    acquire_took: AtomicU64,
}

/// The right of a request to be under way.
pub(in crate::store::mongo) struct Admitted {
    permit: Permit,
    order: Arc<Order>,
}

/// A permit, and whether it is brisk.
pub(in crate::store::mongo) type Permit = (OwnedSemaphorePermit, bool);

type Waited = std::result::Result<Permit, AcquireError>;

/// The checks before the first request. Each takes several commands, so many callers must not check at the same time.
pub(in crate::store::mongo) struct Preflight {
    pub(in crate::store::mongo) admission: Admission,
    /// Whether a check has passed.
    pub(in crate::store::mongo) has_passed: AtomicBool,
}

impl Default for Preflight {
    /// Two at a time, so that one on a dead connection does not hold up the others.
    fn default() -> Self {
        Self { admission: Admission::new(2, 0), has_passed: AtomicBool::new(false) }
    }
}

impl Admission {
    /// For at most this many requests that ask, and this many beside them that end leases or are of holders.
    pub(in crate::store::mongo) fn new(asking: usize, ending: usize) -> Self {
        let steady = asking.div_ceil(2);
        let [steady, brisk, ending] = [steady, asking.saturating_sub(steady), ending]
            .map(|many| Arc::new(Semaphore::new(many.min(Semaphore::MAX_PERMITS))));
        let [acquires, reads] = [1, 1].map(Semaphore::new);
        Self { steady, brisk, acquires, reads, ending, order: Arc::default() }
    }

    /// Waits until another acquire may be under way.
    pub(in crate::store::mongo) async fn admit_acquire(&self, deadline: Deadline) -> Result<Admitted> {
        self.admit_with(self.pass(&self.acquires), deadline).await
    }

    /// Waits until another read that is of no holder may be under way.
    pub(in crate::store::mongo) async fn admit_read(&self, deadline: Deadline) -> Result<Admitted> {
        self.admit_with(self.pass(&self.reads), deadline).await
    }

    /// Waits at a gate, and then for a permit. The request that waits for a permit gives its place up when it has one.
    async fn pass(&self, gate: &Semaphore) -> Waited {
        let _place = gate.acquire().await?;
        tokio::select! {
            biased;
            permit = Arc::clone(&self.steady).acquire_owned() => Ok((permit?, false)),
            permit = Arc::clone(&self.brisk).acquire_owned() => Ok((permit?, true)),
        }
    }

    /// Waits until another request that ends a lease, or is of its holder, may be under way.
    pub(in crate::store::mongo) async fn admit_holder(&self, deadline: Deadline) -> Result<Admitted> {
        let permit = async {
            tokio::select! {
                biased;
                permit = Arc::clone(&self.ending).acquire_owned() => Ok((permit?, false)),
                permit = Arc::clone(&self.steady).acquire_owned() => Ok((permit?, false)),
            }
        };
        self.admit_with(permit, deadline).await
    }

    /// Waits for the permit of a change stream. Without one it shares the connections of the others.
    pub(in crate::store::mongo) async fn admit_stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.brisk).acquire_owned().await.ok()
    }

    /// Notes how long an acquire took that changed its record.
    pub(in crate::store::mongo) fn note_acquire(&self, took: Duration) {
        self.order.acquire_took.store(u64::try_from(took.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    async fn admit_with(&self, permit: impl Future<Output = Waited>, deadline: Deadline) -> Result<Admitted> {
        let permit = timeout(deadline.remaining(), permit).await;
        let permit = permit.ok().and_then(Waited::ok).ok_or_else(|| {
            Error::unavailable(
                "too many calls wait, and earlier requests of this client have no answer yet: let fewer calls run at once, and retry; if few do, check that a primary can be reached and that no transaction keeps records locked",
            )
        })?;
        Ok(Admitted { permit, order: Arc::clone(&self.order) })
    }
}

impl Admitted {
    /// The deadline of an acquire. With a brisk permit, the server gives it up after three times as long as the last one took,
    /// and after 250 milliseconds to a second.
    pub(in crate::store::mongo) fn for_acquire(&self, deadline: Deadline) -> Deadline {
        let (_, is_brisk) = self.permit;
        if !is_brisk {
            return deadline;
        }
        let took = Duration::from_millis(self.order.acquire_took.load(Ordering::Relaxed));
        deadline.with_work_limit(took.saturating_mul(3).clamp(BRISK_LIMIT, LONGEST_BRISK_LIMIT))
    }

    /// Runs `work`. Gives the permit back when it ends, or when the deadline has passed and the request is not queued in the
    /// driver. On a dead connection a command ends much later.
    pub(in crate::store::mongo) async fn run<T>(self, deadline: Deadline, work: impl Future<Output = T>) -> T {
        let Self { permit, order } = self;
        let number = order.sent.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let ends = Arc::clone(&order);
        let mut work = pin!(async move {
            let done = work.await;
            ends.ended.fetch_add(1, Ordering::Relaxed);
            ends.latest.fetch_max(number, Ordering::Relaxed);
            done
        });
        // A shorter time would not show whether other requests end.
        let time = deadline.remaining().max(LEAST_TIME);
        loop {
            let ended = order.ended.load(Ordering::Relaxed);
            if let Ok(done) = timeout(time, &mut work).await {
                return done;
            }
            let is_moving = order.ended.load(Ordering::Relaxed) > ended;
            if !is_moving || order.latest.load(Ordering::Relaxed) > number {
                break;
            }
        }
        drop(permit);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        task::{AbortHandle, JoinSet},
        time::sleep,
    };

    use super::*;
    use crate::types::clock::Clock;

    const SECOND: Duration = Duration::from_secs(1);

    /// Begins a request that has two seconds, and whose command ends after so many.
    async fn begin(admission: &Admission, running: &mut JoinSet<()>, seconds: u32) -> AbortHandle {
        let deadline = Deadline::after(Clock::tokio(), 2 * SECOND);
        let admitted = admission.admit_acquire(deadline).await.unwrap();
        let request = running.spawn(async move { admitted.run(deadline, sleep(seconds * SECOND)).await });
        tokio::task::yield_now().await;
        request
    }

    fn free(admission: &Admission) -> usize {
        admission.steady.available_permits() + admission.brisk.available_permits()
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_back_when_the_command_ends_or_at_the_deadline_of_a_command_on_a_dead_connection() {
        let (admission, mut running) = (Admission::new(2, 0), JoinSet::new());
        begin(&admission, &mut running, 1).await;
        let dead = begin(&admission, &mut running, 1_000).await;
        assert_eq!(free(&admission), 0);
        let refused = admission.admit_acquire(Deadline::after(Clock::tokio(), SECOND / 2)).await;
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.starts_with("too many calls wait"), "{said}");
        sleep(SECOND).await;
        assert_eq!(free(&admission), 1);
        // One that was sent later ends, so the dead one is not queued.
        begin(&admission, &mut running, 0).await;
        sleep(SECOND).await;
        assert_eq!(free(&admission), 2);
        assert!(!dead.is_finished(), "the command goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_the_permit_of_an_acquire_until_it_ends() {
        let admission = Admission::new(4, 0);
        let all = free(&admission);
        let stream = admission.admit_stream().await;
        assert_eq!((free(&admission), stream.is_some()), (all - 1, true));
        drop(stream);
        assert_eq!(free(&admission), all);
    }

    /// A command whose caller has given up can still wait in the driver for a connection. With its permit back, the
    /// queue there grows, and each command is sent too late.
    #[tokio::test(start_paused = true)]
    async fn a_permit_is_kept_beyond_the_deadline_while_earlier_commands_end() {
        let (admission, mut running) = (Admission::new(9, 0), JoinSet::new());
        // The driver sends one after another.
        for seconds in 1..=9 {
            begin(&admission, &mut running, seconds).await;
        }
        sleep(5 * SECOND + SECOND / 2).await;
        assert_eq!(free(&admission), 5);
        sleep(3 * SECOND).await;
        assert_eq!(free(&admission), 8);
        sleep(SECOND).await;
        assert_eq!(free(&admission), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_kept_for_half_a_second_also_if_the_deadline_is_sooner() {
        let (admission, mut running) = (Admission::new(1, 0), JoinSet::new());
        let deadline = Deadline::after(Clock::tokio(), SECOND / 10);
        let admitted = admission.admit_acquire(deadline).await.unwrap();
        running.spawn(async move { admitted.run(deadline, sleep(1_000 * SECOND)).await });
        sleep(SECOND / 4).await;
        assert_eq!(free(&admission), 0);
        sleep(SECOND / 2).await;
        assert_eq!(free(&admission), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_back_at_the_deadline_if_no_command_ends() {
        let (admission, mut running) = (Admission::new(3, 0), JoinSet::new());
        for _ in 0..3 {
            begin(&admission, &mut running, 1_000).await;
        }
        sleep(3 * SECOND).await;
        assert_eq!(free(&admission), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_a_lease_waits_for_none_of_the_requests_that_wait_at_the_gate() {
        let (admission, mut running) = (Arc::new(Admission::new(4, 1)), JoinSet::new());
        let deadline = Deadline::after(Clock::tokio(), 1_000 * SECOND);
        for _ in 0..100 {
            let admission = Arc::clone(&admission);
            running.spawn(async move {
                admission.admit_acquire(deadline).await.unwrap().run(deadline, sleep(SECOND)).await;
            });
        }
        tokio::task::yield_now().await;
        // The first has a permit of its own, and the next are served as soon as one of the others ends.
        let soon = Deadline::after(Clock::tokio(), SECOND / 2);
        let first = admission.admit_holder(soon).await.unwrap();
        assert!(admission.admit_holder(soon).await.is_err(), "all permits are in use");
        let next = Deadline::after(Clock::tokio(), 2 * SECOND);
        let ending = tokio::join!(admission.admit_holder(next), admission.admit_holder(next));
        drop((first, ending.0.unwrap(), ending.1.unwrap()));
        running.join_all().await;
        assert_eq!((free(&admission), admission.acquires.available_permits()), (4, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_asks_is_served_in_its_order_and_takes_no_permit_of_what_ends_a_lease() {
        let (admission, mut running) = (Arc::new(Admission::new(1, 1)), JoinSet::new());
        let deadline = Deadline::after(Clock::tokio(), 9 * SECOND);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        for number in 0..4 {
            let (admission, order) = (Arc::clone(&admission), Arc::clone(&order));
            running.spawn(async move {
                let admitted = admission.admit_acquire(deadline).await.unwrap();
                order.lock().unwrap().push(number);
                admitted.run(deadline, sleep(SECOND)).await;
            });
            tokio::task::yield_now().await;
        }
        sleep(SECOND / 2).await;
        assert_eq!((order.lock().unwrap().len(), admission.ending.available_permits()), (1, 1));
        running.join_all().await;
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn nearly_half_of_the_acquires_are_given_up_soon_by_the_server_unless_acquires_take_long() {
        let admission = Admission::new(9, 1);
        let deadline = Deadline::after(Clock::tokio(), 5 * SECOND);
        let mut limits = Vec::new();
        for _ in 0..9 {
            let admitted = admission.admit_acquire(deadline).await.unwrap();
            limits.push(admitted.for_acquire(deadline).work_limit());
            std::mem::forget(admitted);
        }
        assert_eq!(limits, [[5 * SECOND; 5].as_slice(), &[BRISK_LIMIT; 4]].concat());
        admission.note_acquire(SECOND);
        let brisk =
            Admitted { permit: (admission.ending.clone().try_acquire_owned().unwrap(), true), order: admission.order };
        assert_eq!(brisk.for_acquire(deadline).work_limit(), LONGEST_BRISK_LIMIT);
    }
}

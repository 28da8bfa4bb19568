//! The bound of the requests that are under way.
//!
//! Purpose: the driver serves requests that wait for a connection in their order. A burst of acquires or reads, or acquires
//! of locked records, must not delay a refresh until its lease is lost. Beside a slow server, the driver must not fill up
//! with requests whose callers have given up: each later request would be sent after its own caller had given up, too.
//!
//! Mechanism: each request but a refresh takes a permit. There are permits for half of the connections, and some for reads
//! alone: no lock keeps a read waiting. Acquires and reads, but for those of a holder, wait at a gate before that, and only
//! one of them waits for a permit. A request is queued in the driver as long as requests that were sent before it end, and none that was sent
//! after it.
//!
//! Invariants: what keeps or ends a lease waits for none of the acquires and reads that wait. If a caller gives up while its request waits for a permit, the request is never sent. A request keeps its
//! permit until its command ends, or its time is over and it is not queued in the driver, also if its caller has given up:
//! the command keeps its connection.

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

/// How long a request keeps its permit at least, unless it ends.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// The permits of a client, and what its requests tell about the driver's queue.
pub(in crate::store::mongo) struct Admission {
    permits: Arc<Semaphore>,
    /// The right of an acquire or a read to wait for a permit.
    gate: Semaphore,
    /// For reads alone.
    reads: Arc<Semaphore>,
    order: Arc<Order>,
}

/// The order of the requests that had a permit.
#[derive(Default)]
struct Order {
    sent: AtomicU64,
    ended: AtomicU64,
    /// The number of the latest that has ended.
    latest: AtomicU64,
}

/// The right of a request to be under way.
pub(in crate::store::mongo) struct Admitted {
    permit: OwnedSemaphorePermit,
    order: Arc<Order>,
}

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
    /// For at most this many requests, and this many reads beside them.
    pub(in crate::store::mongo) fn new(many: usize, reads: usize) -> Self {
        let [permits, reads] = [many, reads].map(|many| Arc::new(Semaphore::new(many.min(Semaphore::MAX_PERMITS))));
        Self { permits, gate: Semaphore::new(1), reads, order: Arc::default() }
    }

    /// Waits until another request that keeps or ends a lease may be under way.
    pub(in crate::store::mongo) async fn admit(&self, deadline: Deadline) -> Result<Admitted> {
        self.admit_with(Arc::clone(&self.permits).acquire_owned(), deadline).await
    }

    /// Waits until another acquire may be under way.
    pub(in crate::store::mongo) async fn admit_acquire(&self, deadline: Deadline) -> Result<Admitted> {
        self.admit_with(self.pass_gate(), deadline).await
    }

    /// Waits until another read of a holder may be under way.
    pub(in crate::store::mongo) async fn admit_held_read(&self, deadline: Deadline) -> Result<Admitted> {
        self.admit_with(self.read_share_or(Arc::clone(&self.permits).acquire_owned()), deadline).await
    }

    /// Waits until another read may be under way.
    pub(in crate::store::mongo) async fn admit_read(&self, deadline: Deadline) -> Result<Admitted> {
        self.admit_with(self.read_share_or(self.pass_gate()), deadline).await
    }

    /// Waits for a permit for reads alone, or for the other one.
    async fn read_share_or(
        &self,
        other: impl Future<Output = std::result::Result<OwnedSemaphorePermit, AcquireError>>,
    ) -> std::result::Result<OwnedSemaphorePermit, AcquireError> {
        tokio::select! {
            biased;
            permit = Arc::clone(&self.reads).acquire_owned() => permit,
            permit = other => permit,
        }
    }

    /// Waits behind the acquires and reads that came before. The last of them gives its place up when it has its permit.
    async fn pass_gate(&self) -> std::result::Result<OwnedSemaphorePermit, AcquireError> {
        let _place = self.gate.acquire().await?;
        Arc::clone(&self.permits).acquire_owned().await
    }

    async fn admit_with(
        &self,
        permit: impl Future<Output = std::result::Result<OwnedSemaphorePermit, AcquireError>>,
        deadline: Deadline,
    ) -> Result<Admitted> {
        let permit = timeout(deadline.remaining(), permit).await;
        let permit = permit.ok().and_then(std::result::Result::ok).ok_or_else(|| {
            Error::unavailable(
                "too many calls wait, and earlier requests of this client have no answer yet: let fewer calls run at once, and retry; if few do, check that a primary can be reached and that no transaction keeps records locked",
            )
        })?;
        Ok(Admitted { permit, order: Arc::clone(&self.order) })
    }
}

impl Admitted {
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
        let admitted = admission.admit(deadline).await.unwrap();
        let request = running.spawn(async move { admitted.run(deadline, sleep(seconds * SECOND)).await });
        tokio::task::yield_now().await;
        request
    }

    fn free(admission: &Admission) -> usize {
        admission.permits.available_permits()
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_back_when_the_command_ends_or_at_the_deadline_of_a_command_on_a_dead_connection() {
        let (admission, mut running) = (Admission::new(2, 1), JoinSet::new());
        begin(&admission, &mut running, 1).await;
        let dead = begin(&admission, &mut running, 1_000).await;
        assert_eq!(free(&admission), 0);
        let refused = admission.admit(Deadline::after(Clock::tokio(), SECOND / 2)).await;
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
    async fn a_permit_is_kept_beyond_the_deadline_while_earlier_commands_end() {
        let (admission, mut running) = (Admission::new(9, 1), JoinSet::new());
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
        let (admission, mut running) = (Admission::new(1, 1), JoinSet::new());
        let deadline = Deadline::after(Clock::tokio(), SECOND / 10);
        let admitted = admission.admit(deadline).await.unwrap();
        running.spawn(async move { admitted.run(deadline, sleep(1_000 * SECOND)).await });
        sleep(SECOND / 4).await;
        assert_eq!(free(&admission), 0);
        sleep(SECOND / 2).await;
        assert_eq!(free(&admission), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_back_at_the_deadline_if_no_command_ends() {
        let (admission, mut running) = (Admission::new(3, 1), JoinSet::new());
        for _ in 0..3 {
            begin(&admission, &mut running, 1_000).await;
        }
        sleep(3 * SECOND).await;
        assert_eq!(free(&admission), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_keeps_a_lease_waits_for_one_of_the_commands_under_way_and_for_no_acquire_or_read_that_waits() {
        let (admission, mut running) = (Arc::new(Admission::new(4, 1)), JoinSet::new());
        let deadline = Deadline::after(Clock::tokio(), 1_000 * SECOND);
        // Those that wait find permits in use by what keeps a lease.
        for _ in 0..4 {
            let admitted = admission.admit(deadline).await.unwrap();
            running.spawn(admitted.run(deadline, sleep(SECOND)));
        }
        for number in 0..100 {
            let admission = Arc::clone(&admission);
            running.spawn(async move {
                let admitted = if number % 2 == 0 {
                    admission.admit_acquire(deadline).await
                } else {
                    admission.admit_read(deadline).await
                };
                admitted.unwrap().run(deadline, sleep(SECOND)).await;
            });
        }
        tokio::task::yield_now().await;
        let soon = Deadline::after(Clock::tokio(), SECOND + SECOND / 2);
        let keeping = tokio::join!(admission.admit(soon), admission.admit_held_read(soon), admission.admit(soon));
        drop((keeping.0.unwrap(), keeping.1.unwrap(), keeping.2.unwrap()));
        running.join_all().await;
        assert_eq!((free(&admission), admission.gate.available_permits()), (4, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_needs_no_permit_of_the_others_and_a_burst_of_reads_has_no_more_than_all() {
        let admission = Admission::new(2, 1);
        let deadline = Deadline::after(Clock::tokio(), SECOND);
        let requests = [admission.admit(deadline).await.unwrap(), admission.admit(deadline).await.unwrap()];
        let read = admission.admit_read(deadline).await.unwrap();
        assert!(admission.admit_read(Deadline::after(Clock::tokio(), SECOND / 2)).await.is_err());
        drop((requests, read));
        let mut reads = Vec::new();
        for _ in 0..3 {
            reads.push(admission.admit_read(deadline).await.unwrap());
        }
        assert!(admission.admit_read(deadline).await.is_err());
        assert!(admission.admit(Deadline::after(Clock::tokio(), SECOND)).await.is_err());
    }
}

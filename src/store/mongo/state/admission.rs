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
    ops::Deref,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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

/// How much sooner than its caller a request gives up to wait for a permit, at most a tenth of its time: so the caller gets the
/// error that says so.
const ERROR_MARGIN: Duration = Duration::from_millis(5);

/// What a request is for. That decides for which permit it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::mongo) enum Class {
    /// Asks for a lease.
    Acquire,
    /// Reads, and is of no holder.
    Read,
    /// Ends a lease, or writes or reads for its holder.
    Holder,
    /// Keeps leases, is for many leases, or checks the deployment: it needs no permit.
    Keep,
}

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
    /// `None`: the request needs no permit.
    permit: Option<OwnedSemaphorePermit>,
    /// Whether it is an acquire with a brisk permit.
    is_brisk: bool,
    order: Arc<Order>,
}

/// The deadline that the server has. Only an admitted request has one, and each method that makes a command on records needs it.
#[derive(Clone, Copy)]
pub(in crate::store::mongo) struct ServerDeadline(Deadline);

impl Deref for ServerDeadline {
    type Target = Deadline;

    fn deref(&self) -> &Deadline {
        &self.0
    }
}

/// A permit, if one is needed, and whether it makes an acquire brisk.
type Waited = std::result::Result<(Option<OwnedSemaphorePermit>, bool), AcquireError>;

impl Admission {
    /// For at most this many requests that ask, and this many beside them that end leases or are of holders.
    pub(in crate::store::mongo) fn new(asking: usize, ending: usize) -> Self {
        let steady = asking.div_ceil(2);
        let [steady, brisk, ending] = [steady, asking.saturating_sub(steady), ending]
            .map(|many| Arc::new(Semaphore::new(many.min(Semaphore::MAX_PERMITS))));
        let [acquires, reads] = [1, 1].map(Semaphore::new);
        Self { steady, brisk, acquires, reads, ending, order: Arc::default() }
    }

    /// Waits until another request of this class may be under way.
    pub(in crate::store::mongo) async fn admit(&self, class: Class, deadline: Deadline) -> Result<Admitted> {
        let margin = ERROR_MARGIN.min(deadline.remaining().mul_f64(0.1));
        let waited = timeout(deadline.sooner_by(margin).remaining(), self.permit(class)).await;
        let (permit, is_brisk) = waited.ok().and_then(Waited::ok).ok_or_else(|| {
            Error::unavailable(
                "too many calls wait, and earlier requests of this client have no answer yet: let fewer calls run at once, and retry; if few do, check that a primary can be reached and that no transaction keeps records locked",
            )
        })?;
        Ok(Admitted { permit, is_brisk, order: Arc::clone(&self.order) })
    }

    async fn permit(&self, class: Class) -> Waited {
        let gate = match class {
            Class::Acquire => &self.acquires,
            Class::Read => &self.reads,
            Class::Holder => {
                let permit = tokio::select! {
                    biased;
                    permit = Arc::clone(&self.ending).acquire_owned() => permit,
                    permit = Arc::clone(&self.steady).acquire_owned() => permit,
                };
                return Ok((Some(permit?), false));
            }
            Class::Keep => return Ok((None, false)),
        };
        // The request that waits for a permit gives its place at the gate up when it has one.
        let _place = gate.acquire().await?;
        tokio::select! {
            biased;
            permit = Arc::clone(&self.steady).acquire_owned() => Ok((Some(permit?), false)),
            permit = Arc::clone(&self.brisk).acquire_owned() => Ok((Some(permit?), class == Class::Acquire)),
        }
    }

    /// Waits for the permit of a change stream. Without one it shares the connections of the others.
    pub(in crate::store::mongo) async fn admit_stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.brisk).acquire_owned().await.ok()
    }

    /// Notes how long an acquire took that changed its record.
    pub(in crate::store::mongo) fn note_acquire(&self, took: Duration) {
        self.order.acquire_took.store(u64::try_from(took.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Admitted {
    /// The deadline that the server has. It gives an acquire with a brisk permit up after three times as long as the last one
    /// took, and after 250 milliseconds to a second.
    fn limited(&self, deadline: Deadline) -> ServerDeadline {
        if !self.is_brisk {
            return ServerDeadline(deadline);
        }
        let took = Duration::from_millis(self.order.acquire_took.load(Ordering::Relaxed));
        ServerDeadline(deadline.with_work_limit(took.saturating_mul(3).clamp(BRISK_LIMIT, LONGEST_BRISK_LIMIT)))
    }

    /// Runs `work`. Gives the permit back when it ends, or when the deadline has passed and the request is not queued in the
    /// driver. On a dead connection a command ends much later.
    pub(in crate::store::mongo) async fn run<T, W>(
        self,
        deadline: Deadline,
        work: impl FnOnce(ServerDeadline) -> W,
    ) -> T
    where
        W: Future<Output = T>,
    {
        let work = work(self.limited(deadline));
        let Self { permit: Some(permit), order, .. } = self else { return work.await };
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
        let admitted = admission.admit(Class::Acquire, deadline).await.unwrap();
        let request = running.spawn(async move { admitted.run(deadline, |_| sleep(seconds * SECOND)).await });
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
        let refused = admission.admit(Class::Acquire, Deadline::after(Clock::tokio(), SECOND / 2)).await;
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
        let admitted = admission.admit(Class::Acquire, deadline).await.unwrap();
        running.spawn(async move { admitted.run(deadline, |_| sleep(1_000 * SECOND)).await });
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
                admission.admit(Class::Acquire, deadline).await.unwrap().run(deadline, |_| sleep(SECOND)).await;
            });
        }
        tokio::task::yield_now().await;
        // The first has a permit of its own, and the next are served as soon as one of the others ends.
        let soon = Deadline::after(Clock::tokio(), SECOND / 2);
        let first = admission.admit(Class::Holder, soon).await.unwrap();
        assert!(admission.admit(Class::Holder, soon).await.is_err(), "all permits are in use");
        let next = Deadline::after(Clock::tokio(), 2 * SECOND);
        let ending = tokio::join!(admission.admit(Class::Holder, next), admission.admit(Class::Holder, next));
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
                let admitted = admission.admit(Class::Acquire, deadline).await.unwrap();
                order.lock().unwrap().push(number);
                admitted.run(deadline, |_| sleep(SECOND)).await;
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
            let admitted = admission.admit(Class::Acquire, deadline).await.unwrap();
            limits.push(admitted.limited(deadline).work_limit());
            std::mem::forget(admitted);
        }
        assert_eq!(limits, [[5 * SECOND; 5].as_slice(), &[BRISK_LIMIT; 4]].concat());
        admission.note_acquire(SECOND);
        let brisk = Admitted { permit: None, is_brisk: true, order: admission.order };
        assert_eq!(brisk.limited(deadline).work_limit(), LONGEST_BRISK_LIMIT);
    }
}

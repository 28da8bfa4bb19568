//! The watchdog, which is called when work outlives its lease, for example to abort the process. The tests run on real
//! time, because a blocked runtime cannot advance paused time.

use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use mongoseal::{Error, Lease, LossCause, Mongoseal, Watchdog};
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_millis(300);
const SLACK: Duration = Duration::from_millis(100);
/// For how long the night blocks a thread.
const BLOCKED: Duration = Duration::from_millis(900);
/// For how long a thread is blocked at most that waits for the watchdog.
const LONGEST: Duration = Duration::from_secs(60);
/// Whether this process is the one that is aborted.
const WEDGED: &str = "MONGOSEAL_TEST_WEDGED";

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A lease of [`TTL`], and who hears from its watchdog what was called and when.
async fn watched(seal: &Mongoseal) -> (Lease, Receiver<(Error, Instant)>) {
    let lease = seal.acquire("k").ttl(TTL).await.unwrap();
    let (tell, heard) = mpsc::channel();
    let hook = move |lost| tell.send((lost, Instant::now())).unwrap();
    lease.watchdog(Watchdog::calling(hook).slack(SLACK)).unwrap();
    (lease, heard)
}

/// That the watchdog has gone without a call.
fn was_quiet(heard: &Receiver<(Error, Instant)>) {
    assert_eq!(heard.recv_timeout(LONGEST).err(), Some(RecvTimeoutError::Disconnected));
}

pub(crate) fn work_that_blocks_the_runtime_past_the_deadline_is_called_on_once_after_the_slack() {
    current_thread().block_on(async {
        let began = Instant::now();
        let (lease, heard) = watched(&Mongoseal::in_memory()).await;
        let token = lease.token();
        let mut called = None;
        let done = lease.run(async { called = heard.recv_timeout(LONGEST).ok() }).await;
        assert!(matches!(done, Err(Error::Lost { .. })), "it came too late");
        let (lost, at) = called.expect("it was called while the thread was blocked");
        assert!(matches!(lost, Error::Lost { token: of, cause: LossCause::Expired, .. } if of == token), "{lost}");
        let after = at.duration_since(began);
        assert!(after + Duration::from_millis(2) >= TTL + SLACK, "not before: {after:?}");
        was_quiet(&heard);
    });
}

pub(crate) fn work_that_never_yields_is_told_of_the_deadline_by_the_token_that_it_looks_at() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let work = runtime.spawn(async {
        let lease = Mongoseal::in_memory().acquire("k").ttl(TTL).without_refresh().await.unwrap();
        let (token, began) = (lease.cancellation_token(), Instant::now());
        while !token.is_cancelled() {
            assert!(began.elapsed() < LONGEST, "it is told");
            thread::sleep(Duration::from_millis(1));
        }
    });
    runtime.block_on(work).unwrap();
}

/// On the only other thread of the runtime.
pub(crate) fn a_lease_is_refreshed_while_the_thread_that_it_was_granted_on_is_blocked() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let work = runtime.spawn(async {
        let seal = Mongoseal::in_memory();
        let lease = seal.acquire("k").ttl(2 * LONGEST).refresh_every(TTL).await.unwrap();
        let (mut last, began) = (lease.remaining(), Instant::now());
        loop {
            thread::sleep(Duration::from_millis(1));
            let remaining = lease.remaining();
            if remaining > last {
                break;
            }
            assert!(began.elapsed() < LONGEST, "it is refreshed");
            last = remaining;
        }
    });
    runtime.block_on(work).unwrap();
}

pub(crate) fn without_work_a_blocked_runtime_is_noticed_because_nobody_ends_the_lease() {
    current_thread().block_on(async {
        let (lease, heard) = watched(&Mongoseal::in_memory()).await;
        assert!(heard.recv_timeout(LONGEST).is_ok());
        assert!(!lease.is_valid());
    });
}

pub(crate) fn a_thread_that_is_blocked_while_the_runtime_goes_on_is_noticed_too() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let seal = Mongoseal::in_memory();
        let (lease, heard) = watched(&seal).await;
        seal.revoke("k").await.unwrap();
        // The lease is lost at once, and the work goes on.
        let (tell, told) = mpsc::channel();
        let work = async move { tell.send(heard.recv_timeout(LONGEST).is_ok()).unwrap() };
        tokio::spawn(async move { lease.run(work).await }).await.unwrap().unwrap_err();
        assert!(told.recv().unwrap());
    });
}

pub(crate) fn a_lease_that_is_released_and_work_that_stops_with_its_lease_are_left_alone() {
    current_thread().block_on(async {
        let (lease, heard) = watched(&Mongoseal::in_memory()).await;
        lease.run(tokio::time::sleep(BLOCKED)).await.unwrap();
        lease.release().await.unwrap();
        was_quiet(&heard);

        let lease = Mongoseal::in_memory().acquire("k").ttl(TTL).without_refresh().await.unwrap();
        let (tell, heard) = mpsc::channel();
        lease.watchdog(Watchdog::calling(move |lost| tell.send((lost, Instant::now())).unwrap())).unwrap();
        lease.run(tokio::time::sleep(BLOCKED)).await.unwrap_err();
        was_quiet(&heard);
    });
}

pub(crate) fn by_default_the_process_is_aborted_and_says_why() {
    let child = Command::new(std::env::current_exe().unwrap()).env(WEDGED, "1").stderr(Stdio::piped()).spawn().unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {ended:?}");
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("the lease on \"k\"") && said.contains("its work did not stop"), "{said}");
}

/// Whether this process was started to be aborted.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(WEDGED).is_some()
}

/// Holds a lease and blocks its only thread, until it is aborted.
pub(crate) fn main() {
    current_thread().block_on(async {
        let lease = Mongoseal::in_memory().acquire("k").ttl(TTL).await.unwrap();
        lease.watchdog(Watchdog::aborting()).unwrap();
        drop(lease.run(async { thread::sleep(Duration::from_secs(30)) }).await);
    });
}

//! A holder whose clocks are manipulated: the wall clock jumps, and the machine is suspended.
//!
//! Each test needs a process of its own, one under libfaketime and one with a single thread. A test that cannot run here
//! fails.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use mongoseal::{Error, LeaseState, LossCause, Mongoseal, store::Clock};

use mongoseal_test_support::by_length;

use crate::{database, millis, secs};

/// Which holder to be, and where the replica set is.
const ROLE: &str = "MONGOSEAL_TEST_HOLDER";
const URI: &str = "MONGOSEAL_TEST_HOLDER_URI";
/// Where libfaketime reads how far the wall clock is off.
const OFFSET_FILE: &str = "FAKETIME_TIMESTAMP_FILE";

/// Whether this process was started as a holder.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(ROLE).is_some()
}

pub(crate) fn main() {
    match std::env::var(ROLE).unwrap().as_str() {
        "jumping" => holder_with_a_jumping_wall_clock(),
        "suspended" => holder_that_is_suspended(),
        other => panic!("no holder is called {other}"),
    }
}

fn holder(role: &str, uri: &str) -> Command {
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder.env(ROLE, role).env(URI, uri).stdin(Stdio::null());
    holder
}

fn connect() -> impl Future<Output = Mongoseal> {
    let uri = std::env::var(URI).unwrap();
    async move { Mongoseal::connect(uri).await.unwrap() }
}

// The wall clock.

pub(crate) fn a_client_whose_wall_clock_jumps_by_an_hour_notices_nothing() {
    let database = database("clocks_jump");
    let library = mongoseal_test_support::libfaketime();
    let offset = std::env::temp_dir().join(format!("mongoseal-faketime-{}", std::process::id()));
    std::fs::write(&offset, "+0").unwrap();
    let status = holder("jumping", &database.uri())
        .env("LD_PRELOAD", library)
        .env(OFFSET_FILE, &offset)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("FAKETIME_NO_CACHE", "1")
        .status()
        .unwrap();
    std::fs::remove_file(&offset).unwrap();
    assert!(status.success(), "{status}");
}

fn holder_with_a_jumping_wall_clock() {
    let offset_file = PathBuf::from(std::env::var_os(OFFSET_FILE).unwrap());
    let jump = |offset: &str| {
        std::fs::File::create(&offset_file).unwrap().write_all(offset.as_bytes()).unwrap();
    };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let seal = connect().await;
        let lease = seal.acquire("jumping").ttl(secs(60)).refresh_every(millis(200)).await.unwrap();
        let other = connect().await;
        for (offset, hours) in [("+1h", 1.0), ("-1h", -1.0), ("+0", 0.0)] {
            let (wall, steady) = (SystemTime::now(), Instant::now());
            jump(offset);
            // Over several refreshes.
            while steady.elapsed() < secs(1) {
                assert!(lease.is_valid() && !lease.remaining().is_zero(), "{:?}", lease.remaining());
                assert_eq!(lease.state(), LeaseState::Held);
                assert!(matches!(other.acquire("jumping").await, Err(Error::Held { .. })));
                tokio::time::sleep(millis(50)).await;
            }
            let moved = match SystemTime::now().duration_since(wall) {
                Ok(forward) => forward.as_secs_f64(),
                Err(backward) => -backward.duration().as_secs_f64(),
            } - steady.elapsed().as_secs_f64();
            println!("the wall clock was moved by {moved:.0} s, to {hours:+} h");
            assert!(moved.abs() > 3500.0, "the wall clock did not jump: {moved}");
        }
        lease.verify().await.unwrap();
        lease.release().await.unwrap();
        // The ttl begins when the request is sent.
        let asked = Instant::now();
        let short = seal.acquire("jumping").ttl(millis(500)).without_refresh().await.unwrap();
        jump("-1h");
        let lost =
            tokio::time::timeout(secs(60), short.cancelled()).await.expect("it does not wait for the wall clock");
        assert_eq!(lost, LeaseState::Lost { cause: LossCause::Expired });
        assert!(asked.elapsed() >= millis(450), "{:?}", asked.elapsed());
    });
}

// Suspend.

pub(crate) fn a_suspended_machine_wakes_up_without_its_lease() {
    let status = holder("suspended", &database("clocks_suspend").uri()).status().unwrap();
    assert!(status.success(), "{status}");
}

/// Suspends the machine for an hour, as far as this process can see: a time namespace moves
/// `CLOCK_BOOTTIME` and leaves `CLOCK_MONOTONIC` where it is, which is what a suspend does.
/// A process may enter one only while it has a single thread.
struct Suspend(std::fs::File);

impl Suspend {
    /// For `CLONE_NEWTIME`, which the crate does not name.
    const NEW_TIME: nix::sched::CloneFlags = nix::sched::CloneFlags::from_bits_retain(0x80);

    fn prepare(by: Duration) -> Self {
        if nix::sched::unshare(Self::NEW_TIME).is_err() {
            // Without privileges, in a user namespace of our own.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER | Self::NEW_TIME)
                .expect("time namespaces are allowed, to root or in user namespaces");
        }
        std::fs::write("/proc/self/timens_offsets", format!("boottime {} 0", by.as_secs())).unwrap();
        Self(std::fs::File::open("/proc/self/ns/time_for_children").unwrap())
    }

    fn now(self) {
        nix::sched::setns(self.0, Self::NEW_TIME).expect("this process has one thread");
    }
}

fn holder_that_is_suspended() {
    let suspend = Suspend::prepare(secs(3600));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // On the runtime of this thread: `connect` would start another one.
        let client = mongodb::Client::with_uri_str(std::env::var(URI).unwrap()).await.unwrap();
        let seal = Mongoseal::on_shared_client(&client.default_database().unwrap());
        let lease = seal.acquire("suspended").ttl(secs(300)).await.unwrap();
        let work = lease.run(async {
            tokio::task::yield_now().await;
            let (boot, steady) = (Clock::Boot.now(), Instant::now());
            suspend.now();
            assert!(Clock::Boot.now().since(boot) >= secs(3600) && steady.elapsed() < secs(60));
            assert!(!lease.is_valid(), "local, free, and right at once");
            assert!(lease.remaining().is_zero());
            std::future::pending::<()>().await;
        });
        // Timers stand still while a machine is suspended; the loss is pushed all the same.
        let woken = Instant::now();
        let stopped = tokio::time::timeout(by_length(secs(60), secs(3)), work).await.expect("the work is stopped");
        assert!(matches!(stopped, Err(Error::Lost { cause: LossCause::Expired, .. })), "{stopped:?}");
        println!("work was stopped {:?} after the machine woke up", woken.elapsed());
        assert!(matches!(lease.refresh().await, Err(Error::Lost { .. })));
    });
}

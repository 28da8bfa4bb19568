//! A holder whose machine is suspended. It is a process of its own, with a single thread.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mongoseal::{Error, LossCause, Mongoseal, store::Clock};
use mongoseal_test_support::by_length;

use crate::{database, secs};

/// Where the replica set of the holder is.
const URI: &str = "MONGOSEAL_TEST_HOLDER_URI";

/// Whether this process was started as the holder.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(URI).is_some()
}

pub(crate) fn a_suspended_machine_wakes_up_without_its_lease() {
    let mut holder = Command::new(std::env::current_exe().unwrap());
    let status = holder.env(URI, database("clocks_suspend").uri()).stdin(Stdio::null()).status().unwrap();
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

/// Holds a lease while the machine is suspended.
pub(crate) fn main() {
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

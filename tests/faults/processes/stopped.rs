//! A holder that is stopped with SIGSTOP until the key was granted to another process.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    thread,
};

use mongoseal::{Error, Mongoseal, blocking};
use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::{Signal, kill, raise},
    },
    unistd::Pid,
};

use crate::{database, millis, secs};

/// Where the replica set of the holder is.
const URI: &str = "MONGOSEAL_TEST_STOPPED_URI";

pub(crate) fn a_holder_that_was_stopped_past_its_ttl_finds_its_lease_lost_when_it_continues() {
    let uri = database("stopped").uri();
    let mut holder = Command::new(env::current_exe().unwrap());
    let mut holder = holder.env(URI, &uri).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut token = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut token).unwrap();
    let next = blocking::Mongoseal::connect(uri).unwrap().acquire("k").wait(secs(60)).run().unwrap();
    assert!(i64::from(next.token()) > token.trim().parse().unwrap(), "{} after {token}", next.token());
    let id = Pid::from_raw(holder.id().try_into().unwrap());
    let status = loop {
        if let Some(status) = holder.try_wait().unwrap() {
            break status;
        }
        kill(id, Signal::SIGCONT).unwrap();
        thread::sleep(millis(10));
    };
    assert!(status.success(), "{status}");
    next.verify().unwrap();
}

/// Whether this process was started as the holder.
pub(crate) fn is_wanted() -> bool {
    env::var_os(URI).is_some()
}

/// Stops itself while it holds the key.
pub(crate) fn main() {
    // It does not outlive its test.
    set_pdeathsig(Signal::SIGKILL).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let seal = Mongoseal::connect(env::var(URI).unwrap()).await.unwrap();
        let lease = seal.acquire("k").ttl(secs(2)).await.unwrap();
        println!("{}", lease.token());
        raise(Signal::SIGSTOP).unwrap();
        assert!(!lease.is_valid(), "right at once");
        let late = lease.run(std::future::pending::<()>()).await;
        assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
        assert!(matches!(lease.refresh().await, Err(Error::Lost { .. })));
    });
}

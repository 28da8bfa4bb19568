//! Reads the processor time of processes.
//!
//! Purpose: the processor time of a command varies less than its latency when other programs run on the same machine.
//!
//! Mechanism: the kernel has a clock for each process, in nanoseconds. To read it is one system call.

use std::{
    fs,
    ops::{AddAssign, Div, Sub},
    time::Duration,
};

use mongoseal_test_support::ReplicaSet;
use nix::{
    time::{ClockId, clock_getcpuclockid},
    unistd::Pid,
};

/// The processor time of this process.
pub(crate) fn of_client() -> Duration {
    time(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// The processor time of the threads of this process with this name.
pub(crate) fn of_threads(name: &str) -> Duration {
    let threads = fs::read_dir("/proc/self/task").expect("the system lists the threads of this process");
    let times = threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        // A thread may have ended meanwhile.
        let is_named = fs::read_to_string(thread.join("comm")).is_ok_and(|found| found.trim_end() == name);
        let spent = fs::read_to_string(thread.join("schedstat")).ok().filter(|_| is_named)?;
        spent.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    });
    times.sum()
}

/// The processor time of the members of a set. It is zero if the set was started elsewhere.
#[derive(Clone, Copy, Default)]
pub(crate) struct ServerTime {
    pub(crate) primary: Duration,
    /// Of all members, with the primary.
    pub(crate) all: Duration,
}

impl ServerTime {
    /// This without the share of an idle set, which spends `idle` in each second.
    pub(crate) fn without(self, idle: Self, time: Duration) -> Self {
        let share = |idle: Duration| idle.mul_f64(time.as_secs_f64());
        self - Self { primary: share(idle.primary), all: share(idle.all) }
    }
}

impl AddAssign for ServerTime {
    fn add_assign(&mut self, other: Self) {
        self.primary += other.primary;
        self.all += other.all;
    }
}

impl Sub for ServerTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { primary: self.primary.saturating_sub(other.primary), all: self.all.saturating_sub(other.all) }
    }
}

impl Div<u32> for ServerTime {
    type Output = Self;

    fn div(self, count: u32) -> Self {
        Self { primary: self.primary / count, all: self.all / count }
    }
}

/// The processor clocks of the members of a set. There are none if the set was started elsewhere.
pub(crate) struct Clocks {
    members: Vec<ClockId>,
    primary: usize,
}

impl Clocks {
    /// Finds the processes, and the primary among them.
    pub(crate) async fn new(set: &ReplicaSet) -> Self {
        let clock = |process: u32| {
            let process = Pid::from_raw(process.try_into().expect("a process id is a positive number"));
            clock_getcpuclockid(process).expect("the member is running")
        };
        Self { members: set.process_ids().into_iter().map(clock).collect(), primary: set.primary().await }
    }

    pub(crate) fn now(&self) -> ServerTime {
        let times: Vec<Duration> = self.members.iter().copied().map(time).collect();
        ServerTime { primary: times.get(self.primary).copied().unwrap_or_default(), all: times.iter().sum() }
    }

    /// Runs a block, and returns what the members spent meanwhile.
    pub(crate) async fn spent<T>(&self, block: impl Future<Output = T>) -> (T, ServerTime) {
        let before = self.now();
        let result = block.await;
        (result, self.now() - before)
    }
}

fn time(clock: ClockId) -> Duration {
    clock.now().expect("the clock of a running process can be read").into()
}

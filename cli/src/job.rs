//! A command that runs while a lease is held, as the process that holds the lease sees it.

use std::{
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::net::UnixStream as Socket},
    process::Stdio,
    time::Duration,
};

use mongoseal::{Clock, Lease, LeaseState, LossCause, Mongoseal, ReleaseOutcome};
use nix::sys::signal::{SigSet, Signal::SIGTTOU};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::{Child, Command},
    time::sleep,
};

use crate::{
    arguments::Asking,
    connection,
    exit_status::{Failure, Status},
    guard::{
        self, GUARD,
        protocol::{self, GuardCommand, Report, Times},
    },
    say,
    signals::Signals,
    terminal::Terminal,
    this_program,
};

/// How long a guard gets to tell of the end of a command that was killed.
const GRACE: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Debug)]
pub(crate) enum End {
    /// By itself, with this status.
    Itself(u8),
    /// It was told to, because its lease was ending.
    Signalled,
    /// Its guard was killed, and it with that.
    Unguarded,
    /// It did not, in all the time of the lease: something of it could not be ended.
    Never,
}

impl Times {
    /// Those that were asked for, where they fit the ttl.
    pub(crate) fn of(asking: &Asking) -> Result<Self, Failure> {
        let term_before = asking.term_before.unwrap_or(asking.ttl / 6);
        let kill_before = asking.kill_before.unwrap_or(term_before / 5);
        if term_before > asking.ttl / 2 {
            return Err(Failure::invalid(format!(
                "--term-before {term_before:?} is more than half of a ttl of {:?}: choose less, so that a refresh that comes late is not the end",
                asking.ttl
            )));
        }
        if kill_before.is_zero() || kill_before >= term_before {
            return Err(Failure::invalid(format!(
                "--kill-before {kill_before:?} does not lie between --term-before {term_before:?} and the end of the lease: choose less than that, and more than nothing"
            )));
        }
        Ok(Self { term_before, kill_before })
    }
}

/// Runs the command until it has ended and nothing of it is left, at the latest when the lease ends.
pub(crate) async fn run(
    lease: &Lease,
    times: Times,
    command: &[OsString],
    signals: &mut Signals,
) -> Result<End, Failure> {
    signals.and_others()?;
    let mut block = SigSet::empty();
    // Lest it be stopped for taking back a terminal that the command had.
    block.add(SIGTTOU);
    block.thread_block().map_err(io::Error::from)?;
    // Should the guard be killed, what it leaves is this process's to collect, and until then keeps its number.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)?;
    let mut job = Job::begin(lease, times, command)?;
    let end = job.follow(lease, signals).await;
    job.terminal.take_back();
    end
}

struct Job {
    guard: Child,
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
    times: Times,
    /// Until when, on the clock, the guard takes the lease to be good.
    until: Duration,
    group: Option<Pid>,
    /// When it was killed from here.
    killed_at: Option<Duration>,
    terminal: Terminal,
}

impl Job {
    fn begin(lease: &Lease, times: Times, command: &[OsString]) -> Result<Self, Failure> {
        let (ours, theirs) = Socket::pair()?;
        let until = good_until(lease);
        let guard = Command::new(this_program()?)
            .arg0("mongoseal")
            .arg(GUARD)
            .args(command)
            .env_remove(connection::KEPT)
            .env("MONGOSEAL_KEY", lease.key().as_str())
            .env("MONGOSEAL_TOKEN", lease.token().to_string())
            .env("MONGOSEAL_LEASE_ID", lease.id().expose())
            .env("MONGOSEAL_DEADLINE", until.as_millis().to_string())
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()?;
        protocol::begin(&ours, GuardCommand::Begin { until, times }, io::stdin().as_fd())?;
        ours.set_nonblocking(true)?;
        let (hear, orders) = UnixStream::from_std(ours)?.into_split();
        let reports = BufReader::new(hear).lines();
        let terminal = Terminal::open();
        Ok(Self { guard, orders, reports, times, until, group: None, killed_at: None, terminal })
    }

    async fn follow(&mut self, lease: &Lease, signals: &mut Signals) -> Result<End, Failure> {
        let mut lost = false;
        loop {
            self.tell_until(lease);
            self.kill_if_due();
            let look = if self.killed_at.is_some() { GRACE / 10 } else { self.look() };
            tokio::select! {
                report = self.reports.next_line() => match report.ok().flatten().map(|line| line.parse()) {
                    Some(Ok(Report::Group(group))) => self.group = Some(group),
                    Some(Ok(Report::Stopped(signal))) => self.stopped(signal),
                    Some(Ok(Report::Over { status, told })) => {
                        return Ok(if told || self.killed_at.is_some() { End::Signalled } else { End::Itself(status) });
                    }
                    Some(Err(_)) | None => return self.unguarded(lease).await,
                },
                number = signals.next() => self.tell(GuardCommand::Signal(number)),
                _cause = lease.cancelled(), if !lost => {
                    lost = true;
                    self.end();
                }
                () = sleep(look) => {}
            }
            // It does not tell, as where somebody has stopped it.
            if self.killed_at.is_some_and(|at| Clock::Boot.now() > at.saturating_add(GRACE)) {
                return self.unguarded(lease).await;
            }
        }
    }

    /// How long until it looks again whether the lease was refreshed, which is not told, or the guard is late.
    fn look(&self) -> Duration {
        let often = (self.times.term_before / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let due = self.kill_at().saturating_sub(Clock::Boot.now());
        often.min(due.max(Duration::from_millis(1)))
    }

    /// When a guard should have killed the command a moment ago.
    fn kill_at(&self) -> Duration {
        self.until.saturating_sub(self.times.kill_before / 2)
    }

    /// Tells the guard when the lease has become good for longer.
    fn tell_until(&mut self, lease: &Lease) {
        let until = good_until(lease);
        if lease.is_valid() && until > self.until.saturating_add(Duration::from_millis(1)) {
            self.until = until;
            self.tell(GuardCommand::Until(until));
        }
    }

    /// The lease is lost, and somebody else may have the key.
    fn end(&mut self) {
        self.tell(GuardCommand::End);
        let by = Clock::Boot.now().saturating_add(self.times.between()).saturating_add(self.times.kill_before);
        self.until = self.until.min(by);
    }

    /// One that does not hear, because it was stopped, is told no more than there is room for.
    fn tell(&self, order: GuardCommand) {
        drop(self.orders.try_write(format!("{order}\n").as_bytes()));
    }

    fn stopped(&mut self, signal: i32) {
        if let Some(group) = self.group
            && self.terminal.stopped(group, signal)
        {
            self.tell(GuardCommand::Signal(Signal::CONT.as_raw()));
        }
    }

    /// Does what the guard should have done a moment ago.
    fn kill_if_due(&mut self) {
        let now = Clock::Boot.now();
        let is_due = self.killed_at.is_none() && now >= self.kill_at();
        // A guard that has ended tells how, and what was the group's number may be another's.
        if is_due && matches!(self.guard.try_wait(), Ok(None)) {
            self.killed_at = Some(now);
            self.kill();
        }
    }

    /// Kills the command; where it is not known yet, the guard, with which it ends.
    fn kill(&mut self) {
        match self.group {
            Some(group) => kill_process_group(group, Signal::KILL).unwrap_or_default(),
            None => drop(self.guard.start_kill()),
        }
    }

    /// Ends what is left of the command when its guard has ended, or tells nothing. What cannot be ended, as a process
    /// of another user, is waited for while the lease is good.
    async fn unguarded(&mut self, lease: &Lease) -> Result<End, Failure> {
        drop(self.guard.start_kill());
        self.kill();
        let status = self.guard.wait().await?;
        let Some(group) = self.group else {
            if self.killed_at.is_some() {
                return Ok(End::Signalled);
            }
            return Err(Failure::new(Status::INVALID, format!("the command was not begun: {status}")));
        };
        let by = Clock::Boot.now().saturating_add(GRACE);
        while !guard::is_empty(group) {
            if matches!(lease.state(), LeaseState::Lost { .. }) && Clock::Boot.now() >= by {
                return Ok(End::Never);
            }
            sleep(GRACE / 100).await;
        }
        Ok(if self.killed_at.is_some() { End::Signalled } else { End::Unguarded })
    }
}

/// Until when the lease is good, on the clock, or a little less.
fn good_until(lease: &Lease) -> Duration {
    let now = Clock::Boot.now();
    now.saturating_add(lease.remaining())
}

/// What the end of a command means, before the lease is given back.
pub(crate) fn verdict(lease: &Lease, end: &End) -> Result<Status, Failure> {
    let state = lease.state();
    let lease = format!("the lease on {:?} with token {}", lease.key(), lease.token());
    match (end, state) {
        // One that was not told to end did so before its time, and that was before a lease expired.
        (End::Itself(code), LeaseState::Held | LeaseState::AtRisk | LeaseState::Lost { cause: LossCause::Expired }) => {
            Ok(Status::of_command(*code))
        }
        (End::Itself(_), LeaseState::Lost { cause }) => Err(lost(format!(
            "{lease} was lost before the command had ended: {cause}; what it did last it may have done without the lease"
        ))),
        (End::Signalled, LeaseState::Lost { cause }) if cause != LossCause::Expired => {
            Err(lost(format!("{lease} is lost, so the command was ended: {cause}")))
        }
        (End::Signalled | End::Itself(_), _) => {
            Err(lost(format!("{lease} could not be refreshed in time, so the command was ended before the lease was")))
        }
        (End::Unguarded, _) => Err(Failure::new(
            Status::of_signal(Signal::KILL.as_raw()),
            "the guard of the command was killed, and the command with it",
        )),
        (End::Never, _) => Err(lost(format!(
            "{lease} ended while something of the command was running that could not be ended: the lease is not released, its ttl ends it"
        ))),
    }
}

fn lost(sentence: String) -> Failure {
    Failure::new(Status::LOST, sentence)
}

/// Gives the lease back, by `release`, and ends with what the command's end means. One that is lost is only told of:
/// nothing is sent that would give somebody the key before its time.
pub(crate) async fn finish(
    seal: &Mongoseal,
    signals: &mut Signals,
    remaining: Duration,
    release: impl Future<Output = mongoseal::Result<ReleaseOutcome>>,
    verdict: Result<Status, Failure>,
) -> Result<Status, Failure> {
    let mut released = None;
    let farewell = async {
        released = Some(release.await);
        seal.shutdown().await;
    };
    // After that it is over by itself, and where somebody cannot wait for that, soon enough.
    let until = Clock::Boot.now().saturating_add(remaining.max(GRACE));
    tokio::select! {
        biased;
        _ = signals.hurry(farewell) => {}
        () = Clock::Boot.sleep_until(until) => {}
    }
    let doubt = match released {
        // By this release or, where an answer was lost, by another end: it was good when the command had ended.
        Some(Ok(
            ReleaseOutcome::Released
            | ReleaseOutcome::Unknown
            | ReleaseOutcome::AlreadyLost { cause: LossCause::Expired },
        )) => return verdict,
        Some(Ok(ReleaseOutcome::AlreadyLost { cause })) => {
            return verdict.and(Err(lost(format!(
                "the lease was lost before it was released: {cause}; what was done last may have been done without it"
            ))));
        }
        Some(Ok(other)) => format!("{other:?}"),
        Some(Err(error)) => error.to_string(),
        None => "nobody answered".to_owned(),
    };
    if verdict.is_ok() {
        say(&format!("whether the lease was released is not known, its ttl ends it: {doubt}"));
    }
    verdict
}

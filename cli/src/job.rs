//! Runs a command under a lease, in the process that holds the lease.
//!
//! The holder starts a guard, which starts the command. The holder sends the guard each new deadline, forwards signals,
//! and reads the guard's reports. If the guard is late or killed, the holder kills the command itself. The leases are
//! released only after no process of the command is left.

pub(crate) mod guard;
pub(crate) mod refreshes;
pub(crate) mod signals;
pub(crate) mod terminal;

use std::{
    collections::HashSet,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream as Socket,
    },
    process::Stdio,
    time::Duration,
};

use mongoseal::{
    LeaseState, LossCause, Mongoseal, ReleaseOutcome,
    store::{Clock, Instant},
};
use nix::sys::signal::{SigSet, Signal::SIGTTOU};
use rustix::process::{Pid, Signal};
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
    arguments::LeaseOptions,
    connection::{Connection, HIDDEN_URI},
    exit_status::{Failure, Status},
    job::guard::{
        Action, GUARD,
        orphans::{self, Rest},
        protocol::{self, Exit, GuardCommand, Report, Times},
        release,
    },
    job::signals::Signals,
    job::terminal::Terminal,
    leases::{Leases, OuterLeases, is_end_of_time},
    process::this_program,
    time,
    ui::message::print_warning,
};

/// The time within which a guard must report the end of a command that was killed. Also the least time of a release.
const GRACE: Duration = Duration::from_secs(1);
/// The state of a lease whose maximum hold is over.
const HELD_TOO_LONG: LeaseState = LeaseState::Lost { cause: LossCause::HeldTooLong };
/// The smallest `--kill-before`. The processes of the command need this time to end.
const MIN_KILL_BEFORE: Duration = Duration::from_millis(10);

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The command ended by itself.
    Itself(Exit),
    /// The command was signalled, because its lease was ending.
    Signalled,
    /// The guard was killed, which killed the command.
    Unguarded,
    /// The lease ended first: a process of the command could not be ended.
    Never,
}

impl Times {
    /// Returns the times of the options, or their defaults, if they fit the ttl and the maximum hold.
    pub(crate) fn of(options: &LeaseOptions, max_hold: Option<Duration>) -> Result<Self, Failure> {
        let shortest = options.ttl.min(max_hold.unwrap_or(Duration::MAX));
        let term_before = options.term_before.unwrap_or(shortest / 6);
        let kill_before = options.kill_before.unwrap_or(term_before / 5);
        if term_before > options.ttl / 2 {
            return Err(Failure::invalid(format!(
                "--term-before {} is more than half of --ttl {}: pass at most half, so that one late refresh does not end the command",
                time::option(term_before),
                time::option(options.ttl),
            )));
        }
        if term_before > shortest / 2 {
            return Err(Failure::invalid(format!(
                "--term-before {} is more than half of --max-hold {}: pass at most half, so that the command has time to run",
                time::option(term_before),
                time::option(shortest),
            )));
        }
        if kill_before < MIN_KILL_BEFORE && options.kill_before.is_none() {
            // The times of both signals follow from this option.
            let (option, time, least) = match options.term_before {
                Some(time) => ("--term-before", time, MIN_KILL_BEFORE * 5),
                None if shortest < options.ttl => ("--max-hold", shortest, MIN_KILL_BEFORE * 30),
                None => ("--ttl", options.ttl, MIN_KILL_BEFORE * 30),
            };
            return Err(Failure::invalid(format!(
                "{option} {} leaves no time to end the command before its lease ends: pass at least {}",
                time::option(time),
                time::option(least),
            )));
        }
        if kill_before < MIN_KILL_BEFORE || kill_before >= term_before {
            return Err(Failure::invalid(format!(
                "--kill-before {} is not between {} and --term-before {}: pass a time between them",
                time::option(kill_before),
                time::option(MIN_KILL_BEFORE),
                time::option(term_before),
            )));
        }
        Ok(Self { term_before, kill_before })
    }
}

/// Runs the command until no process of it is left, at most until a lease ends. Returns how it ended.
pub(crate) async fn perform(
    connection: &Connection,
    leases: &Leases<'_>,
    times: Times,
    command: &[OsString],
    signals: &mut Signals,
) -> Result<End, Failure> {
    orphans::ensure_own_numbers()?;
    signals.add_forwarded()?;
    let mut block = SigSet::empty();
    // Otherwise SIGTTOU stops this process when it takes the terminal back from the command.
    block.add(SIGTTOU);
    block.thread_block().map_err(io::Error::from)?;
    // If the guard is killed, this process gets the orphans of the command, whose process ids stay taken until then.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)?;
    let started = Job::start(connection, leases, times, command, signals);
    let mut job =
        started.map_err(|error| Failure::invalid(format!("cannot start the guard of the command: {error}")))?;
    let end = job.follow(leases, signals).await;
    job.terminal.take_back();
    end
}

struct Job {
    guard: Child,
    commands: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
    times: Times,
    /// The deadline that the guard knows.
    until: Instant,
    group: Option<Pid>,
    /// The children of this process that are not of the command: a shell may have started them before its exec.
    others: HashSet<Pid>,
    /// When this process killed the command.
    killed_at: Option<Instant>,
    terminal: Terminal,
}

impl Job {
    fn start(
        connection: &Connection,
        leases: &Leases<'_>,
        times: Times,
        command: &[OsString],
        signals: &Signals,
    ) -> io::Result<Self> {
        let others = orphans::children();
        let order = release::order(connection, leases)?;
        let (ours, theirs) = Socket::pair()?;
        let until = leases.deadline();
        let outer = OuterLeases::of_environment();
        let mut guard = Command::new(this_program()?);
        for name in outer.names() {
            guard.env_remove(name);
        }
        let guard = guard
            .arg0("mongoseal")
            .arg(GUARD)
            .arg(signals.blocked().to_string())
            .args(command)
            .env_remove(HIDDEN_URI)
            .envs(leases.environment())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()?;
        let begin = GuardCommand::Begin { until: until.since_origin(), times, is_nested: !outer.is_empty() };
        protocol::send_begin(&ours, begin, io::stdin().as_fd(), order.as_ref().map(AsFd::as_fd))?;
        ours.set_nonblocking(true)?;
        let (reader, commands) = UnixStream::from_std(ours)?.into_split();
        let reports = BufReader::new(reader).lines();
        let terminal = Terminal::open();
        Ok(Self { guard, commands, reports, times, until, group: None, others, killed_at: None, terminal })
    }

    async fn follow(&mut self, leases: &Leases<'_>, signals: &mut Signals) -> Result<End, Failure> {
        let mut lost = false;
        // Until the runtime knows that the socket takes data, it refuses a write. A signal that is already here would be lost.
        self.commands.writable().await?;
        loop {
            self.send_deadline(leases);
            self.kill_if_due();
            let pause = if self.killed_at.is_some() { GRACE / 10 } else { self.interval() };
            tokio::select! {
                report = self.reports.next_line() => match report.ok().flatten().and_then(|line| protocol::parse(&line)) {
                    Some(Report::Group(group)) => self.group = Pid::from_raw(group),
                    Some(Report::Stopped(signal)) => self.handle_stop(signal),
                    Some(Report::Ended { exit, signalled }) => {
                        let signalled = signalled || self.killed_at.is_some();
                        return Ok(if signalled { End::Signalled } else { End::Itself(exit) });
                    }
                    None => return self.unguarded(leases).await,
                },
                number = signals.next() => self.send(GuardCommand::Signal(number)),
                () = leases.cancelled(), if !lost => {
                    lost = true;
                    self.end();
                }
                () = sleep(pause) => {}
            }
            // The guard does not report, for example because it is stopped.
            if self.killed_at.is_some_and(|at| Clock::Boot.now() > at.after(GRACE)) {
                return self.unguarded(leases).await;
            }
        }
    }

    /// Returns the time until the next check whether the lease was refreshed or the guard is late.
    fn interval(&self) -> Duration {
        let interval = (self.times.term_before / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let due = self.kill_at().since(Clock::Boot.now());
        interval.min(due.max(Duration::from_millis(1)))
    }

    /// Returns the time at which this process kills the command, shortly after the guard should have.
    fn kill_at(&self) -> Instant {
        self.until.before(self.times.kill_before / 2)
    }

    /// Sends the guard the leases' deadline, if a refresh has moved it.
    fn send_deadline(&mut self, leases: &Leases<'_>) {
        let until = leases.deadline();
        if leases.is_valid() && until > self.until.after(Duration::from_millis(1)) {
            self.until = until;
            self.send(GuardCommand::Until(until.since_origin()));
        }
    }

    /// Has the guard end the command at once: the lease is lost, and another holder may have the key.
    fn end(&mut self) {
        self.send(GuardCommand::End);
        let by = Clock::Boot.now().after(self.times.between()).after(self.times.kill_before);
        self.until = self.until.min(by);
    }

    /// Sends a message to the guard. If the guard is stopped and the socket is full, the message is dropped.
    fn send(&self, command: GuardCommand) {
        drop(self.commands.try_write(protocol::line(&command).as_bytes()));
    }

    fn handle_stop(&mut self, signal: i32) {
        if let Some(group) = self.group
            && self.terminal.stopped(group, signal)
        {
            self.send(GuardCommand::Signal(Signal::CONT.as_raw()));
        }
    }

    /// Kills the command if the guard should have, and has not.
    fn kill_if_due(&mut self) {
        let now = Clock::Boot.now();
        let is_due = self.killed_at.is_none() && now >= self.kill_at();
        // A guard that has ended has reported, and the group's id may belong to other processes by now.
        if is_due && matches!(self.guard.try_wait(), Ok(None)) {
            self.killed_at = Some(now);
            self.kill();
        }
    }

    /// Kills the command's group. If the guard has not reported it, kills the guard: the command has not begun.
    fn kill(&mut self) {
        match self.rest() {
            Some(rest) => rest.act_on_group(Action::Kill),
            None => drop(self.guard.start_kill()),
        }
    }

    fn rest(&self) -> Option<Rest> {
        Some(Rest::new(self.group?, self.others.clone()))
    }

    /// Kills the rest of the command after the guard has ended or stopped reporting. If a process cannot be killed,
    /// because it belongs to another user, waits for its end as long as the leases are valid.
    async fn unguarded(&mut self, leases: &Leases<'_>) -> Result<End, Failure> {
        drop(self.guard.start_kill());
        self.kill();
        let status = self.guard.wait().await?;
        // It has reported why.
        let has_failed = status.code().is_some_and(|code| code != 0);
        // This process may have been stopped since the guard reported the group.
        while let Ok(Some(line)) = self.reports.next_line().await {
            if let Some(Report::Group(group)) = protocol::parse(&line) {
                self.group = Pid::from_raw(group);
            }
        }
        let Some(mut rest) = self.rest() else {
            let what = if has_failed { "failed".to_owned() } else { format!("was ended ({status})") };
            return match self.killed_at {
                Some(_) => Ok(End::Signalled),
                None => Err(Failure::invalid(format!("the guard of the command {what} before the command began"))),
            };
        };
        rest.act_on_group(Action::Kill);
        let by = Clock::Boot.now().after(GRACE);
        while !rest.is_over() {
            rest.act_on_orphans(Action::Kill);
            if !leases.is_valid() && Clock::Boot.now() >= by {
                return Ok(End::Never);
            }
            sleep(GRACE / 100).await;
        }
        match self.killed_at {
            Some(_) => Ok(End::Signalled),
            None if has_failed => Err(Failure::invalid("the guard of the command failed, so the command was killed")),
            None => Ok(End::Unguarded),
        }
    }
}

/// Returns the exit status for the end of a command, before the leases are released.
pub(crate) fn verdict(leases: &Leases<'_>, end: End) -> Result<Status, Failure> {
    let (lease, state) = leases.decisive();
    match (end, state) {
        // A command that was not signalled ended before the signal was due, and so before the lease expired.
        (End::Itself(_), LeaseState::Lost { cause }) if !is_end_of_time(&cause) => Err(lost(format!(
            "{lease} was lost before the command had ended, which may have written without the lease: {cause}"
        ))),
        (End::Itself(exit), _) => Ok(match exit {
            Exit::Code(code) => Status::of_command(code),
            Exit::Signal(signal) => Status::of_signal(signal),
        }),
        (End::Signalled, LeaseState::Lost { cause }) if !is_end_of_time(&cause) => {
            Err(lost(format!("{lease} was lost, so the command was ended: {cause}")))
        }
        (End::Signalled, state) if state == HELD_TOO_LONG || leases.is_at_maximum() => Err(lost(format!(
            "the maximum hold of {lease} is over, so the command was ended: raise --max-hold if the command needs more time"
        ))),
        (End::Signalled, _) => {
            let why = refreshes::last_failure();
            Err(lost(format!(
                "{lease} could not be refreshed in time, so the command was ended before the lease was{why}"
            )))
        }
        (End::Unguarded, _) => Err(Failure::new(
            Status::of_signal(Signal::KILL.as_raw()),
            "the guard of the command was killed, which killed the command",
        )),
        (End::Never, _) => Err(lost(format!(
            "{lease} ended while a process of the command could not be killed: the lease is not released, but expires"
        ))),
    }
}

fn lost(message: String) -> Failure {
    Failure::new(Status::LOST, message)
}

/// Releases the lease by `release`, and returns `verdict`, unless the release shows that the lease was lost. The
/// release of a lost lease sends nothing, so that the key is not granted before the lease has expired.
pub(crate) async fn finish(
    seal: &Mongoseal,
    signals: &mut Signals,
    remaining: Duration,
    release: impl Future<Output = mongoseal::Result<ReleaseOutcome>>,
    verdict: Result<Status, Failure>,
) -> Result<Status, Failure> {
    match release_in_time(seal, signals, remaining, release).await {
        // Released now, or unknown because a reply was lost: the lease was valid when the command had ended.
        Some(Ok(ReleaseOutcome::Released | ReleaseOutcome::Unknown)) => {}
        Some(Ok(ReleaseOutcome::AlreadyLost { cause })) if is_end_of_time(&cause) => {}
        Some(Ok(ReleaseOutcome::AlreadyLost { cause })) => {
            return verdict.and(Err(lost(format!(
                "the lease was lost before its release, and the command may have written without it: {cause}"
            ))));
        }
        doubtful if verdict.is_ok() => report_doubt(doubtful),
        _ => {}
    }
    verdict
}

/// Releases a lease by `release`, and shuts down the handle. Returns `None` if there is no answer in time.
async fn release_in_time(
    seal: &Mongoseal,
    signals: &mut Signals,
    remaining: Duration,
    release: impl Future<Output = mongoseal::Result<ReleaseOutcome>>,
) -> Option<mongoseal::Result<ReleaseOutcome>> {
    let mut released = None;
    let shutdown = async {
        released = Some(release.await);
        seal.shutdown().await;
    };
    // After that time the lease has expired anyway. A signal shortens the wait.
    let until = Clock::Boot.now().after(remaining.max(GRACE));
    tokio::select! {
        biased;
        _ = signals.finish(shutdown) => {}
        () = Clock::Boot.sleep_until(until) => {}
    }
    released
}

/// Reports that a release is not confirmed.
fn report_doubt(released: Option<mongoseal::Result<ReleaseOutcome>>) {
    let doubt = match released {
        Some(Ok(outcome)) => format!("{outcome:?}"),
        Some(Err(error)) => Failure::from(&error).message().to_owned(),
        None => "no answer".to_owned(),
    };
    print_warning(&format!(
        "the release of the lease is not confirmed, so the lease may last until it expires: {doubt}"
    ));
}

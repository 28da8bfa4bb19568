//! The guard of a command: ends the command before the lease ends, even if the holder is stopped, blocked or dead.
//!
//! The guard is a process between the holder of the lease and the command. Its standard input is a socket, on which the
//! holder sends each new deadline. It has no runtime and blocks every signal. The command is in a process group of its
//! own, started by [`exec`], and dies with the guard.
//!
//! Invariant: without a new deadline, the group gets SIGTERM and then SIGKILL before the last known deadline. Only
//! SIGKILL and SIGSTOP keep the guard from that.

mod exec;
pub(crate) mod protocol;
mod schedule;

use std::{
    env,
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

pub(crate) use exec::EXEC;
use mongoseal::Clock;
use nix::sys::signal::SigSet;
use protocol::{GuardCommand, Report};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, test_kill_process_group, waitid},
};
use schedule::{Action, Schedule};

use crate::this_program;

/// The first argument that makes this program a guard.
pub(crate) const GUARD: &str = "__guard";

/// The longest sleep between two readings of the clock, because no timer runs while the machine is suspended.
const CLOCK_INTERVAL: Duration = Duration::from_millis(250);
/// The interval of the check whether the remaining processes of the group have ended.
const GROUP_INTERVAL: Duration = Duration::from_millis(5);

/// What the guard reacts to.
enum Event {
    Command(GuardCommand),
    /// The holder of the lease has ended or closed the socket.
    HolderGone,
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command has ended with this status, and is still a zombie.
    Ended(u8),
}

/// Runs this process as a guard or as the start of a command, if the first argument says so. Only this program passes
/// these arguments, to itself.
pub(crate) fn run_stage() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let first = arguments.next()?;
    if first == EXEC {
        return Some(exec::main(arguments));
    }
    (first == GUARD).then(|| match guard(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::print_message(&format!("cannot set up the guard of the command: {error}"));
            crate::exit_status::Status::INVALID.into()
        }
    })
}

fn guard(command: impl Iterator<Item = OsString>) -> io::Result<()> {
    SigSet::all().thread_block()?;
    // Orphans of the command then become children of this process, which reaps them.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (begin, stdin) = protocol::receive_begin(&socket)?;
    let GuardCommand::Begin { until, times } = begin else {
        return Err(io::Error::other("the holder sent no deadline"));
    };
    let group = start(command, stdin)?;
    report(&mut socket, Report::Group(group));
    let (sender, events) = channel();
    let reader = (sender.clone(), BufReader::new(socket.try_clone()?));
    thread::Builder::new().spawn(move || read_commands(&reader.0, reader.1))?;
    thread::Builder::new().spawn(move || wait_for_command(&sender, group))?;
    supervise(&mut socket, &events, group, Schedule::new(until, times));
    Ok(())
}

/// Starts the command and returns its process group. The command dies with this thread.
fn start(command: impl Iterator<Item = OsString>, stdin: OwnedFd) -> io::Result<Pid> {
    let child = Command::new(this_program()?)
        .arg0("mongoseal")
        .arg(EXEC)
        .arg(std::process::id().to_string())
        .args(command)
        .stdin(stdin)
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child))
}

/// Sends a report to the holder of the lease. Ignores that the holder is gone.
fn report(socket: &mut UnixStream, report: Report) {
    drop(writeln!(socket, "{report}"));
}

/// Reads the holder's commands, until the socket ends or a line is invalid.
fn read_commands(sender: &Sender<Event>, lines: BufReader<UnixStream>) {
    for line in lines.lines() {
        let Some(command) = line.ok().and_then(|line| line.parse().ok()) else { break };
        if sender.send(Event::Command(command)).is_err() {
            return;
        }
    }
    drop(sender.send(Event::HolderGone));
}

/// Waits until the command has ended, and reports its stops.
fn wait_for_command(sender: &Sender<Event>, group: Pid) {
    let command = WaitId::Pid(group);
    // NOWAIT leaves the zombie, so that no other process gets its id.
    let of_interest = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(command.clone(), of_interest) {
            Ok(Some(status)) if status.stopped() => {
                let seen = waitid(command.clone(), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                if let Ok(Some(signal)) = seen.map(|status| status?.stopping_signal()) {
                    drop(sender.send(Event::Stopped(signal)));
                }
            }
            Ok(Some(status)) => return drop(sender.send(Event::Ended(code(&status)))),
            Ok(None) | Err(Errno::INTR) => {}
            // The status is unknown.
            Err(_) => return drop(sender.send(Event::Ended(u8::MAX))),
        }
    }
}

/// Returns the status of a command that has ended, as a shell does.
fn code(status: &WaitIdStatus) -> u8 {
    let exited = status.exit_status();
    let code = exited.or_else(|| status.terminating_signal().map(|signal| signal.saturating_add(128)));
    u8::try_from(code.unwrap_or_default() & 0xff).unwrap_or_default()
}

/// Signals the group on schedule, until no process of the group is left.
fn supervise(socket: &mut UnixStream, events: &Receiver<Event>, group: Pid, mut schedule: Schedule) {
    let mut ended = None;
    loop {
        let now = Clock::Boot.now();
        match schedule.due(now) {
            Some(Action::Term) => {
                signal(group, Signal::TERM);
                // A stopped process handles SIGTERM only after SIGCONT.
                signal(group, Signal::CONT);
            }
            Some(Action::Kill) => signal(group, Signal::KILL),
            None => {}
        }
        if let Some(status) = ended
            && is_empty(group)
        {
            return report(socket, Report::Ended { status, signalled: schedule.is_signalled() });
        }
        let pause = if ended.is_some() { GROUP_INTERVAL } else { schedule.next(now).min(CLOCK_INTERVAL) };
        for event in receive(events, pause) {
            match event {
                Event::Command(GuardCommand::Begin { until, .. } | GuardCommand::Until(until)) => {
                    schedule.extend_to(until);
                }
                Event::Command(GuardCommand::Signal(number)) => {
                    if let Some(named) = Signal::from_named_raw(number) {
                        signal(group, named);
                    }
                }
                Event::Command(GuardCommand::End) | Event::HolderGone => schedule.end(Clock::Boot.now()),
                Event::Stopped(signal) => report(socket, Report::Stopped(signal)),
                Event::Ended(status) => {
                    schedule.ended(Clock::Boot.now());
                    ended = Some(status);
                }
            }
        }
    }
}

/// Returns the next event within this time. If it took much longer, this process was stopped: then all events since are
/// returned, commands first, so that a refresh counts before the deadline that it extends.
fn receive(events: &Receiver<Event>, pause: Duration) -> Vec<Event> {
    let late = Clock::Boot.now().saturating_add(pause).saturating_add(CLOCK_INTERVAL);
    let mut all = match events.recv_timeout(pause) {
        Ok(event) => vec![event],
        Err(RecvTimeoutError::Timeout) => Vec::new(),
        // Both threads have ended, and so has the command.
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(pause);
            return Vec::new();
        }
    };
    if Clock::Boot.now() > late {
        while let Ok(event) = events.recv_timeout(GROUP_INTERVAL) {
            all.push(event);
        }
        all.sort_by_key(|event| !matches!(event, Event::Command(_)));
    }
    all
}

/// Signals all processes of the group. Ignores that none is left.
fn signal(group: Pid, signal: Signal) {
    kill_process_group(group, signal).unwrap_or_default();
}

/// Reaps the ended children of this process in a group, and returns whether the group has no process left.
pub(crate) fn is_empty(group: Pid) -> bool {
    while let Ok(Some(_collected)) = waitid(WaitId::Pgid(Some(group)), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {}
    // EPERM means that a process of another user is left.
    test_kill_process_group(group) == Err(Errno::SRCH)
}

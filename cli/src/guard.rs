//! The guard of a command: a process between the one that holds the lease and the command, which ends the command
//! before the lease ends, also where the holder is stopped, blocked or dead.
//!
//! It asks nobody: the holder tells it until when the lease is good, by a socket that is its standard input, and
//! what it is not told has not happened. It has no runtime and blocks every signal, so that none but SIGKILL and
//! SIGSTOP can keep it from that. The command is in a process group of its own, begun by [`launch`], which dies with
//! the guard.

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

pub(crate) use exec::LAUNCH;
use mongoseal::Clock;
use nix::sys::signal::SigSet;
use protocol::{GuardCommand, Report};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, test_kill_process_group, waitid},
};
use schedule::{Action, Schedule};

use crate::this_program;

/// The first argument by which this program is a guard.
pub(crate) const GUARD: &str = "__guard";

/// How often it looks at the clock, as no timer runs while the machine sleeps.
const LOOK: Duration = Duration::from_millis(250);
/// How often it looks whether what the command left behind has ended.
const SWEEP: Duration = Duration::from_millis(5);

/// What it hears of.
enum Event {
    Command(GuardCommand),
    /// The holder of the lease has gone.
    Alone,
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command has ended, and nobody has collected it yet.
    Ended(u8),
}

/// Does what the first argument says, where it is one that only this program gives itself.
pub(crate) fn stage() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let first = arguments.next()?;
    if first == LAUNCH {
        return Some(exec::main(arguments));
    }
    (first == GUARD).then(|| match guard(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::say(&format!("the guard of a command could not be set up: {error}"));
            crate::exit_status::Status::INVALID.into()
        }
    })
}

fn guard(command: impl Iterator<Item = OsString>) -> io::Result<()> {
    SigSet::all().thread_block()?;
    // Whatever the command leaves behind is then this process's to collect.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, stdin) = protocol::first(&socket)?;
    let GuardCommand::Begin { until, times } = order else {
        return Err(io::Error::other("it was not told until when the lease is good"));
    };
    let group = begin(command, stdin)?;
    report(&mut socket, Report::Group(group));
    let (hear, heard) = channel();
    let listening = (hear.clone(), BufReader::new(socket.try_clone()?));
    thread::Builder::new().spawn(move || listen(&listening.0, listening.1))?;
    thread::Builder::new().spawn(move || wait(&hear, group))?;
    watch(&mut socket, &heard, group, Schedule::new(until, times));
    Ok(())
}

/// Begins the command, on this thread, whose end is its end. Gives its process group.
fn begin(command: impl Iterator<Item = OsString>, stdin: OwnedFd) -> io::Result<Pid> {
    let child = Command::new(this_program()?)
        .arg0("mongoseal")
        .arg(LAUNCH)
        .arg(std::process::id().to_string())
        .args(command)
        .stdin(stdin)
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child))
}

/// Says it to the holder of the lease. One that has gone needs to hear nothing.
fn report(socket: &mut UnixStream, report: Report) {
    drop(writeln!(socket, "{report}"));
}

fn listen(hear: &Sender<Event>, orders: BufReader<UnixStream>) {
    for line in orders.lines() {
        let Some(order) = line.ok().and_then(|line| line.parse().ok()) else { break };
        if hear.send(Event::Command(order)).is_err() {
            return;
        }
    }
    // Whatever ended it, nothing is heard any more.
    drop(hear.send(Event::Alone));
}

fn wait(hear: &Sender<Event>, group: Pid) {
    let command = WaitId::Pid(group);
    // It is not collected here: until that is done, no other process can have its number.
    let of_interest = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(command.clone(), of_interest) {
            Ok(Some(status)) if status.stopped() => {
                let seen = waitid(command.clone(), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                if let Ok(Some(signal)) = seen.map(|status| status?.stopping_signal()) {
                    drop(hear.send(Event::Stopped(signal)));
                }
            }
            Ok(Some(status)) => return drop(hear.send(Event::Ended(code(&status)))),
            Ok(None) | Err(Errno::INTR) => {}
            // Nobody can tell how it ended.
            Err(_) => return drop(hear.send(Event::Ended(u8::MAX))),
        }
    }
}

/// The status of a command that has ended, as shells have it.
fn code(status: &WaitIdStatus) -> u8 {
    let exited = status.exit_status();
    let code = exited.or_else(|| status.terminating_signal().map(|signal| signal.saturating_add(128)));
    u8::try_from(code.unwrap_or_default() & 0xff).unwrap_or_default()
}

/// Ends what must end in time, until nothing of the command is left.
fn watch(socket: &mut UnixStream, heard: &Receiver<Event>, group: Pid, mut plan: Schedule) {
    let mut ended = None;
    loop {
        let now = Clock::Boot.now();
        match plan.due(now) {
            Some(Action::Term) => {
                signal(group, Signal::TERM);
                // One that is stopped hears nothing else.
                signal(group, Signal::CONT);
            }
            Some(Action::Kill) => signal(group, Signal::KILL),
            None => {}
        }
        if let Some(status) = ended
            && is_empty(group)
        {
            return report(socket, Report::Over { status, told: plan.is_told() });
        }
        let nap = if ended.is_some() { SWEEP } else { plan.next(now).min(LOOK) };
        for heard in hear(heard, nap) {
            match heard {
                Event::Command(GuardCommand::Begin { until, .. } | GuardCommand::Until(until)) => {
                    plan.good_until(until);
                }
                Event::Command(GuardCommand::Signal(number)) => {
                    if let Some(named) = Signal::from_named_raw(number) {
                        signal(group, named);
                    }
                }
                Event::Command(GuardCommand::End) | Event::Alone => plan.end(Clock::Boot.now()),
                Event::Stopped(signal) => report(socket, Report::Stopped(signal)),
                Event::Ended(status) => {
                    plan.ended(Clock::Boot.now());
                    ended = Some(status);
                }
            }
        }
    }
}

/// What is heard within this time. Where it took much longer, because this process was stopped, it is all that came
/// meanwhile, orders first: a lease that was refreshed is not one to end the command for.
fn hear(heard: &Receiver<Event>, nap: Duration) -> Vec<Event> {
    let late = Clock::Boot.now().saturating_add(nap).saturating_add(LOOK);
    let mut all = match heard.recv_timeout(nap) {
        Ok(one) => vec![one],
        Err(RecvTimeoutError::Timeout) => Vec::new(),
        // Both threads have ended, which is not before the command has.
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(nap);
            return Vec::new();
        }
    };
    if Clock::Boot.now() > late {
        while let Ok(more) = heard.recv_timeout(SWEEP) {
            all.push(more);
        }
        all.sort_by_key(|heard| !matches!(heard, Event::Command(_)));
    }
    all
}

/// Signals all of the group. Where nobody is left, nobody needs it.
fn signal(group: Pid, signal: Signal) {
    kill_process_group(group, signal).unwrap_or_default();
}

/// Whether nothing is left of a group. Those that have ended, and whose parent has, are collected.
pub(crate) fn is_empty(group: Pid) -> bool {
    while let Ok(Some(_collected)) = waitid(WaitId::Pgid(Some(group)), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {}
    // A process of another user refuses the signal, and is there.
    test_kill_process_group(group) == Err(Errno::SRCH)
}

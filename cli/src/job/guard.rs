//! The guard of a command: ends the command before the lease ends, even if the holder is stopped, blocked or dead.
//!
//! The guard is a process between the holder of the lease and the command. Its standard input is a socket, on which the
//! holder sends each new deadline. It has no runtime and blocks every signal. The command is in a process group of its
//! own, started by [`exec`], and dies with the guard. The guard reaps the orphans of the command. If the holder is gone when
//! no process of the command is left, the guard has the leases released: see [`release`].
//!
//! Invariant: without a new deadline, the group and the [`orphans`] get SIGTERM and then SIGKILL before the last known
//! deadline. Only SIGKILL and SIGSTOP keep the guard from that: the guard never waits for the holder while a process of
//! the command can be left.

mod exec;
mod holder;
pub(crate) mod orphans;
pub(crate) mod protocol;
pub(crate) mod release;
mod schedule;

use std::{
    collections::HashSet,
    env,
    ffi::OsString,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

pub(crate) use exec::EXEC;
use holder::Holder;
use mongoseal::store::{Clock, Instant};
use nix::sys::signal::{SigSet, Signal::SIGCHLD};
use orphans::Rest;
use protocol::{Exit, GuardCommand, Report};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::SendFlags,
    process::{Pid, Signal, WaitId, WaitIdOptions, waitid},
};
pub(crate) use schedule::Action;
use schedule::Schedule;

use crate::process::this_program;

/// The first argument that makes this program a guard.
pub(crate) const GUARD: &str = "__guard";

/// The longest sleep between two readings of the clock, because no timer runs while the machine is suspended.
const CLOCK_INTERVAL: Duration = Duration::from_millis(250);
/// The interval of the check whether the rest of the command has ended.
const REST_INTERVAL: Duration = Duration::from_millis(5);

/// Runs this process as a guard or as the start of a command, if the first argument says so. Only this program passes
/// these arguments, to itself.
pub(crate) fn run_stage() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let first = arguments.next()?;
    if first == EXEC {
        return Some(exec::main(arguments));
    }
    if first == release::RELEASE {
        return Some(release::main());
    }
    (first == GUARD).then(|| match guard(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::ui::message::print_error(&format!("cannot set up the guard of the command: {error}"));
            crate::exit_status::Status::INVALID.into()
        }
    })
}

fn guard(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    SigSet::all().thread_block()?;
    // Orphans of the command then become children of this process, which reaps them.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (begin, stdin, order) = protocol::receive_begin(&socket)?;
    let GuardCommand::Begin { until, times, is_nested } = begin else {
        return Err(io::Error::other("the holder sent no deadline"));
    };
    let mut schedule = Schedule::new(Instant::at(until), times);
    if schedule.due(Clock::Boot.now()).is_some() {
        return report_end(&mut socket, Exit::Code(0), true, order);
    }
    let blocked = arguments.next().unwrap_or_default();
    let (stops, stopped) = io::pipe()?;
    // Before the command starts, because a limit on threads can refuse them.
    let (to_wait, to_reap) = (channel(), channel());
    thread::Builder::new().spawn(move || to_wait.1.recv().map(|group| report_stops(stopped, group)))?;
    thread::Builder::new().spawn(move || to_reap.1.recv().map(reap_orphans))?;
    let group = start(&socket, blocked, arguments, &stdin)?;
    [to_wait.0, to_reap.0].into_iter().try_for_each(|thread| thread.send(group)).map_err(io::Error::other)?;
    let mut holder = Holder::new(socket.try_clone()?);
    let exit = supervise(&mut holder, group, stops, &mut schedule, is_nested);
    report_end(&mut socket, exit, schedule.is_signalled(), order)
}

/// Starts the command, reports and returns its process group. The command dies with this thread.
fn start(
    socket: &UnixStream,
    blocked: OsString,
    command: impl Iterator<Item = OsString>,
    stdin: &OwnedFd,
) -> io::Result<Pid> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(this_program()?)
        .arg0("mongoseal")
        .arg(EXEC)
        .arg(std::process::id().to_string())
        .arg(blocked)
        .args(command)
        .stdin(OwnedFd::from(theirs))
        .process_group(0)
        .spawn()?;
    let group = Pid::from_child(&child);
    // Nothing was reported before, so the socket has room.
    report(socket, Report::Group(group.as_raw_pid()));
    protocol::send_stdin(&ours, stdin.as_fd())?;
    Ok(group)
}

/// Sends a report that the holder can do without. If the socket is full, or the holder is gone, drops the report.
fn report(socket: &UnixStream, report: Report) {
    rustix::net::send(socket, protocol::line(&report).as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok();
}

/// Sends the last report. Waits until the socket has room for it: no process of the command is left. If the holder is gone,
/// has its leases released.
fn report_end(socket: &mut UnixStream, exit: Exit, signalled: bool, order: Option<OwnedFd>) -> io::Result<()> {
    match socket.write_all(protocol::line(&Report::Ended { exit, signalled }).as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => order.map_or(Ok(()), release::start),
        written => written,
    }
}

/// Writes the signal of each stop of the command to the pipe, and closes the pipe when the command has ended. The command
/// stays a zombie.
fn report_stops(mut stops: PipeWriter, group: Pid) {
    let command = WaitId::Pid(group);
    // NOWAIT leaves the zombie, so that no other process gets its id.
    let of_interest = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(command.clone(), of_interest) {
            Ok(Some(status)) if status.stopped() => {
                let seen = waitid(command.clone(), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                if let Ok(Some(signal)) = seen.map(|status| status?.stopping_signal()) {
                    stops.write_all(&[u8::try_from(signal).unwrap_or_default()]).unwrap_or_default();
                }
            }
            Ok(None) | Err(Errno::INTR) => {}
            Ok(Some(_)) | Err(_) => return,
        }
    }
}

/// Returns how the command has ended, if it has. It stays a zombie.
fn exit(group: Pid) -> Option<Exit> {
    match waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT) {
        Ok(None) | Err(Errno::INTR) => None,
        Ok(Some(status)) => Some(match (status.exit_status(), status.terminating_signal()) {
            (None, Some(signal)) => Exit::Signal(signal),
            // Exit statuses have 8 bits.
            (code, _) => Exit::Code(u8::try_from(code.unwrap_or_default() & 0xff).unwrap_or_default()),
        }),
        // The status is unknown.
        Err(_) => Some(Exit::Code(u8::MAX)),
    }
}

/// Reaps each orphan of the command as soon as it has ended. The command stays a zombie, so that no other process gets
/// its id.
fn reap_orphans(group: Pid) {
    let mut child_ended = SigSet::empty();
    child_ended.add(SIGCHLD);
    let command = HashSet::from([group]);
    while child_ended.wait().is_ok() {
        orphans::reap_except(&command);
    }
}

/// Signals the command on schedule, until nothing of it is left. Returns how the command ended.
fn supervise(holder: &mut Holder, group: Pid, mut stops: PipeReader, schedule: &mut Schedule, is_nested: bool) -> Exit {
    let mut rest = Rest::new(group, HashSet::new());
    let (mut ended, mut action) = (None, None);
    loop {
        // Before the commands are read: then a refresh counts before the deadline that it extends, even if this process was
        // stopped meanwhile.
        let now = Clock::Boot.now();
        for command in holder.receive() {
            match command {
                GuardCommand::Begin { until, .. } | GuardCommand::Until(until) => {
                    schedule.extend_to(Instant::at(until));
                }
                GuardCommand::Signal(number) => {
                    if let Some(named) = Signal::from_named_raw(number) {
                        rest.signal_group(named);
                    }
                }
                GuardCommand::End => schedule.end(now),
            }
        }
        match holder.is_gone() {
            // The program was ended by an outer guard, whose lease ends sooner than the times of this one allow.
            true if is_nested => schedule.kill(now),
            true => schedule.end(now),
            false => {}
        }
        if ended.is_none()
            && let Some(exit) = exit(group)
        {
            schedule.ended(now);
            ended = Some(exit);
        }
        if let Some(due) = schedule.due(now) {
            rest.act_on_group(due);
            action = Some(due);
        }
        if let Some(exit) = ended
            && rest.is_over()
        {
            return exit;
        }
        if let Some(action) = action {
            rest.act_on_orphans(action);
        }
        match ended {
            Some(_) => thread::sleep(REST_INTERVAL),
            None => wait(holder, &mut stops, schedule.next(now).min(CLOCK_INTERVAL)),
        }
    }
}

/// Waits until the holder has sent something, or the command was stopped or has ended, or this time has passed. Reports the
/// stops.
fn wait(holder: &Holder, stops: &mut PipeReader, pause: Duration) {
    let pause = Timespec::try_from(pause).ok();
    let mut of_interest = [PollFd::new(stops, PollFlags::IN), PollFd::new(holder.socket(), PollFlags::IN)];
    // The socket of a holder that is gone would end each wait at once.
    let watched = if holder.is_gone() { &mut of_interest[..1] } else { &mut of_interest[..] };
    poll(watched, pause.as_ref()).unwrap_or_default();
    if of_interest[0].revents().contains(PollFlags::IN) {
        let mut signals = [0; 16];
        let count = stops.read(&mut signals).unwrap_or_default();
        signals[..count].iter().for_each(|signal| report(holder.socket(), Report::Stopped(i32::from(*signal))));
    }
}

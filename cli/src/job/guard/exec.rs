//! The start of the command: a process that ties itself to the guard and then executes the command.
//!
//! The command begins when the guard sends its standard input. By then the guard has reported the process group, so the
//! holder knows each command that has begun, also if the guard is killed.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    io,
    os::fd::AsFd,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
};

use nix::{libc::SIGPIPE, unistd::execvp};

use super::protocol;
use crate::{exit_status::Status, job::signals::SignalMask, process::to_c_strings, ui::message::print_error};

/// The first argument that makes this program execute a command. The second is the process id of the guard, the third
/// is the mask of the signals that were blocked when the program started.
pub(crate) const EXEC: &str = "__exec";

/// Executes the command. Returns only if that fails.
pub(super) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (guard, blocked) = (arguments.next(), arguments.next());
    match prepare(guard.as_deref(), blocked.as_deref()) {
        Ok(true) => {}
        // The guard has ended, and the holder prints that.
        Ok(false) => return Status::INVALID.into(),
        Err(error) => {
            print_error(&format!("cannot tie the command to its guard: {error}"));
            return Status::INVALID.into();
        }
    }
    let command: Vec<OsString> = arguments.collect();
    let Err(error) = execute(&command);
    print_error(&format!("cannot run {}: {error}", command.first().unwrap_or(&OsString::new()).display()));
    let status = if error.kind() == io::ErrorKind::NotFound { Status::NOT_FOUND } else { Status::NOT_EXECUTABLE };
    status.into()
}

/// Makes this process die with the guard, also after the exec, waits for the standard input, and blocks the signals that
/// were blocked before. Returns whether the command can begin: the guard has not ended.
fn prepare(guard: Option<&OsStr>, blocked: Option<&OsStr>) -> io::Result<bool> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The guard may have ended before the call above.
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_pid().to_string());
    if parent.as_deref().map(OsStr::new) != guard {
        return Ok(false);
    }
    let Some(stdin) = protocol::receive_stdin(io::stdin().as_fd())? else { return Ok(false) };
    rustix::stdio::dup2_stdin(stdin)?;
    let blocked = blocked.and_then(OsStr::to_str).and_then(SignalMask::parse).unwrap_or_default();
    blocked.to_set().thread_set_mask()?;
    // The standard library has made this process ignore SIGPIPE. The exec resets a signal with a handler.
    signal_hook::flag::register(SIGPIPE, Arc::new(AtomicBool::new(false)))?;
    Ok(true)
}

/// Executes a command, which is looked up in `PATH`. The standard library's exec would unblock all signals.
fn execute(command: &[OsString]) -> io::Result<Infallible> {
    let strings = to_c_strings(command.iter().cloned())?;
    let program = strings.first().ok_or(io::ErrorKind::NotFound)?;
    Ok(execvp(program, &strings)?)
}

//! The start of the command: a process that ties itself to the guard and then executes the command.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use nix::sys::signal::SigSet;

use crate::{exit_status::Status, print_message};

/// The first argument that makes this program execute a command. The second is the process id of the guard.
pub(crate) const EXEC: &str = "__exec";

/// Executes the command. Returns only if that fails.
pub(super) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (guard, command) = (arguments.next(), arguments.next().unwrap_or_default());
    if let Err(error) = prepare(guard.as_deref()) {
        print_message(&format!("cannot tie the command to its guard: {error}"));
        return Status::INVALID.into();
    }
    let error = Command::new(&command).args(arguments).exec();
    print_message(&format!("cannot run {}: {error}", command.display()));
    let status = if error.kind() == io::ErrorKind::NotFound { Status::NOT_FOUND } else { Status::NOT_EXECUTABLE };
    status.into()
}

/// Makes this process die with the guard, also after the exec, and unblocks its signals.
fn prepare(guard: Option<&OsStr>) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // The guard may have ended before the call above.
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_pid().to_string());
    if parent.as_deref().map(OsStr::new) != guard {
        return Err(io::Error::other("the guard has ended"));
    }
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

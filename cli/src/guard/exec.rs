//! The last step before the command: the process that becomes it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use nix::sys::signal::SigSet;

use crate::{exit_status::Status, say};

/// The first argument by which this program becomes a command. The second is the number of the guard.
pub(crate) const LAUNCH: &str = "__launch";

/// Becomes the command; comes back where it cannot.
pub(super) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (guard, command) = (arguments.next(), arguments.next().unwrap_or_default());
    if let Err(error) = prepare(guard.as_deref()) {
        say(&format!("the command could not be tied to its guard: {error}"));
        return Status::INVALID.into();
    }
    let error = Command::new(&command).args(arguments).exec();
    say(&format!("{} cannot be run: {error}", command.display()));
    let status = if error.kind() == io::ErrorKind::NotFound { Status::NOT_FOUND } else { Status::NOT_EXECUTABLE };
    status.into()
}

/// Sees to it that this process, whatever it becomes, ends with the guard, and hears signals again.
fn prepare(guard: Option<&OsStr>) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // It may have ended before.
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_pid().to_string());
    if parent.as_deref().map(OsStr::new) != guard {
        return Err(io::Error::other("it has ended"));
    }
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

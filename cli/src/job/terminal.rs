//! Job control: passes the terminal to the command and back, and stops this program with the command.

use std::fs::File;

use rustix::{
    process::{Pid, Signal, getpgid, getpgrp, getppid, getsid, kill_process_group},
    termios::{tcgetpgrp, tcsetpgrp},
};

/// The controlling terminal of this process, if there is one.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: Option<File>,
    /// Whether the command's group is in the foreground.
    lent: bool,
}

impl Terminal {
    pub(crate) fn open() -> Self {
        Self { file: File::options().read(true).write(true).open("/dev/tty").ok(), lent: false }
    }

    /// Puts a process group in the foreground, if this process's group is there. Returns whether the command has it.
    fn lend(&mut self, group: Pid) -> bool {
        let Some(file) = &self.file else { return false };
        self.lent = match tcgetpgrp(file) {
            Ok(foreground) if foreground == getpgrp() => tcsetpgrp(file, group).is_ok(),
            // A third group can be in the foreground.
            Ok(foreground) => foreground == group,
            Err(_) => false,
        };
        self.lent
    }

    /// Takes the foreground back from the command, and returns whether the command had it. SIGTTOU must be blocked.
    pub(crate) fn take_back(&mut self) -> bool {
        if let (Some(file), true) = (&self.file, self.lent) {
            // Fails if the terminal is gone.
            tcsetpgrp(file, getpgrp()).unwrap_or_default();
        }
        std::mem::take(&mut self.lent)
    }

    /// Reacts to a stop of the command's group by `signal`, and returns whether the command must continue now.
    ///
    /// If the command stopped because it needs the terminal, it gets the foreground. Otherwise this program's group stops,
    /// too, so that the shell which started it continues. The group can have other processes: the rest of a pipeline.
    pub(crate) fn stopped(&mut self, group: Pid, signal: i32) -> bool {
        let wants = [Signal::TTIN, Signal::TTOU].into_iter().any(|want| want.as_raw() == signal);
        if self.file.is_none() || !(wants || self.lent || signal == Signal::TSTP.as_raw()) {
            // The sender of the signal continues the command.
            return false;
        }
        if wants && self.lend(group) {
            return true;
        }
        let had = self.take_back();
        if is_job_of_a_shell() {
            kill_process_group(getpgrp(), Signal::STOP).unwrap_or_default();
            // Continued here by the shell, in the foreground or in the background.
            if wants || had {
                self.lend(group);
            }
            return true;
        }
        // Without a shell, no process would continue the command.
        had && self.lend(group)
    }
}

/// Returns whether a shell of this session can continue this program's group. The parent process must be in this
/// session, and the leader of the session in another group.
pub(crate) fn is_job_of_a_shell() -> bool {
    match (getsid(None), getsid(getppid())) {
        (Ok(session), Ok(of_parent)) => session == of_parent && getpgid(Some(session)) != Ok(getpgrp()),
        _ => false,
    }
}

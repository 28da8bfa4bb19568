//! The terminal: whose turn it is to read from it, and what stops there.

use std::fs::File;

use rustix::{
    process::{Pid, Signal, getpgrp, getpid, getppid, getsid, kill_process},
    termios::{tcgetpgrp, tcsetpgrp},
};

/// The terminal that controls this process, where there is one.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: Option<File>,
    /// Whether the command has it.
    lent: bool,
}

impl Terminal {
    pub(crate) fn open() -> Self {
        Self { file: File::options().read(true).write(true).open("/dev/tty").ok(), lent: false }
    }

    /// Gives it to this process group, where it is this one's to give.
    fn lend(&mut self, group: Pid) -> bool {
        let Some(file) = &self.file else { return false };
        if tcgetpgrp(file).is_ok_and(|foreground| foreground == getpgrp()) {
            self.lent = tcsetpgrp(file, group).is_ok();
        }
        self.lent
    }

    /// Takes it back from the command, where that has it. For which SIGTTOU must be blocked.
    pub(crate) fn take_back(&mut self) -> bool {
        if let (Some(file), true) = (&self.file, self.lent) {
            // Where it is gone there is nothing to take.
            tcsetpgrp(file, getpgrp()).unwrap_or_default();
        }
        std::mem::take(&mut self.lent)
    }

    /// The command, which is this process group, was stopped by this signal: gives it the terminal if that is what it
    /// stopped for; else stops with it, so that the shell that began this program can go on. Says whether the command
    /// is to go on now.
    pub(crate) fn stopped(&mut self, group: Pid, signal: i32) -> bool {
        let wants = [Signal::TTIN, Signal::TTOU].into_iter().any(|want| want.as_raw() == signal);
        if self.file.is_none() || !(wants || self.lent || signal == Signal::TSTP.as_raw()) {
            // Whoever stopped it there lets it go on.
            return false;
        }
        if wants && self.lend(group) {
            return true;
        }
        let had = self.take_back();
        if is_job_of_a_shell() {
            kill_process(getpid(), Signal::STOP).unwrap_or_default();
            // It goes on here, in the foreground or not.
            if wants || had {
                self.lend(group);
            }
            return true;
        }
        // Nobody would let it go on.
        had && self.lend(group)
    }
}

/// Whether whoever began this program can stop it and let it go on, as a shell does.
fn is_job_of_a_shell() -> bool {
    match (getsid(None), getsid(getppid())) {
        (Ok(ours), Ok(theirs)) => ours == theirs,
        _ => false,
    }
}

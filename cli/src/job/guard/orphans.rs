//! The orphans of the command: its descendants that have become children of this process.
//!
//! If a parent ends, the system gives its children to the nearest ancestor that is a subreaper. This covers a descendant
//! that has left the command's process group: GNU timeout(1), setsid(1) and the jobs of an interactive shell leave it.
//! Linux only: other systems have no subreaper, or no list of children.

use std::{collections::HashSet, fs};

use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process, kill_process_group, test_kill_process_group, waitid,
    },
};

use super::schedule::Action;
use crate::exit_status::Failure;

/// Refuses a `/proc` of another namespace of process ids. Its numbers would name other processes, or none.
pub(crate) fn ensure_own_numbers() -> Result<(), Failure> {
    let own = std::process::id().to_string();
    match fs::read_link("/proc/self") {
        Ok(link) if link.as_os_str() != own.as_str() => Err(Failure::invalid(
            "/proc has the process ids of another namespace, so the processes of the command cannot be found: mount the /proc of this namespace, for example by `unshare --pid --fork --mount-proc`",
        )),
        // Systems without it have no list of children either.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Lists the children of this process. Returns none if the system has no such list.
pub(crate) fn children() -> HashSet<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(parse_pid).collect::<Vec<_>>()).collect()
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// Reaps the children of this process that have ended, except these.
pub(crate) fn reap_except(kept: &HashSet<Pid>) {
    for child in children().difference(kept) {
        // Fails if another thread has reaped it.
        waitid(WaitId::Pid(*child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok();
    }
}

/// The rest of a command: its process group, and its orphans in other groups.
#[derive(Debug)]
pub(crate) struct Rest {
    group: Pid,
    /// Children of this process that do not descend from the command.
    others: HashSet<Pid>,
    /// The orphans that got SIGTERM.
    terminated: HashSet<Pid>,
}

impl Rest {
    pub(crate) fn new(group: Pid, others: HashSet<Pid>) -> Self {
        Self { group, others, terminated: HashSet::new() }
    }

    /// Signals the group. Ignores that no process of the group is left.
    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(self.group, signal).unwrap_or_default();
    }

    /// Applies an action to the group, once.
    pub(crate) fn act_on_group(&self, action: Action) {
        match action {
            Action::Term => {
                self.signal_group(Signal::TERM);
                // A stopped process handles SIGTERM only after SIGCONT.
                self.signal_group(Signal::CONT);
            }
            Action::Kill => self.signal_group(Signal::KILL),
        }
    }

    /// Applies an action to the orphans in other groups. Each gets SIGTERM once. To be repeated: if an orphan ends, its
    /// children become orphans.
    pub(crate) fn act_on_orphans(&mut self, action: Action) {
        for orphan in self.orphans() {
            match action {
                Action::Term if self.terminated.insert(orphan) => {
                    signal(orphan, Signal::TERM);
                    signal(orphan, Signal::CONT);
                }
                Action::Term => {}
                Action::Kill => signal(orphan, Signal::KILL),
            }
        }
    }

    /// Returns the children of this process that are orphans of the command, outside its group.
    fn orphans(&self) -> Vec<Pid> {
        let is_outside = |child: &Pid| getpgid(Some(*child)).is_ok_and(|group| group != self.group);
        children().difference(&self.others).copied().filter(is_outside).collect()
    }

    /// Reaps what has ended, and returns whether no process of the group and no orphan is left. The command itself must
    /// have ended.
    pub(crate) fn is_over(&self) -> bool {
        while let Ok(Some(_reaped)) =
            waitid(WaitId::Pgid(Some(self.group)), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
        {}
        reap_except(&self.others);
        // EPERM means that a process of another user is left.
        let is_group_over = test_kill_process_group(self.group) == Err(Errno::SRCH);
        is_group_over && children().is_subset(&self.others)
    }
}

fn signal(process: Pid, signal: Signal) {
    // Fails if it has ended, or belongs to another user.
    kill_process(process, signal).unwrap_or_default();
}

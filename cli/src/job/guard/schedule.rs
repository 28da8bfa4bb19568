//! The times at which a command gets signals: a state machine on a clock, without processes.

use std::time::Duration;

use mongoseal::store::Instant;

use super::protocol::Times;

/// The time that the rest of the command has after the command has ended, for example to read the rest of a pipe.
const REST_GRACE: Duration = Duration::from_secs(1);

/// The signal that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// SIGTERM, for the whole command.
    Term,
    /// SIGKILL, for the whole command.
    Kill,
}

/// The times of both signals, on the boot-time clock.
#[derive(Debug)]
pub(crate) struct Schedule {
    times: Times,
    term_at: Instant,
    kill_at: Instant,
    stage: Stage,
    has_ended: bool,
    is_signalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Runs,
    Signalled,
    Killed,
}

impl Schedule {
    /// Makes the schedule of a lease that is valid until then.
    pub(crate) fn new(until: Instant, times: Times) -> Self {
        let at = Instant::ORIGIN;
        let stage = Stage::Runs;
        let mut schedule = Self { times, term_at: at, kill_at: at, stage, has_ended: false, is_signalled: false };
        schedule.extend_to(until);
        schedule
    }

    /// Moves the deadline after a refresh. Has no effect if the command got SIGTERM or has ended.
    pub(crate) fn extend_to(&mut self, until: Instant) {
        if self.stage == Stage::Runs && !self.has_ended {
            self.term_at = until.before(self.times.term_before);
            self.kill_at = until.before(self.times.kill_before);
        }
    }

    /// Schedules the end of the command, for example because the lease is lost or the holder is gone.
    pub(crate) fn end(&mut self, at: Instant) {
        self.term_at = self.term_at.min(at);
        self.kill_at = self.kill_at.min(self.term_at.after(self.times.between()));
    }

    /// Schedules SIGKILL for now.
    pub(crate) fn kill(&mut self, now: Instant) {
        self.kill_at = self.kill_at.min(now);
    }

    /// Schedules the end of the rest of the command, after the command has ended. If SIGTERM was already due, the command
    /// counts as signalled: it may have ended after that time.
    pub(crate) fn ended(&mut self, now: Instant) {
        self.is_signalled |= now >= self.term_at;
        self.has_ended = true;
        self.end(now.after(REST_GRACE));
    }

    /// Returns the signal that is due, once.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Action> {
        if self.stage != Stage::Killed && now >= self.kill_at {
            self.is_signalled |= !self.has_ended;
            self.stage = Stage::Killed;
            return Some(Action::Kill);
        }
        if self.stage == Stage::Runs && now >= self.term_at {
            self.is_signalled |= !self.has_ended;
            self.stage = Stage::Signalled;
            return Some(Action::Term);
        }
        None
    }

    /// Returns the time until the next signal is due.
    pub(crate) fn next(&self, now: Instant) -> Duration {
        match self.stage {
            Stage::Runs => self.term_at.min(self.kill_at).since(now),
            Stage::Signalled => self.kill_at.since(now),
            Stage::Killed => Duration::MAX,
        }
    }

    /// Returns whether a signal was sent or due before the command had ended.
    pub(crate) fn is_signalled(&self) -> bool {
        self.is_signalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn at(seconds: u64) -> Instant {
        Instant::at(secs(seconds))
    }

    fn schedule(until: u64) -> Schedule {
        Schedule::new(at(until), Times { term_before: secs(5), kill_before: secs(1) })
    }

    #[test]
    fn a_command_is_signalled_and_then_ended_before_the_lease_ends() {
        let mut schedule = schedule(100);
        assert_eq!((schedule.due(at(94)), schedule.next(at(94))), (None, secs(1)));
        assert_eq!((schedule.due(at(95)), schedule.next(at(95))), (Some(Action::Term), secs(4)));
        assert_eq!(schedule.due(at(98)), None);
        assert_eq!((schedule.due(at(99)), schedule.due(at(200))), (Some(Action::Kill), None));
        assert!(schedule.is_signalled());
    }

    #[test]
    fn a_refresh_moves_the_end_on_until_the_command_was_told() {
        let mut schedule = schedule(100);
        schedule.extend_to(at(110));
        assert_eq!(schedule.due(at(99)), None);
        assert_eq!(schedule.due(at(105)), Some(Action::Term));
        schedule.extend_to(at(120));
        assert_eq!(schedule.due(at(109)), Some(Action::Kill));
    }

    #[test]
    fn a_lease_that_was_taken_away_ends_the_command_at_once_and_no_later_than_its_own_end() {
        let mut early = schedule(100);
        early.end(at(80));
        assert_eq!((early.due(at(80)), early.due(at(83))), (Some(Action::Term), None));
        early.end(at(83));
        assert_eq!(early.due(at(84)), Some(Action::Kill));
        let mut late = schedule(100);
        late.end(at(98));
        assert_eq!((late.due(at(98)), late.due(at(99))), (Some(Action::Term), Some(Action::Kill)));
        let mut past = schedule(100);
        past.end(at(130));
        assert_eq!((past.due(at(130)), past.due(at(130))), (Some(Action::Kill), None));
    }

    #[test]
    fn a_command_that_is_to_be_killed_gets_no_sigterm() {
        let mut schedule = schedule(100);
        schedule.kill(at(50));
        assert_eq!((schedule.due(at(50)), schedule.due(at(99))), (Some(Action::Kill), None));
        assert!(schedule.is_signalled());
    }

    #[test]
    fn what_a_command_left_behind_has_a_moment_and_the_command_was_not_told() {
        let mut schedule = schedule(100);
        schedule.ended(at(50));
        schedule.extend_to(at(200));
        assert_eq!(
            (schedule.due(at(50)), schedule.due(at(51)), schedule.due(at(55))),
            (None, Some(Action::Term), Some(Action::Kill))
        );
        assert!(!schedule.is_signalled());
    }

    #[test]
    fn a_command_whose_end_is_seen_when_it_should_have_been_told_counts_as_told() {
        let mut late = schedule(100);
        late.ended(at(95));
        assert!(late.is_signalled());
        let mut refreshed = schedule(100);
        refreshed.extend_to(at(110));
        refreshed.ended(at(95));
        assert!(!refreshed.is_signalled());
    }
}

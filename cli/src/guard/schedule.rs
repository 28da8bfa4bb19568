//! When a command is ended: a plan on the clock, without processes.

use std::time::Duration;

use super::protocol::Times;

/// How long what a command left behind may go on when it has ended, as that which reads the rest of a pipe does.
const LINGER: Duration = Duration::from_secs(1);

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// All of the group are told to end.
    Term,
    /// All of the group are ended.
    Kill,
}

/// When the group is told to end, and when it is ended.
#[derive(Debug)]
pub(crate) struct Schedule {
    times: Times,
    term_at: Duration,
    kill_at: Duration,
    stage: Stage,
    has_ended: bool,
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Runs,
    Signalled,
    Killed,
}

impl Schedule {
    /// For a lease that is good until then, on the clock.
    pub(crate) fn new(until: Duration, times: Times) -> Self {
        let at = Duration::ZERO;
        let mut plan = Self { times, term_at: at, kill_at: at, stage: Stage::Runs, has_ended: false, told: false };
        plan.good_until(until);
        plan
    }

    /// The lease was refreshed. What was told to end, or has ended, is not given more time by that.
    pub(crate) fn good_until(&mut self, until: Duration) {
        if self.stage == Stage::Runs && !self.has_ended {
            self.term_at = until.saturating_sub(self.times.term_before);
            self.kill_at = until.saturating_sub(self.times.kill_before);
        }
    }

    /// The lease is no more, or nobody can tell: it ends from now on.
    pub(crate) fn end(&mut self, now: Duration) {
        self.term_by(now);
    }

    /// The command has ended; what it left behind has a little time. Where it should have been told to by now, nobody
    /// can tell that it ended before.
    pub(crate) fn ended(&mut self, now: Duration) {
        self.told |= now >= self.term_at;
        self.has_ended = true;
        self.term_by(now.saturating_add(LINGER));
    }

    fn term_by(&mut self, at: Duration) {
        self.term_at = self.term_at.min(at);
        self.kill_at = self.kill_at.min(self.term_at.saturating_add(self.times.between()));
    }

    /// What is to be done now; it then counts as done.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Action> {
        if self.stage != Stage::Killed && now >= self.kill_at {
            self.told |= !self.has_ended;
            self.stage = Stage::Killed;
            return Some(Action::Kill);
        }
        if self.stage == Stage::Runs && now >= self.term_at {
            self.told |= !self.has_ended;
            self.stage = Stage::Signalled;
            return Some(Action::Term);
        }
        None
    }

    /// How long it is until something is due.
    pub(crate) fn next(&self, now: Duration) -> Duration {
        match self.stage {
            Stage::Runs => self.term_at.min(self.kill_at).saturating_sub(now),
            Stage::Signalled => self.kill_at.saturating_sub(now),
            Stage::Killed => Duration::MAX,
        }
    }

    /// Whether the command was told to end, or should have been, before it had.
    pub(crate) fn is_told(&self) -> bool {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn plan(until: u64) -> Schedule {
        Schedule::new(secs(until), Times { term_before: secs(5), kill_before: secs(1) })
    }

    #[test]
    fn a_command_is_told_and_then_ended_before_the_lease_ends() {
        let mut plan = plan(100);
        assert_eq!((plan.due(secs(94)), plan.next(secs(94))), (None, secs(1)));
        assert_eq!((plan.due(secs(95)), plan.next(secs(95))), (Some(Action::Term), secs(4)));
        assert_eq!(plan.due(secs(98)), None);
        assert_eq!((plan.due(secs(99)), plan.due(secs(200))), (Some(Action::Kill), None));
        assert!(plan.is_told());
    }

    #[test]
    fn a_refresh_moves_the_end_on_until_the_command_was_told() {
        let mut plan = plan(100);
        plan.good_until(secs(110));
        assert_eq!(plan.due(secs(99)), None);
        assert_eq!(plan.due(secs(105)), Some(Action::Term));
        plan.good_until(secs(120));
        assert_eq!(plan.due(secs(109)), Some(Action::Kill));
    }

    #[test]
    fn a_lease_that_was_taken_away_ends_the_command_at_once_and_no_later_than_its_own_end() {
        let mut early = plan(100);
        early.end(secs(80));
        assert_eq!((early.due(secs(80)), early.due(secs(83))), (Some(Action::Term), None));
        early.end(secs(83));
        assert_eq!(early.due(secs(84)), Some(Action::Kill));
        let mut late = plan(100);
        late.end(secs(98));
        assert_eq!((late.due(secs(98)), late.due(secs(99))), (Some(Action::Term), Some(Action::Kill)));
        let mut past = plan(100);
        past.end(secs(130));
        assert_eq!((past.due(secs(130)), past.due(secs(130))), (Some(Action::Kill), None));
    }

    #[test]
    fn what_a_command_left_behind_has_a_moment_and_the_command_was_not_told() {
        let mut plan = plan(100);
        plan.ended(secs(50));
        plan.good_until(secs(200));
        assert_eq!(
            (plan.due(secs(50)), plan.due(secs(51)), plan.due(secs(55))),
            (None, Some(Action::Term), Some(Action::Kill))
        );
        assert!(!plan.is_told());
    }

    #[test]
    fn a_command_whose_end_is_seen_when_it_should_have_been_told_counts_as_told() {
        let mut late = plan(100);
        late.ended(secs(95));
        assert!(late.is_told());
        let mut refreshed = plan(100);
        refreshed.good_until(secs(110));
        refreshed.ended(secs(95));
        assert!(!refreshed.is_told());
    }
}

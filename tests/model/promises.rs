//! The promises of schedules: what a request may do to the record, and what a client may believe.

use crate::{
    outcomes::{Breach, Rare},
    server::Server,
    state::{Answer, Holds, Message, State, Stored, Time, Token, Verb, only},
};

impl Server {
    /// Judges a request by the records before and after it, and notes what it did.
    pub(crate) fn judge(
        &self,
        state: &mut State,
        (before, after): (Option<&Stored>, Option<&Stored>),
        now: Time,
        message: &Message,
        answer: Answer,
    ) {
        let Some(after) = after else { return };
        self.judge_end(state, before, now, message);
        Self::judge_grants(state, before, after, now);
        self.judge_done(state, before, after, now, message);
        if let Answer::Granted { token, .. } | Answer::Refreshed { token } = answer
            && !matches!(message.verb, Verb::Dismiss { .. })
            && state.released & only(token) != 0
        {
            state.breaks(Breach::Revived);
        }
        let is_late = |entry: &Holds| entry.not_after.is_some_and(|end| entry.expires_at > end);
        if after.holders.iter().any(is_late) {
            state.breaks(Breach::KeptTooLong);
        }
        if message.verb == Verb::Acquire
            && !matches!(answer, Answer::Granted { .. })
            && after.holders.iter().any(|entry| entry.is_released)
        {
            self.reached.note([Rare::RefusedByEntry]);
        }
    }

    /// Notes which leases a request ends, and until when the key stays unavailable.
    fn judge_end(&self, state: &mut State, before: Option<&Stored>, now: Time, message: &Message) {
        let Some(before) = before else { return };
        match message.verb {
            Verb::Release { token: Some(token) } | Verb::Complete { token, .. } | Verb::Dismiss { token } => {
                if let Some(entry) = before.live(token, now) {
                    state.released |= only(token);
                    state.held_until = if self.config.min_hold > 0 { entry.since + self.config.min_hold } else { 0 };
                }
            }
            Verb::Revoke { upto } => {
                for entry in before.holders.iter().filter(|entry| entry.token <= upto && entry.expires_at > now) {
                    state.revoked |= only(entry.token);
                    state.held_until = 0;
                    if entry.is_released {
                        self.reached.note([Rare::EntryRevoked]);
                    }
                }
            }
            _ => {}
        }
    }

    fn judge_grants(state: &mut State, before: Option<&Stored>, after: &Stored, now: Time) {
        let had = before.map(|before| before.holders.as_slice()).unwrap_or_default();
        let is_new = |entry: &&Holds| had.iter().all(|held| held.token != entry.token);
        for entry in after.holders.iter().filter(is_new) {
            if before.is_some_and(|before| entry.token <= before.version) {
                state.breaks(Breach::TokenOutOfOrder);
            }
            // A request that was parsed earlier executes now.
            if now.max(state.wall()) < state.held_until {
                state.breaks(Breach::GrantedEarly);
            }
        }
    }

    fn judge_done(&self, state: &mut State, before: Option<&Stored>, after: &Stored, now: Time, message: &Message) {
        let (had, done) = (before.and_then(|before| before.done), after.done);
        if let Verb::Complete { token, tick } = message.verb
            && state.completed & only(token) != 0
            && had.is_some_and(|(last, _)| last < tick)
        {
            self.reached.note([Rare::GhostAfterReset]);
        }
        if had == done {
            return;
        }
        let tick = done.map_or(0, |(tick, _)| tick);
        match message.verb {
            Verb::Reset => state.ticks &= only(tick + 1) - 1,
            Verb::Complete { token, .. } => {
                let is_lower = had.is_some_and(|(last, _)| tick < last);
                let is_late = before.is_some_and(|before| before.version > token);
                let breaches = [
                    (is_lower, Breach::TickLowered),
                    (state.completed & only(token) != 0, Breach::CompletedAgain),
                    (is_late, Breach::CompletedLate),
                    (state.revoked & only(token) != 0, Breach::RevokedCompletes),
                    (state.ticks & only(tick) != 0, Breach::CompletedTwice),
                ];
                for (_, breach) in breaches.into_iter().filter(|(is_broken, _)| *is_broken) {
                    state.breaks(breach);
                }
                state.completed |= only(token);
                state.ticks |= only(tick);
                if before.is_none_or(|before| before.live(token, now).is_none()) {
                    self.reached.note([Rare::CompletedAfterExpiry]);
                }
            }
            _ => state.breaks(Breach::TickLowered),
        }
    }

    /// Judges what the clients believe. An operator can end a lease before its holder knows: such a holder is left out.
    pub(crate) fn judge_beliefs(&self, state: &mut State) {
        let (now, wall) = (state.time, state.wall());
        let ended = state.revoked | state.released;
        let believed = state.clients.iter().filter_map(|client| client.believes(now));
        let believed: Vec<_> = believed.filter(|held| ended & only(held.token) == 0).collect();
        for held in &believed {
            let Some(entry) = state.record.as_ref().and_then(|record| record.live(held.token, wall)) else {
                state.breaks(Breach::BelievesFreed);
                return;
            };
            // The clocks of two members differ by the grace, so that a failover moves the end.
            let end = entry.not_after.map(|end| end - self.config.grace);
            if self.config.failovers == 0 && end.is_some_and(|end| held.deadline > end) {
                state.breaks(Breach::PastMaximum);
            }
        }
        if believed.len() > 1 {
            state.breaks(Breach::TwoBelieve);
        }
    }

    /// A client begins its work. A revoked lease is left out: its holder may not know yet. So is a client that does not
    /// read the last completed tick.
    pub(crate) fn judge_begin(&self, state: &mut State, tick: u8, token: Token) {
        if self.config.reads && state.revoked & only(token) == 0 && state.ticks >> tick != 0 {
            state.breaks(Breach::RanAgain);
        }
    }

    /// A client is sure that it has completed its tick.
    pub(crate) fn judge_completed(state: &mut State, token: Token) {
        if state.completed & only(token) == 0 {
            state.breaks(Breach::NotCompleted);
        }
    }
}

//! The server of the model: converts its small records to real ones and back, and executes requests.

use mongoseal::{
    FencingToken, LeaseId,
    record::{
        Acquire, BatchRequest, Complete, CompletedTick, HoldLimits, Holder, LeaseSpec, Leave, Outcome, PastRevocation,
        Record, Refresh, Release, Request, Reset, Revoke, RunReport, StoreClock, StoreTime, WaitSpec, Waiter,
    },
    store::HybridTime,
};

use super::{
    config::{Config, Rule},
    state::{Answer, Attempt, Entry, Message, Notice, RUNS, Set, Stage, State, Stored, Token, Verb, only},
};
use crate::{
    outcomes::Reached,
    records::{holder, millis, model_time, model_token, number_of, record, spec, store_time, store_token, waiter},
    state::Time,
};

/// The machine and its configuration.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) reached: Reached,
    /// What the acquire of each attempt wants.
    terms: Vec<LeaseSpec>,
}

/// The hybrid clock is behind each version, so that the version alone numbers tokens.
fn moment(now: Time) -> StoreClock {
    StoreClock { now: store_time(now), hlc: HybridTime { seconds: 0, ordinal: 0 } }
}

impl Server {
    pub(crate) fn new(config: Config, reached: Reached) -> Self {
        let limit = |time| Some(millis(time)).filter(|limit| *limit > 0);
        let hold = HoldLimits { min: limit(config.min_hold), max: limit(config.max_hold) };
        let terms = |attempt: Attempt| LeaseSpec { hold, ..spec(attempt, config.ttl, config.grace) };
        Self { terms: (0..3 * RUNS).map(terms).collect(), reached, config }
    }

    fn terms(&self, attempt: Attempt) -> LeaseSpec {
        self.terms[usize::from(attempt)].clone()
    }

    fn widened(&self, stored: &Stored) -> Record {
        let zero = StoreTime::default();
        let holds = |entry: &Entry| {
            let mut terms = self.terms(entry.attempt);
            if entry.is_released && !self.config.is_without(Rule::EntryLosesLease) {
                terms.lease = LeaseId::NONE;
            }
            Holder {
                since: store_time(entry.since),
                not_after: entry.not_after.map(store_time),
                released_at: entry.is_released.then_some(zero),
                ..holder(terms, store_token(entry.token), entry.expires_at)
            }
        };
        let waits = |(attempt, until): &(Attempt, Time)| waiter(self.terms(*attempt), self.config.ttl, *until);
        let revocation = |token: Token| PastRevocation {
            by: String::new(),
            reason: String::new(),
            at: zero,
            tokens: vec![store_token(token)],
        };
        Record {
            holders: stored.holders.iter().map(holds).collect(),
            queue: stored.queue.iter().map(waits).collect(),
            history: (0..16).filter(|token| stored.history & only(*token) != 0).map(revocation).collect(),
            done: stored.done.map(|(tick, token)| CompletedTick {
                tick: tick.into(),
                token: store_token(token),
                by: String::new(),
                at: zero,
            }),
            ..record(store_token(stored.version))
        }
    }

    fn narrowed(record: &Record) -> Stored {
        let entry = |holder: &Holder| Entry {
            attempt: number_of(&holder.terms),
            token: model_token(holder.version),
            since: model_time(holder.since),
            expires_at: model_time(holder.expires_at),
            not_after: holder.not_after.map(model_time),
            is_released: holder.released_at.is_some(),
        };
        let waiter = |waiter: &Waiter| (number_of(&waiter.terms), model_time(waiter.expires_at));
        let revoked = record.history.iter().flat_map(|revocation| &revocation.tokens);
        Stored {
            version: model_token(record.version),
            holders: record.holders.iter().map(entry).collect(),
            queue: record.queue.iter().map(waiter).collect(),
            history: revoked.fold(0, |revoked: Set, token| revoked | only(model_token(*token))),
            done: record.done.as_ref().map(|done| (u8::try_from(done.tick).unwrap(), model_token(done.token))),
        }
    }

    /// Applies a request of the model. Returns the record afterwards and the outcome.
    fn apply(&self, before: Option<&Record>, at: StoreClock, message: &Message) -> (Option<Record>, Outcome) {
        let terms = self.terms(message.attempt);
        let (lease, acquire_id, ttl, grace) = (terms.lease, terms.acquire_id, terms.ttl, terms.grace);
        let request = match message.verb {
            Verb::Keep { token, .. } => {
                return self.apply_batch(before, at, token, &BatchRequest::Keep { ttl });
            }
            Verb::Dismiss { token } => return self.apply_batch(before, at, token, &BatchRequest::Release),
            Verb::Acquire => {
                let wait = self.config.waits.then_some(WaitSpec { ttl, queue_limit: 10 });
                Request::Acquire(Acquire { terms, wait })
            }
            Verb::Refresh { .. } => Request::Refresh(Refresh { lease, ttl, grace, metadata: None, acquire_id: None }),
            Verb::Release { token } => Request::Release(Release { lease, token: store_token(token) }),
            Verb::Leave => Request::Leave(Leave { lease, acquire_id }),
            Verb::Complete { token } => {
                let tick = self.config.tick(message.attempt).into();
                Request::Complete(Complete {
                    lease,
                    token: store_token(token),
                    tick,
                    by: String::new(),
                    keep: 0,
                    report: RunReport::default(),
                })
            }
            Verb::Revoke { upto } => {
                Request::Revoke(Revoke { by: String::new(), reason: String::new(), upto: store_token(upto) })
            }
            Verb::Reset => Request::Reset(Reset { tick: 0, upto: FencingToken::MAX, by: String::new() }),
        };
        self.apply_altered(before, at, &request)
    }

    fn apply_batch(
        &self,
        before: Option<&Record>,
        at: StoreClock,
        token: Token,
        batch: &BatchRequest,
    ) -> (Option<Record>, Outcome) {
        let token = store_token(token);
        let after = before.and_then(|before| self.apply_batch_altered(before, at, token, batch));
        let outcome = if after.is_some() { Outcome::Refreshed { token } } else { Outcome::Absent };
        (after.or_else(|| before.cloned()), outcome)
    }

    /// What the outcome tells the runner.
    fn answer(outcome: &Outcome, now: Time, changed: bool) -> Answer {
        match outcome {
            Outcome::Granted { token, not_after, .. } => {
                let left = not_after.map(|end| (model_time(end) - now).max(0));
                Answer::Granted { token: model_token(*token), left }
            }
            Outcome::Queued { version, .. } => Answer::Queued { version: model_token(*version) },
            Outcome::Refreshed { token } => Answer::Refreshed { token: model_token(*token) },
            Outcome::Completed => Answer::Completed { changed },
            _ => Answer::No,
        }
    }

    /// The server looks at the record for a request.
    pub(crate) fn execute(&self, state: &mut State, at: usize, now: Time) {
        let message = state.messages[at];
        let before = state.record.take();
        let wide = before.as_ref().map(|before| self.widened(before));
        let (after, outcome) = self.apply(wide.as_ref(), moment(now), &message);
        let changed = after != wide;
        let stored = after.as_ref().map(Self::narrowed);
        let answer = Self::answer(&outcome, now, changed);
        self.judge(state, (before.as_ref(), stored.as_ref()), now, &message, answer);
        if let (true, Some(after), Some(stored)) = (changed, &after, &stored) {
            let granted = after.handover.iter().filter_map(|(_, token)| token.map(model_token));
            let holder = |token: Token| stored.holders.iter().find(|entry| entry.token == token);
            let notice = |entry: &Entry| Notice { attempt: entry.attempt, token: entry.token };
            state.notices.extend(granted.filter_map(holder).map(notice));
        }
        state.messages[at].stage = Stage::Answered(answer);
        state.record = stored;
    }

    /// A deposed primary looks at its own record. It keeps what it writes, but no write is confirmed: so only an answer
    /// that wrote nothing arrives.
    pub(crate) fn execute_deposed(&self, state: &mut State, at: usize) {
        let message = state.messages[at];
        let Some(before) = state.deposed.take() else { return };
        let (wide, now) = (self.widened(&before), state.wall());
        let (after, outcome) = self.apply(Some(&wide), moment(now), &message);
        if after.as_ref() == Some(&wide) {
            let answer = Self::answer(&outcome, now, false);
            let needs_write =
                matches!(answer, Answer::Granted { .. } | Answer::Queued { .. } | Answer::Refreshed { .. });
            assert!(!needs_write, "an answer that wrote nothing grants nothing: {answer:?}");
            state.messages[at].stage = Stage::Answered(answer);
        } else {
            state.messages.remove(at);
        }
        state.deposed = after.as_ref().map(Self::narrowed);
    }
}

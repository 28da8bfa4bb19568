//! The server of the model: runs the library's real state machine, and converts the model's small records to real ones
//! and back.

use mongoseal::{
    FencingToken, Json, LeaseId, Metadata, Sharing,
    record::{
        Acquire, BatchRequest, Complete, CompletedTick, Downgrade, HoldLimits, Holder, LeaseSpec, Leave, Outcome,
        PastRevocation, PutValue, Record, Refresh, Release, Request, Reset, Revoke, RunReport, StoreClock, StoreTime,
        StoredValue, WaitSpec, Waiter, apply_together,
    },
    store::HybridTime,
};

use crate::{
    config::{Config, Rule, SHARED},
    misdeed::{misdeed, rare},
    outcomes::Reached,
    records::{millis, model_time, model_token, number_of, store_clock, store_time, store_token},
    state::{
        Answer, Command, Grant, Holds, IDS, Lease, Message, Notice, Set, Stage, State, Stored, Time, Token, Value,
        Verb, client_of, only,
    },
};

/// How long a record with a value is kept: longer than each exploration.
const KEPT: Time = 100;

/// The value that is stored, if there is one.
fn value_of(stored: Option<&StoredValue>) -> Value {
    stored.and_then(|stored| stored.content.as_ref()).map_or((0, 0), |content| content.parse().unwrap())
}

/// The machine and what it is given.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) reached: Reached,
    /// What each lease id asks for.
    pub(crate) terms: Vec<LeaseSpec>,
}

impl Server {
    pub(crate) fn new(config: Config, reached: Reached) -> Self {
        let limit = |time| Some(millis(time)).filter(|limit| *limit > 0);
        let hold = HoldLimits { min: limit(config.min_hold), max: limit(config.max_hold) };
        let terms = |lease: Lease| {
            let who = client_of(lease);
            let sharing = if config.shares[who] { SHARED } else { Sharing::Exclusive };
            LeaseSpec {
                // It is not that of a released entry.
                lease: LeaseId::from_bytes([lease + 1; 16]),
                acquire_id: format!("{:016x}/{lease}", 7).parse().unwrap(),
                owner: lease.to_string().parse().unwrap(),
                sharing,
                ttl: millis(config.ttls[who]),
                grace: millis(config.grace()),
                group: None,
                metadata: Metadata::default(),
                hold,
            }
        };
        Self { terms: (0..3 * IDS).map(terms).collect(), reached, config }
    }

    fn terms(&self, lease: Lease) -> LeaseSpec {
        self.terms[usize::from(lease)].clone()
    }

    fn widened(&self, stored: &Stored) -> Record {
        let zero = StoreTime::default();
        let holds = |holds: &Holds| {
            let mut terms = self.terms(holds.lease);
            terms.sharing = if holds.shares { SHARED } else { Sharing::Exclusive };
            if holds.is_released && !self.config.is_without(Rule::EntryLosesLease) {
                terms.lease = LeaseId::NONE;
            }
            Holder {
                terms,
                version: store_token(holds.token),
                refreshes: 0,
                since: store_time(holds.since),
                last_seen: zero,
                expires_at: store_time(holds.expires_at),
                not_after: holds.not_after.map(store_time),
                released_at: holds.is_released.then_some(zero),
            }
        };
        // All requests of a waiter ask for the same ttl.
        let waits = |(lease, until): &(Lease, Time)| Waiter {
            terms: self.terms(*lease),
            wait_ttl: self.terms(*lease).ttl,
            refreshes: 0,
            since: zero,
            last_seen: store_time(until - self.config.ttls[client_of(*lease)]),
            expires_at: store_time(*until),
        };
        let revocation = |token: Token| PastRevocation {
            by: String::new(),
            reason: String::new(),
            at: zero,
            tokens: vec![store_token(token)],
        };
        Record {
            version: store_token(stored.version),
            holders: stored.holders.iter().map(holds).collect(),
            queue: stored.queue.iter().map(waits).collect(),
            handover: Vec::new(),
            last_seen: zero,
            expires_at: store_time(stored.expires_at),
            history: (0..Set::BITS).filter(|token| stored.history & only(*token) != 0).map(revocation).collect(),
            value: stored.value.map(|(token, write, content)| StoredValue {
                content: Some(Json::of(&content).unwrap()),
                token: store_token(token),
                write: write.into(),
                at: zero,
            }),
            done: stored.done.map(|(tick, token)| CompletedTick {
                tick: tick.into(),
                token: store_token(token),
                by: String::new(),
                at: zero,
            }),
            runs: Vec::new(),
        }
    }

    /// The record as the model knows it. New holders get numbers from `grants` on.
    fn narrowed(&self, record: &Record, before: Option<&Stored>, mut grants: Grant) -> Stored {
        let is_alone = |holder: &Holder| holder.terms.sharing.is_exclusive();
        assert!(record.holders.len() <= 1 || !record.holders.iter().any(is_alone), "one holds alone: {record:?}");
        let schedules = self.config.schedules;
        let holder = |holder: &Holder| {
            let (lease, token) = (number_of(&holder.terms), model_token(holder.version));
            let mut known = before.iter().flat_map(|before| &before.holders);
            let grant = known.find(|held| held.lease == lease && held.token == token).map_or(grants, |held| held.grant);
            grants += Grant::from(grant == grants);
            Holds {
                lease,
                token,
                since: if schedules { model_time(holder.since) } else { 0 },
                expires_at: model_time(holder.expires_at),
                not_after: holder.not_after.map(model_time),
                is_released: holder.released_at.is_some(),
                shares: !is_alone(holder),
                grant: if schedules { 0 } else { grant },
            }
        };
        let waiter = |waiter: &Waiter| (number_of(&waiter.terms), model_time(waiter.expires_at));
        let value =
            |value: &StoredValue| (model_token(value.token), u8::try_from(value.write).unwrap(), value_of(Some(value)));
        let revoked = record.history.iter().flat_map(|revocation| &revocation.tokens);
        Stored {
            version: model_token(record.version),
            holders: record.holders.iter().map(holder).collect(),
            queue: record.queue.iter().map(waiter).collect(),
            expires_at: if schedules { 0 } else { model_time(record.expires_at) },
            value: record.value.as_ref().map(value),
            history: revoked.fold(0, |revoked: Set, token| revoked | only(model_token::<Token>(*token))),
            done: record.done.as_ref().map(|done| (u8::try_from(done.tick).unwrap(), model_token(done.token))),
        }
    }

    /// The machine on what travels as one command: a request, a joint refresh, or two acquires.
    fn apply(&self, before: Option<&Record>, at: StoreClock, asked: &[Message]) -> (Option<Record>, Vec<Outcome>) {
        let &[message] = asked else { return self.acquire_together(before, at, asked) };
        let (after, outcome) = match message.verb {
            Verb::Keep { token, .. } => {
                self.batch(before, at, token, &BatchRequest::Keep { ttl: self.terms(message.lease).ttl })
            }
            Verb::Dismiss { token } => self.batch(before, at, token, &BatchRequest::Release),
            _ => self.apply_one(before, at, &self.request(message)),
        };
        (after, vec![outcome])
    }

    fn request(&self, Message { lease: number, verb, .. }: Message) -> Request {
        let terms = self.terms(number);
        let (lease, acquire_id, ttl, grace) = (terms.lease, terms.acquire_id, terms.ttl, terms.grace);
        let (by, reason) = (String::new(), String::new());
        match verb {
            Verb::Acquire => {
                let wait = self.config.waits.then_some(WaitSpec { ttl, queue_limit: 10 });
                Request::Acquire(Acquire { terms, wait })
            }
            Verb::Refresh { .. } => Request::Refresh(Refresh { lease, ttl, grace, metadata: None, acquire_id: None }),
            Verb::Release { token: Some(token) } => Request::Release(Release { lease, token: store_token(token) }),
            Verb::Release { token: None } => Request::Leave(Leave { lease, acquire_id }),
            Verb::Downgrade { token } => {
                Request::Downgrade(Downgrade { lease, token: store_token(token), sharing: SHARED })
            }
            Verb::Put { token, after, number } => Request::PutValue(PutValue {
                lease,
                token: store_token(token),
                after: after.into(),
                write: number.into(),
                content: Some(Json::of(&(token, number)).unwrap()),
                keep: millis(KEPT),
                releases: false,
            }),
            Verb::Complete { token, tick } => Request::Complete(Complete {
                lease,
                token: store_token(token),
                tick: tick.into(),
                by,
                keep: 0,
                report: RunReport::default(),
            }),
            Verb::Revoke { upto } => Request::Revoke(Revoke { by, reason, upto: store_token(upto) }),
            Verb::Reset => Request::Reset(Reset { tick: 0, upto: FencingToken::MAX, by }),
            Verb::Keep { .. } | Verb::Dismiss { .. } => unreachable!("it is applied in a batch"),
        }
    }

    /// Two acquires that wait, applied as one.
    fn acquire_together(
        &self,
        before: Option<&Record>,
        at: StoreClock,
        asked: &[Message],
    ) -> (Option<Record>, Vec<Outcome>) {
        let acquires: Vec<Request> = asked.iter().map(|message| self.request(*message)).collect();
        let (after, mut outcomes) = apply_together(before, at, &acquires);
        if self.config.is_without(Rule::EachItsAnswer) {
            outcomes[1] = outcomes[0].clone();
        }
        (after, outcomes)
    }

    /// A joint request. It counts what it changed, and so its answer is all or nothing.
    fn batch(
        &self,
        before: Option<&Record>,
        at: StoreClock,
        token: Token,
        batch: &BatchRequest,
    ) -> (Option<Record>, Outcome) {
        let token = store_token(token);
        let holds = before.and_then(|before| before.holders.first()).map(|holder| holder.version);
        let named = if self.config.is_without(Rule::JointNamesToken) { holds.unwrap_or(token) } else { token };
        let after = before.and_then(|before| self.apply_batch(before, at, named, batch));
        let succeeds = after.is_some() || self.config.is_without(Rule::JointCounts);
        let outcome = if succeeds { Outcome::Refreshed { token } } else { Outcome::Absent };
        (after.or_else(|| before.cloned()), outcome)
    }

    /// What the outcome tells the client.
    fn answer(outcome: &Outcome, after: Option<&Stored>, now: Time, changed: bool) -> Answer {
        match outcome {
            Outcome::Granted { token, value, not_after, .. } => {
                let token = model_token(*token);
                let holder = after.and_then(|after| after.holders.iter().find(|holder| holder.token == token));
                let grant = holder.map_or(0, |holder| holder.grant);
                let left = not_after.map(|end| (model_time(end) - now).max(0));
                Answer::Granted { token, grant, value: value_of(value.as_deref()), left }
            }
            Outcome::Queued { version, .. } => Answer::Queued { version: model_token(*version) },
            Outcome::Refreshed { token } => Answer::Refreshed { token: model_token(*token) },
            Outcome::Downgraded => Answer::Downgraded,
            Outcome::ValuePut => Answer::Put,
            Outcome::ValueOutdated { write } => Answer::Outdated { last: u8::try_from(*write).unwrap() },
            Outcome::Completed => Answer::Completed { changed },
            _ => Answer::No,
        }
    }

    /// The hybrid clock of schedules is behind each version.
    fn clock(&self, now: Time, hlc: (Time, u16)) -> StoreClock {
        let clock = store_clock(now, hlc);
        if self.config.schedules { StoreClock { hlc: HybridTime { seconds: 0, ordinal: 0 }, ..clock } } else { clock }
    }

    /// The server looks at the record for a command: for one request, or for two at once. It reads its clocks now, if it
    /// has not parsed it before.
    pub(crate) fn execute(&self, state: &mut State, at: usize) {
        let (now, hlc, command) = match state.messages[at].stage {
            Stage::Parsed { now, hlc, command } => (now, hlc, command),
            _ => (state.wall(), state.hybrid, Command::Alone),
        };
        let mut places = vec![at];
        if let Command::First { second } = command {
            let joined = Stage::Parsed { now, hlc, command: Command::Second { first: state.messages[at].lease } };
            let joins = |message: &Message| message.lease == second && message.stage == joined;
            places.push(state.messages.iter().position(joins).unwrap());
        }
        let asked: Vec<Message> = places.iter().map(|at| state.messages[*at]).collect();
        let before = state.record.take();
        let wide = before.as_ref().map(|before| self.widened(before));
        let (after, outcomes) = self.apply(wide.as_ref(), self.clock(now, hlc), &asked);
        let changed = after != wide;
        let stored = after.as_ref().map(|after| self.narrowed(after, before.as_ref(), state.grants));
        let answer = |outcome| Self::answer(outcome, stored.as_ref(), now, changed);
        let answers: Vec<Answer> = outcomes.iter().map(answer).collect();
        let holders = stored.as_ref().map(|stored| stored.holders.as_slice()).unwrap_or_default();
        if self.config.schedules {
            self.judge(state, (before.as_ref(), stored.as_ref()), now, &asked[0], answers[0]);
        } else {
            if let Some(breach) = misdeed(before.as_ref(), stored.as_ref(), now, &asked) {
                state.breaks(breach);
            }
            self.reached.note(rare(state, before.as_ref(), now, &asked, &answers));
            state.grants = holders.iter().map(|holder| holder.grant + 1).fold(state.grants, Grant::max);
            if changed {
                state.wrote();
            }
        }
        if let (true, Some(after)) = (changed, &after) {
            let handed = after.handover.iter().filter_map(|(_, token)| token.map(model_token));
            let holder = |token: Token| holders.iter().find(|holder| holder.token == token);
            let notice = |holder: &Holds| Notice { lease: holder.lease, token: holder.token, grant: holder.grant };
            state.notices.extend(handed.filter_map(holder).map(notice));
        }
        for (at, answer) in places.into_iter().zip(answers) {
            let message = &mut state.messages[at];
            let is_read = self.config.is_without(Rule::AnswerIsOwnWrite);
            let acquires = message.verb == Verb::Acquire;
            message.stage = if is_read && acquires { Stage::Written } else { Stage::Answered(answer) };
        }
        state.record = stored;
    }

    /// A rule is taken out: the record as a read finds it answers an acquire whose write is over.
    pub(crate) fn read(state: &mut State, at: usize) {
        let lease = state.messages[at].lease;
        let mut holders = state.record.iter().flat_map(|record| &record.holders);
        let held = holders.find(|held| held.lease == lease && held.expires_at > state.wall());
        let granted =
            |held: &Holds| Answer::Granted { token: held.token, grant: held.grant, value: (0, 0), left: None };
        state.messages[at].stage = Stage::Answered(held.map_or(Answer::No, granted));
    }

    /// A deposed primary looks at its own record. What it writes is never confirmed, so only an answer
    /// that wrote nothing comes back. In schedules it keeps what it writes.
    pub(crate) fn execute_deposed(&self, state: &mut State, at: usize) {
        let message = state.messages[at];
        let Some(before) = state.deposed.clone() else { return };
        let wide = self.widened(&before);
        let at_once = self.clock(state.wall(), state.hybrid);
        let (after, outcomes) = self.apply(Some(&wide), at_once, &[message]);
        let lives = wide.live_holder(self.terms(message.lease).lease, at_once.now).is_some();
        // Who holds the key is told so, without a write.
        let unwritten = self.config.is_without(Rule::SuccessWrites) && lives;
        if after.as_ref() == Some(&wide) || (unwritten && !matches!(message.verb, Verb::Release { .. })) {
            let answer = Self::answer(&outcomes[0], Some(&before), state.wall(), false);
            let needs_write =
                matches!(answer, Answer::Granted { .. } | Answer::Queued { .. } | Answer::Refreshed { .. });
            let is_whole = self.config.without.is_none();
            assert!(!(is_whole && needs_write), "an answer that wrote nothing grants nothing: {answer:?}");
            state.messages[at].stage = Stage::Answered(answer);
        } else {
            state.messages.remove(at);
        }
        if self.config.schedules {
            state.deposed = after.map(|after| self.narrowed(&after, None, 0));
        }
    }
}

//! The server of the model: runs the library's real state machine, and converts the model's small records to real ones
//! and back.

use mongoseal::{
    FencingToken, Json, Sharing,
    record::{
        self, Acquire, BatchRequest, Downgrade, Holder, LeaseSpec, Leave, Outcome, PutValue, Record, Refresh, Release,
        Request, StoreClock, StoreTime, StoredValue, WaitSpec, Waiter,
    },
    store::HybridTime,
};

use crate::{
    config::{Config, Rule, SHARED},
    misdeed::{misdeed, rare},
    outcomes::Reached,
    records::{
        clock, holder, millis, model_time, model_token, number_of, record, spec, store_time, store_token, waiter,
    },
    state::{Answer, Command, Grant, Holds, Lease, Message, Notice, Stage, State, Stored, Time, Token, Value, Verb},
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
    terms: Vec<LeaseSpec>,
}

impl Server {
    pub(crate) fn new(config: Config, reached: Reached) -> Self {
        let terms = |lease: Lease| LeaseSpec {
            sharing: config.sharing(lease),
            ..spec(lease, config.ttl(lease), config.grace())
        };
        Self { terms: (0..6).map(terms).collect(), reached, config }
    }

    fn terms(&self, lease: Lease) -> LeaseSpec {
        self.terms[usize::from(lease)].clone()
    }

    fn widened(&self, stored: &Stored) -> Record {
        let holds = |holds: &Holds| {
            let sharing = if holds.shares { SHARED } else { Sharing::Exclusive };
            let terms = LeaseSpec { sharing, ..self.terms(holds.lease) };
            holder(terms, store_token(holds.token), holds.expires_at)
        };
        let waits = |(lease, until): &(Lease, Time)| waiter(self.terms(*lease), self.config.ttl(*lease), *until);
        Record {
            holders: stored.holders.iter().map(holds).collect(),
            queue: stored.queue.iter().map(waits).collect(),
            expires_at: store_time(stored.expires_at),
            value: stored.value.map(|(token, write, content)| StoredValue {
                content: Some(Json::of(&content).unwrap()),
                token: store_token(token),
                write: write.into(),
                at: StoreTime::default(),
            }),
            ..record(store_token(stored.version))
        }
    }

    /// The record as the model knows it. New holders get numbers from `grants` on.
    fn narrowed(record: &Record, before: Option<&Stored>, mut grants: Grant) -> Stored {
        let is_alone = |holder: &Holder| holder.terms.sharing.is_exclusive();
        assert!(record.holders.len() <= 1 || !record.holders.iter().any(is_alone), "one holds alone: {record:?}");
        let holder = |holder: &Holder| {
            let (lease, token) = (number_of(&holder.terms), model_token(holder.version));
            let mut known = before.iter().flat_map(|before| &before.holders);
            let grant = known.find(|held| held.lease == lease && held.token == token).map_or(grants, |held| held.grant);
            grants += Grant::from(grant == grants);
            Holds { lease, token, expires_at: model_time(holder.expires_at), shares: !is_alone(holder), grant }
        };
        let holders = record.holders.iter().map(holder).collect();
        let waiter = |waiter: &Waiter| (number_of(&waiter.terms), model_time(waiter.expires_at));
        Stored {
            version: model_token(record.version),
            holders,
            queue: record.queue.iter().map(waiter).collect(),
            expires_at: model_time(record.expires_at),
            value: record
                .value
                .as_ref()
                .map(|value| (model_token(value.token), u8::try_from(value.write).unwrap(), value_of(Some(value)))),
        }
    }

    /// The machine on what travels as one command: a request, a joint refresh, or two acquires.
    fn apply(&self, before: Option<&Record>, at: StoreClock, asked: &[Message]) -> (Option<Record>, Vec<Outcome>) {
        let &[message] = asked else { return self.acquire_together(before, at, asked) };
        let (after, outcome) = match message.verb {
            Verb::Keep { token, .. } => self.keep(before, at, message.lease, store_token(token)),
            _ => self.apply_one(before, at, &self.request(message)),
        };
        (after, vec![outcome])
    }

    fn request(&self, Message { lease: number, verb, .. }: Message) -> Request {
        let terms = self.terms(number);
        let (lease, acquire_id, ttl, grace) = (terms.lease, terms.acquire_id, terms.ttl, terms.grace);
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
            Verb::Keep { .. } => unreachable!("it is applied in a batch"),
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
        let (after, mut outcomes) = record::apply_together(before, at, &acquires);
        if self.config.without == Some(Rule::EachItsAnswer) {
            outcomes[1] = outcomes[0].clone();
        }
        (after, outcomes)
    }

    /// A joint refresh. It counts what it changed, and so its answer is all or nothing.
    fn keep(
        &self,
        before: Option<&Record>,
        at: StoreClock,
        lease: Lease,
        token: FencingToken,
    ) -> (Option<Record>, Outcome) {
        let holds = before.and_then(|before| before.holders.first()).map(|holder| holder.version);
        let named = if self.config.without == Some(Rule::JointNamesToken) { holds.unwrap_or(token) } else { token };
        let joint = BatchRequest::Keep { ttl: millis(self.config.ttl(lease)) };
        let after = before.and_then(|before| record::apply_batch(before, at, &[named], &joint));
        let succeeds = after.is_some() || self.config.without == Some(Rule::JointCounts);
        let outcome = if succeeds { Outcome::Refreshed { token } } else { Outcome::Absent };
        (after.or_else(|| before.cloned()), outcome)
    }

    /// The machine, with the rule taken out that is to be missed.
    fn apply_one(&self, before: Option<&Record>, at: StoreClock, request: &Request) -> (Option<Record>, Outcome) {
        let real = |at| record::apply(before, at, request);
        match self.config.without {
            Some(Rule::ClockInTokens) => real(StoreClock { hlc: HybridTime { seconds: 0, ordinal: 0 }, ..at }),
            Some(Rule::VersionInTokens) => Self::numbered_by_the_clock(before, at, request),
            Some(Rule::ExpiryNeverBack) => {
                let (after, outcome) = real(at);
                let after = after.map(|after| match before {
                    Some(before) if *before != after => {
                        let forgetful = Record { expires_at: StoreTime::default(), ..before.clone() };
                        record::apply(Some(&forgetful), at, request).0.unwrap()
                    }
                    _ => after,
                });
                (after, outcome)
            }
            // The hybrid clock still numbers tokens; its second does not stamp the record.
            Some(Rule::HybridInExpiry) => {
                let (after, outcome) = real(at);
                let after = after.map(|mut after| {
                    if before != Some(&after) {
                        let ends = after.holders.iter().map(|holder| holder.expires_at);
                        let ends = ends.chain(after.queue.iter().map(|waiter| waiter.expires_at));
                        let end = ends.chain([at.now]).max().unwrap();
                        let later = before.map(|before| before.expires_at).filter(|later| *later >= end);
                        let twice = || end.after(end.millis().abs_diff(at.now.millis()));
                        after.expires_at = later.unwrap_or_else(twice);
                    }
                    after
                });
                (after, outcome)
            }
            Some(Rule::ClaimsFromLastAsk) => {
                let (mut after, outcome) = real(at);
                if let Some(after) = after.as_mut().filter(|after| before != Some(*after)) {
                    let Record { holders, handover, .. } = after;
                    let is_granted =
                        |holder: &&mut Holder| handover.contains(&(holder.terms.acquire_id, Some(holder.version)));
                    for holder in holders.iter_mut().filter(is_granted) {
                        holder.expires_at = at.now.after(holder.terms.ttl + holder.terms.grace);
                    }
                }
                (after, outcome)
            }
            Some(Rule::ReleaseNamesToken) => match (request, before.and_then(|before| before.holders.first())) {
                (Request::Release(_) | Request::Leave(_), Some(holder)) => {
                    let whoever = Release { lease: holder.terms.lease, token: holder.version };
                    record::apply(before, at, &Request::Release(whoever))
                }
                _ => real(at),
            },
            Some(Rule::ReleaseNamesGrant) => match request {
                Request::Release(Release { lease, .. }) => {
                    let asked = self.terms.iter().find(|terms| terms.lease == *lease).unwrap();
                    record::apply(before, at, &Request::Leave(Leave { lease: *lease, acquire_id: asked.acquire_id }))
                }
                _ => real(at),
            },
            Some(Rule::PutNamesLease) => match (request, before.and_then(|before| before.holders.first())) {
                (Request::PutValue(put), Some(holder)) => {
                    let (lease, token) = (holder.terms.lease, holder.version);
                    let value = before.and_then(|before| before.value.as_ref()).filter(|value| value.token == token);
                    let after = value.map_or(0, |value| value.write);
                    record::apply(before, at, &Request::PutValue(PutValue { lease, token, after, ..put.clone() }))
                }
                _ => real(at),
            },
            Some(Rule::PutFollows) => match request {
                Request::PutValue(put) => {
                    let value =
                        before.and_then(|before| before.value.as_ref()).filter(|value| value.token == put.token);
                    let after = value.map_or(0, |value| value.write);
                    record::apply(before, at, &Request::PutValue(PutValue { after, ..put.clone() }))
                }
                _ => real(at),
            },
            Some(Rule::DowngradeNamesToken) => match request {
                Request::Downgrade(downgrade) => {
                    let held = before.and_then(|before| before.holder(downgrade.lease));
                    let token = held.map_or(downgrade.token, |held| held.version);
                    record::apply(before, at, &Request::Downgrade(Downgrade { token, ..*downgrade }))
                }
                _ => real(at),
            },
            _ => real(at),
        }
    }

    /// Tokens from the clock alone.
    fn numbered_by_the_clock(before: Option<&Record>, at: StoreClock, request: &Request) -> (Option<Record>, Outcome) {
        let (after, outcome) = record::apply(before, at, request);
        let new = |holder: &Holder| {
            before
                .is_none_or(|before| before.holder(holder.terms.lease).is_none_or(|old| old.version != holder.version))
        };
        let Some(mut after) = after else { return (None, outcome) };
        let by_clock = FencingToken::following(None, at.hlc, 0);
        if let Some(holder) = after.holders.iter_mut().find(|holder| new(holder)) {
            holder.version = by_clock;
            after.version = by_clock;
        }
        let outcome = request.outcome(Some(&after.summarize(request)), at.now);
        (Some(after), outcome)
    }

    /// What the outcome tells the client.
    fn answer(outcome: &Outcome, after: Option<&Stored>) -> Answer {
        match outcome {
            Outcome::Granted { token, value, .. } => {
                let token = model_token(*token);
                let holder = after.and_then(|after| after.holders.iter().find(|holder| holder.token == token));
                let grant = holder.map_or(0, |holder| holder.grant);
                Answer::Granted { token, grant, value: value_of(value.as_deref()) }
            }
            Outcome::Queued { version, .. } => Answer::Queued { version: model_token(*version) },
            Outcome::Refreshed { token } => Answer::Refreshed { token: model_token(*token) },
            Outcome::Downgraded => Answer::Downgraded,
            Outcome::ValuePut => Answer::Put,
            Outcome::ValueOutdated { write } => Answer::Outdated { last: u8::try_from(*write).unwrap() },
            _ => Answer::No,
        }
    }

    /// The server looks at the record for a command that it has parsed: for one request, or for two at once.
    pub(crate) fn execute(&self, state: &mut State, at: usize) {
        let Stage::Parsed { now, hlc, command } = state.messages[at].stage else { unreachable!("it was parsed") };
        let mut places = vec![at];
        if let Command::First { second } = command {
            let joined = Stage::Parsed { now, hlc, command: Command::Second { first: state.messages[at].lease } };
            let joins = |message: &Message| message.lease == second && message.stage == joined;
            places.push(state.messages.iter().position(joins).unwrap());
        }
        let asked: Vec<Message> = places.iter().map(|at| state.messages[*at]).collect();
        let before = state.record.take();
        let wide = before.as_ref().map(|before| self.widened(before));
        let (after, outcomes) = self.apply(wide.as_ref(), clock(now, hlc), &asked);
        let changed = after != wide;
        let stored = after.as_ref().map(|after| Self::narrowed(after, before.as_ref(), state.grants));
        if let Some(breach) = misdeed(before.as_ref(), stored.as_ref(), now, &asked) {
            state.breaks(breach);
        }
        let answers: Vec<Answer> = outcomes.iter().map(|outcome| Self::answer(outcome, stored.as_ref())).collect();
        self.reached.note(rare(state, before.as_ref(), now, &asked, &answers));
        let holders = stored.as_ref().map(|stored| stored.holders.as_slice()).unwrap_or_default();
        state.grants = holders.iter().map(|holder| holder.grant + 1).fold(state.grants, Grant::max);
        if let (true, Some(after)) = (changed, &after) {
            let handed = after.handover.iter().filter_map(|(_, token)| token.map(model_token));
            let holder = |token: Token| holders.iter().find(|holder| holder.token == token);
            let notice = |holder: &Holds| Notice { lease: holder.lease, token: holder.token, grant: holder.grant };
            state.notices.extend(handed.filter_map(holder).map(notice));
        }
        if changed {
            state.wrote();
        }
        for (at, answer) in places.into_iter().zip(answers) {
            let message = &mut state.messages[at];
            let is_read = self.config.without == Some(Rule::AnswerIsOwnWrite);
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
        let answer =
            held.map_or(Answer::No, |held| Answer::Granted { token: held.token, grant: held.grant, value: (0, 0) });
        state.messages[at].stage = Stage::Answered(answer);
    }

    /// A deposed primary looks at its own record. What it writes is never confirmed, so only an answer
    /// that wrote nothing comes back.
    pub(crate) fn execute_deposed(&self, state: &mut State, at: usize) {
        let message = state.messages[at];
        let Some(before) = state.deposed.clone() else { return };
        let wide = self.widened(&before);
        let at_once = clock(state.time, state.hybrid);
        let (after, outcomes) = self.apply(Some(&wide), at_once, &[message]);
        let lives = wide.live_holder(self.terms(message.lease).lease, at_once.now).is_some();
        // Who holds the key is told so, without a write.
        let unwritten = self.config.without == Some(Rule::SuccessWrites) && lives;
        if after.as_ref() == Some(&wide) || (unwritten && !matches!(message.verb, Verb::Release { .. })) {
            state.messages[at].stage = Stage::Answered(Self::answer(&outcomes[0], Some(&before)));
        } else {
            state.messages.remove(at);
        }
    }
}

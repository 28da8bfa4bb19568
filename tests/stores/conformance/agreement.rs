//! Property test: the state machine in Rust, the MongoDB pipeline and the Redis store agree. The same requests make the
//! same records and outcomes.
//!
//! The servers have clocks of their own, so each is compared with the state machine on its clock, and exactly.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]

mod coverage;
mod steps;

use std::{
    sync::{Arc, Mutex, OnceLock},
    task::{Context, Waker},
    time::{Duration, Instant},
};

use mongodb::bson::Document;
use mongoseal::{
    FencingToken, Key,
    record::{
        self, Acquire, BatchRequest, Complete, Downgrade, KeyRequest, Outcome, PutValue, Record, Release, Request,
        Revoke, StoreClock, Transfer,
    },
    store::{Applied, Deadline, HybridTime, MongoStore, Snapshot, Store},
};
use mongoseal_redis::{RedisBackend, RedisStore};
use mongoseal_test_support::{Redis, Sent, command_name, noting_client};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, TestRunner},
};

use self::{
    coverage::{Seen, name},
    steps::{Asked, Step, sequence},
};

/// How many sequences of requests a push tries, always the same. `MONGOSEAL_SEQUENCES` asks for so many others. Each has a
/// key of its own.
const SEQUENCES: usize = 300;
/// How many sequences run at once.
const LANES: usize = 32;
const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// How long the store on MongoDB waits for an answer before it sends the next command of the key beside it.
const PATIENCE: Duration = Duration::from_millis(500);
/// What was sent side by side, in an order that is not known.
const LATE: &str = "sent while the answer to the first was late";

/// A store that is compared with the state machine, and on MongoDB the commands of its lane. There, requests of a key that
/// are sent at the same time are one write. On Redis they are that if one write can have them.
type Subject = (Arc<dyn Store>, Option<Sent>);

fn within(store: &Arc<dyn Store>) -> Deadline {
    Deadline::after(store.clock(), Duration::from_secs(20))
}

/// The request as it is sent: a release names the token of the first holder, which is its own or another's, and so does
/// a revocation that does not mean all. A raise is from one less than the version on.
fn sent(request: &Request, met: Option<&Record>) -> Request {
    let mut request = request.clone();
    if let (Request::Raise(raise), Some(met)) = (&mut request, met) {
        raise.to = FencingToken::new((met.version.get() + raise.to.get()).saturating_sub(2).max(1)).unwrap();
    }
    let Some((met, first)) = met.and_then(|met| Some((met, met.holders.first()?))) else { return request };
    let own_or_first = |lease| met.holder(lease).map_or(first.version, |own| own.version);
    match &mut request {
        Request::Release(Release { token, .. }) => *token = first.version,
        Request::Transfer(Transfer { lease, token, .. })
        | Request::Upgrade(Transfer { lease, token, .. })
        | Request::Downgrade(Downgrade { lease, token, .. })
        | Request::Complete(Complete { lease, token, .. }) => {
            *token = own_or_first(*lease);
        }
        Request::PutValue(PutValue { lease, token, after, .. }) => {
            *token = own_or_first(*lease);
            if *after == u64::MAX {
                *after = met.value.as_ref().filter(|value| value.token == *token).map_or(0, |value| value.write);
            }
        }
        Request::Revoke(Revoke { upto, .. }) if *upto != FencingToken::MAX => *upto = first.version,
        _ => {}
    }
    request
}

/// Drives both machines through one sequence, and compares them after every request.
async fn compare((store, commands): &Subject, key: &Key, steps: Vec<Step>, seen: &Seen) {
    let mut met: Option<Record> = None;
    for step in steps {
        tokio::time::sleep(step.pause).await;
        for _ in 0..=usize::from(step.twice) {
            if let Some(commands) = commands {
                commands.take();
            }
            let (expected, outcome) = match (&step.asked, &met) {
                (Asked::Of(request), met) => single(store, key, request, met.as_ref()).await,
                (Asked::Jointly(joint, which), Some(met)) => jointly(store, key, joint, *which, met).await,
                (Asked::Jointly(..), None) => continue,
                (Asked::Together(requests), met) => {
                    together((store, commands.as_ref()), key, requests, met.as_ref(), seen).await
                }
            };
            if let (Some(commands), Asked::Of(Request::Acquire(_) | Request::Release(_))) = (commands, &step.asked) {
                seen.count(path(&commands.take()));
            }
            assert_eq!(read(store, key).await, expected, "the record after {step:?} on {met:#?}");
            seen.note(met.as_ref(), expected.as_ref(), outcome);
            met = expected;
        }
    }
}

async fn read(store: &Arc<dyn Store>, key: &Key) -> Option<Record> {
    store.read(key, within(store)).await.unwrap().map(|Snapshot { record, .. }| *record)
}

/// Asks the server, and gives what the machine makes of it.
async fn single(
    store: &Arc<dyn Store>,
    key: &Key,
    request: &Request,
    met: Option<&Record>,
) -> (Option<Record>, &'static str) {
    let request = sent(request, met);
    let Applied { outcome, mut at, .. } = store.apply(key, request.clone(), within(store)).await.unwrap();
    if outcome == Outcome::Released && at.is_none() {
        // The fast path does not tell the time of a release, but the record does. No token was issued.
        let now = read(store, key).await.expect("there is a record").last_seen;
        let seconds = u64::try_from(now.millis()).unwrap() / 1_000;
        at = Some(StoreClock { now, hlc: HybridTime { seconds, ordinal: 0 } });
    }
    let (after, expected) = if let Some(at) = at {
        record::apply(met, at, &request)
    } else {
        // There was no document to look at, so there is no time, and nothing can change.
        assert_eq!(met, None, "{request:?} found no record");
        (None, request.outcome(None, record::StoreTime::default()))
    };
    assert_eq!(outcome, expected, "the outcome of {request:?} on {met:#?}");
    (after, name(&outcome))
}

/// The same for requests that are sent at the same time.
async fn together(
    (store, commands): (&Arc<dyn Store>, Option<&Sent>),
    key: &Key,
    requests: &[Request],
    met: Option<&Record>,
    seen: &Seen,
) -> (Option<Record>, &'static str) {
    let began = Instant::now();
    let mut sent: Vec<_> = requests.iter().map(|request| store.apply(key, request.clone(), within(store))).collect();
    for answer in &mut sent {
        assert!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The command of the first has no other request.
        if let Some(commands) = commands {
            while commands.count("findAndModify") + commands.count("update") == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
    let mut answers = Vec::new();
    for answer in sent {
        answers.push(answer.await);
    }
    if commands.is_some() && began.elapsed() >= PATIENCE {
        // Commands of the key may have run side by side, and the store may have met the write of another one when it read
        // what its own had done.
        return (read(store, key).await, LATE);
    }
    let applied: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    if applied.iter().all(|applied| applied.at.is_none()) {
        // There was no record that they could change.
        assert!(met.is_none() && applied.iter().all(|applied| applied.outcome == Outcome::Absent));
        return (None, "absent");
    }
    let at = |applied: &Applied| applied.at.unwrap();
    if commands.is_none() && applied.get(1).is_some_and(|second| at(second).hlc < at(&applied[0]).hlc) {
        return (read(store, key).await, LATE);
    }
    let after = if commands.is_some() {
        // The first goes by itself, and the others, which come meanwhile, go together.
        let (after, expected) = record::apply(met, at(&applied[0]), &requests[0]);
        assert_eq!(applied[0].outcome, expected, "the outcome of {:?} on {met:#?}", requests[0]);
        let Some(second) = applied.get(1) else { return (after, "one of its own") };
        if applied[1..].iter().any(|applied| applied.at != second.at) {
            // The grant made room, and an acquire that had found none was sent once more. When the others were is
            // not known.
            return (read(store, key).await, "asked once more");
        }
        let (next, expected) = record::apply_together(after.as_ref(), at(second), &requests[1..]);
        for (applied, expected) in applied[1..].iter().zip(expected) {
            assert_eq!(applied.outcome, expected, "{requests:?} on {met:#?}");
        }
        next
    } else {
        let (mut states, all) = (vec![met.cloned()], requests.iter().zip(&applied).collect::<Vec<_>>());
        // Those of one time were one write.
        for write in all.chunk_by(|(_, one), (_, next)| one.at == next.at) {
            let together: Vec<_> = write.iter().map(|(request, _)| KeyRequest::Single((*request).clone())).collect();
            let outcomes: Vec<_> = write.iter().map(|(_, applied)| applied.outcome.clone()).collect();
            let on = |state: &Option<Record>| record::apply_in_turn(state.as_ref(), at(write[0].1), &together);
            // If the answer to the first was late, these were sent beside it. What wrote nothing may be of the state before.
            let hints = write.iter().all(|(_, applied)| !applied.changed && !applied.outcome.is_believed());
            if hints && states.iter().any(|state| on(state).1 == outcomes) {
                continue;
            }
            let after = states.last().expect("there is one");
            let (next, expected) = on(after);
            assert_eq!(outcomes, expected, "the outcomes of {together:?} on {after:#?}");
            states.push(next);
            if write.len() > 1 {
                seen.count("several in one swap");
            }
        }
        states.pop().expect("there is one")
    };
    let name = match requests[0] {
        Request::Acquire(Acquire { wait: Some(_), .. }) => "waited together",
        Request::Acquire(_) => "acquired together",
        _ => "left together",
    };
    (after, name)
}

/// The same for what is done to many leases at once. The server does not say when it did, but the record
/// does.
async fn jointly(
    store: &Arc<dyn Store>,
    key: &Key,
    joint: &BatchRequest,
    which: u8,
    met: &Record,
) -> (Option<Record>, &'static str) {
    let held = met.holders.iter().take(7).enumerate().filter(|(at, _)| which & (1 << at) != 0);
    let mut tokens: Vec<_> = held.map(|(_, holder)| holder.version).collect();
    if which & 128 != 0 || tokens.is_empty() {
        tokens.push(FencingToken::new(1).unwrap());
    }
    let done = store.apply_batch(&vec![(key.clone(), tokens.clone())], joint, within(store)).await.unwrap();
    let Snapshot { record, at } = store.read(key, within(store)).await.unwrap().expect("it is there");
    if !done {
        // Nor could it have been done later.
        assert_eq!(record::apply_batch(met, at, &tokens, joint), None, "{joint:?} of {tokens:?} on {met:#?}");
        return (Some(met.clone()), "not all of them");
    }
    // The first token that was granted tells the hlc; where none was, the tick told nothing.
    let granted = record.holders.iter().map(|holder| holder.version).find(|token| *token > met.version);
    let waiting = met.queue.iter().filter(|waiter| waiter.expires_at > record.last_seen).count();
    let version = granted.unwrap_or(record.version).get() + u64::try_from(waiting.saturating_sub(1)).unwrap();
    let mut hlc = HybridTime::from(FencingToken::new(version).unwrap());
    // A version that was raised is ahead of the clock, by far or in the same second.
    let now = u64::try_from(record.last_seen.millis()).unwrap() / 1_000;
    hlc.seconds = if hlc.seconds > now + 60 { now } else { hlc.seconds };
    let after = record::apply_batch(met, StoreClock { now: record.last_seen, hlc }, &tokens, joint);
    assert!(after.is_some(), "{joint:?} of {tokens:?} on {met:#?}");
    let outcome = match joint {
        BatchRequest::Release => "released jointly",
        BatchRequest::Revoke { .. } => "revoked jointly",
        BatchRequest::Keep { .. } => "kept jointly",
    };
    (after, outcome)
}

/// The sequences, which are the same for each store. They are drawn here and driven side by side, so there is no
/// shrinking: the sequence that fails is short, and the failing step is printed with the record it met.
fn sequences() -> &'static [Vec<Step>] {
    static DRAWN: OnceLock<Vec<Vec<Step>>> = OnceLock::new();
    DRAWN.get_or_init(|| {
        let asked = std::env::var("MONGOSEAL_SEQUENCES").map(|number| number.parse().expect("a number"));
        let (count, mut runner) = match asked {
            Ok(count) => (count, TestRunner::new(Config::default())),
            Err(_) => (SEQUENCES, TestRunner::deterministic()),
        };
        (0..count).map(|_| sequence().new_tree(&mut runner).unwrap().current()).collect()
    })
}

/// Drives the sequences, each lane with a store of its own: on MongoDB, a transaction keeps the other requests of a
/// store waiting.
async fn agree(subject: impl AsyncFn() -> Subject) -> Arc<Seen> {
    let (seen, todo) = (Arc::new(Seen::default()), Arc::new(Mutex::new(sequences().iter().enumerate())));
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        let (subject, todo, seen) = (subject().await, todo.clone(), seen.clone());
        lanes.push(tokio::spawn(async move {
            let next = || todo.lock().unwrap().next();
            while let Some((number, steps)) = next() {
                compare(&subject, &format!("k{number}").parse().unwrap(), steps.clone(), &seen).await;
            }
        }));
    }
    for lane in lanes {
        lane.await.unwrap();
    }
    println!("{} sequences, {seen:?}", sequences().len());
    seen.ensure_reached();
    seen
}

/// The paths of acquires and releases.
const PATHS: [&str; 3] = ["by the fast path", "by the whole pipeline after the fast path", "by the whole pipeline"];

/// The path of an acquire or a release that sent these commands.
fn path(commands: &[Document]) -> &'static str {
    // The fast path has short pipelines, and releases by an update.
    let is_fast = |command: &Document| match command_name(command)? {
        "update" => Some(true),
        "findAndModify" => Some(command.get_array("update").is_ok_and(|stages| stages.len() == 2)),
        _ => None,
    };
    match commands.iter().filter_map(is_fast).collect::<Vec<_>>()[..] {
        [true] => PATHS[0],
        [true, false] => PATHS[1],
        [false] => PATHS[2],
        _ => panic!("no request is sent as {commands:?}"),
    }
}

pub(crate) async fn the_machine_and_the_pipeline_agree_on_random_requests() {
    let set = mongoseal_test_support::shared(1).await;
    set.client().await.database("agreement").drop().await.unwrap();
    let subject = async || {
        let (client, commands) = noting_client(&set.uri()).await;
        let store = MongoStore::new(&client.database("agreement"), "leases", RETENTION);
        let store: Arc<dyn Store> = Arc::new(store);
        store.prepare(within(&store)).await.unwrap();
        (store, Some(commands))
    };
    let seen = agree(subject).await;
    let taken = PATHS.map(|path| seen.times(path));
    let tenth = taken.iter().sum::<usize>() / 10;
    assert!(
        taken.iter().all(|times| *times >= tenth),
        "each path is taken by a tenth of acquires and releases: {seen:?}"
    );
}

pub(crate) async fn the_machine_and_the_redis_store_agree_on_the_same_random_requests() {
    let server = Redis::start().await;
    let store = || -> Arc<dyn Store> { Arc::new(RedisStore::new(RedisBackend::new(server.url()).unwrap(), RETENTION)) };
    let seen = agree(async || (store(), None)).await;
    assert!(seen.times("several in one swap") > 100, "{seen:?}");
}

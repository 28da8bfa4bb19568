//! Property test: the state machine in Rust and the MongoDB pipeline agree. The same requests make the same records and
//! outcomes.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]

mod forms;
mod steps;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic},
    task::{Context, Waker},
    time::Duration,
};

use mongoseal::{
    Deadline, FencingToken, HybridTime, Key,
    record::{
        self, Acquire, BatchRequest, Complete, Downgrade, Outcome, Record, Release, Request, Revoke, StoreClock,
        Transfer,
    },
    store::{Applied, MongoStore, Snapshot, Store},
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, TestRunner},
};

use self::{
    forms::{Commands, noting_client, path},
    steps::{Asked, Step, sequence},
};

/// How many sequences of requests a push tries, if `MONGOSEAL_SEQUENCES` is not set. Each has a key of its own.
const SEQUENCES: usize = 1_150;
/// How many sequences run at once.
const LANES: usize = 32;
const WITHIN: Duration = Duration::from_secs(20);

/// What was seen, so that the test can show that it reached what it is about.
#[derive(Debug, Default)]
struct Seen {
    requests: atomic::AtomicUsize,
    outcomes: Mutex<BTreeMap<&'static str, usize>>,
}

impl Seen {
    fn count(&self, name: &'static str) {
        *self.outcomes.lock().unwrap().entry(name).or_default() += 1;
    }

    fn note(&self, before: Option<&Record>, after: Option<&Record>, outcome: &'static str) {
        self.requests.fetch_add(1, atomic::Ordering::Relaxed);
        self.count(outcome);
        let (Some(before), Some(after)) = (before, after) else { return };
        if before == after {
            self.count("nothing changed");
        }
        if after.holders.len() > 1 {
            self.count("shared");
        }
        let handed_over = after.holders.iter().filter(|holder| before.position(holder.terms.lease).is_some()).count();
        if handed_over > 1 {
            self.count("several handed over at once");
        }
        if after.holders.iter().any(|holder| holder.released_at.is_some()) {
            self.count("a minimum hold outlasted the lease");
        }
        if after.holders.iter().any(|holder| holder.not_after == Some(holder.expires_at)) {
            self.count("a maximum hold cut the expiry");
        }
        let expired = before.holders.iter().any(|holder| holder.expires_at <= after.last_seen);
        if expired && before.done != after.done {
            self.count("completed after the expiry");
        }
        let now = after.last_seen;
        if before.holders.iter().any(|holder| holder.expires_at <= now) {
            self.count("a holder expired");
        }
        if before.queue.iter().any(|waiter| waiter.expires_at <= now) {
            self.count("a waiter expired");
        }
    }
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Granted { .. } => "granted",
        Outcome::Queued { .. } => "queued",
        Outcome::Full { .. } => "no room to wait",
        Outcome::Refused { .. } => "refused",
        Outcome::Refreshed { .. } => "refreshed",
        Outcome::Released => "released",
        Outcome::Absent => "absent",
        Outcome::Revoked { .. } => "revoked",
        Outcome::Transferred { .. } => "transferred",
        Outcome::Downgraded => "downgraded",
        Outcome::Raised { .. } => "raised",
        Outcome::Completed => "completed",
        Outcome::Reset { .. } => "reset",
        Outcome::Pruned { holders } if holders.is_empty() => "nothing to prune",
        Outcome::Pruned { .. } => "pruned",
    }
}

/// The request as it is sent: a release names the token of the first holder, which is its own or another's, and so does
/// a revocation that does not mean all. A raise is from one less than the version on.
fn sent(request: &Request, met: Option<&Record>) -> Request {
    let mut request = request.clone();
    if let (Request::Raise(raise), Some(met)) = (&mut request, met) {
        raise.to = FencingToken::new((met.version.get() + raise.to.get()).saturating_sub(2).max(1)).unwrap();
    }
    let Some(first) = met.and_then(|record| record.holders.first()) else { return request };
    match &mut request {
        Request::Release(Release { token, .. }) => *token = first.version,
        Request::Transfer(Transfer { lease, token, .. })
        | Request::Downgrade(Downgrade { lease, token, .. })
        | Request::Complete(Complete { lease, token, .. }) => {
            let own = met.and_then(|record| record.holder(*lease));
            *token = own.map_or(first.version, |own| own.version);
        }
        Request::Revoke(Revoke { upto, .. }) if *upto != FencingToken::MAX => *upto = first.version,
        _ => {}
    }
    request
}

/// Drives both machines through one sequence, and compares them after every request.
async fn compare(store: &MongoStore, key: &Key, steps: Vec<Step>, seen: &Seen, commands: &Commands) {
    let mut met: Option<Record> = None;
    let forms = || commands.lock().unwrap().remove(key.as_str()).unwrap_or_default();
    for step in steps {
        tokio::time::sleep(step.pause).await;
        for _ in 0..=usize::from(step.twice) {
            forms();
            let (expected, outcome) = match (&step.asked, &met) {
                (Asked::Of(request), met) => single(store, key, request, met.as_ref()).await,
                (Asked::Jointly(joint, which), Some(met)) => jointly(store, key, joint, *which, met).await,
                (Asked::Jointly(..), None) => continue,
                (Asked::Together(requests), met) => together(store, key, requests, met.as_ref()).await,
            };
            if let Asked::Of(Request::Acquire(_) | Request::Release(_)) = step.asked {
                seen.count(path(&forms()));
            }
            assert_eq!(read(store, key).await, expected, "the record after {step:?} on {met:#?}");
            seen.note(met.as_ref(), expected.as_ref(), outcome);
            met = expected;
        }
    }
}

async fn read(store: &MongoStore, key: &Key) -> Option<Record> {
    let read = store.read(key, Deadline::after(store.clock(), WITHIN));
    read.await.unwrap().map(|Snapshot { record, .. }| *record)
}

/// Asks the server, and gives what the machine makes of it.
async fn single(
    store: &MongoStore,
    key: &Key,
    request: &Request,
    met: Option<&Record>,
) -> (Option<Record>, &'static str) {
    let request = sent(request, met);
    let Applied { outcome, mut at, .. } =
        store.apply(key, request.clone(), Deadline::after(store.clock(), WITHIN)).await.unwrap();
    if outcome == Outcome::Released && at.is_none() {
        // The fast path does not tell the time of a release, but the record does. No token was issued.
        let now = read(store, key).await.expect("there is a record").last_seen;
        let seconds = u64::try_from(now.millis()).unwrap() / 1_000;
        at = Some(StoreClock { now, tick: HybridTime { seconds, ordinal: 0 } });
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

/// The same for requests that are sent at the same time: the first goes by itself, and the others, which come meanwhile,
/// together.
async fn together(
    store: &MongoStore,
    key: &Key,
    requests: &[Request],
    met: Option<&Record>,
) -> (Option<Record>, &'static str) {
    let mut sent: Vec<_> = requests
        .iter()
        .map(|request| store.apply(key, request.clone(), Deadline::after(store.clock(), WITHIN)))
        .collect();
    for answer in &mut sent {
        assert!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let mut applied = Vec::new();
    for answer in sent {
        applied.push(answer.await.unwrap());
    }
    if applied.iter().all(|applied| applied.at.is_none()) {
        // There was no record that they could change.
        assert!(met.is_none() && applied.iter().all(|applied| applied.outcome == Outcome::Absent));
        return (None, "absent");
    }
    let at = |applied: &Applied| applied.at.unwrap();
    let (after, expected) = record::apply(met, at(&applied[0]), &requests[0]);
    assert_eq!(applied[0].outcome, expected, "the outcome of {:?} on {met:#?}", requests[0]);
    let Some(second) = applied.get(1) else { return (after, "one of its own") };
    if applied[1..].iter().any(|applied| applied.at != second.at) {
        // The grant made room, and an acquire that had found none was sent once more. When the others were is not known.
        return (read(store, key).await, "asked once more");
    }
    let (after, expected) = record::apply_together(after.as_ref(), at(second), &requests[1..]);
    for (applied, expected) in applied[1..].iter().zip(expected) {
        assert_eq!(applied.outcome, expected, "{requests:?} on {met:#?}");
    }
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
    store: &MongoStore,
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
    let done = store
        .apply_batch(&vec![(key.clone(), tokens.clone())], joint, Deadline::after(store.clock(), WITHIN))
        .await
        .unwrap();
    let Some(Snapshot { record, at }) = store.read(key, Deadline::after(store.clock(), WITHIN)).await.unwrap() else {
        panic!("it is there")
    };
    if !done {
        // Nor could it have been done later.
        assert_eq!(record::apply_batch(met, at, &tokens, joint), None, "{joint:?} of {tokens:?} on {met:#?}");
        return (Some(met.clone()), "not all of them");
    }
    // The first token that was granted tells the tick; where none was, the tick told nothing.
    let granted = record.holders.iter().map(|holder| holder.version).find(|token| *token > met.version);
    let waiting = met.queue.iter().filter(|waiter| waiter.expires_at > record.last_seen).count();
    let version = granted.unwrap_or(record.version).get() + u64::try_from(waiting.saturating_sub(1)).unwrap();
    let mut tick = HybridTime::from(FencingToken::new(version).unwrap());
    // A version that was raised is ahead of the clock, by far or in the same second.
    let now = u64::try_from(record.last_seen.millis()).unwrap() / 1_000;
    tick.seconds = if tick.seconds > now + 60 { now } else { tick.seconds };
    let after = record::apply_batch(met, StoreClock { now: record.last_seen, tick }, &tokens, joint);
    assert!(after.is_some(), "{joint:?} of {tokens:?} on {met:#?}");
    let outcome = match joint {
        BatchRequest::Release => "released jointly",
        BatchRequest::Revoke { .. } => "revoked jointly",
        BatchRequest::Keep { .. } => "kept jointly",
        BatchRequest::Refresh { .. } => "refreshed jointly",
    };
    (after, outcome)
}

/// What the sequences must reach, each ten times at least.
const REACHED: &str = "granted, queued, no room to wait, refused, refreshed, released, absent, revoked, \
    transferred, downgraded, raised, pruned, nothing to prune, nothing changed, shared, several handed over at once, \
    a holder expired, a waiter expired, released jointly, revoked jointly, kept jointly, refreshed jointly, \
    completed, reset, a minimum hold outlasted the lease, a maximum hold cut the expiry, completed after the expiry, \
    not all of them, waited together, acquired together, left together";

pub(crate) async fn the_machine_and_the_pipeline_agree_on_random_requests() {
    let set = mongoseal_test_support::shared(1).await;
    let (client, commands) = noting_client(&set.uri()).await;
    let database = client.database("agreement");
    database.drop().await.unwrap();
    let store = MongoStore::new(&database, "leases", Duration::from_secs(24 * 3600));
    store.prepare(Deadline::after(store.clock(), WITHIN)).await.unwrap();

    // Sequences are drawn here and driven side by side, so there is no shrinking: the sequence that
    // fails is short, and the failing step is printed with the record it met.
    let sequences = std::env::var("MONGOSEAL_SEQUENCES").map_or(SEQUENCES, |number| number.parse().expect("a number"));
    let mut runner = TestRunner::new(Config::default());
    let sequences: Vec<Vec<Step>> =
        (0..sequences).map(|_| sequence().new_tree(&mut runner).unwrap().current()).collect();
    let seen = Arc::new(Seen::default());
    let count = sequences.len();
    let todo = Arc::new(Mutex::new(sequences.into_iter().enumerate()));
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            // Each with a store of its own: a transaction keeps the other requests of a store waiting.
            let store = MongoStore::new(&database, "leases", Duration::from_secs(24 * 3600));
            let (todo, seen, commands) = (todo.clone(), seen.clone(), commands.clone());
            tokio::spawn(async move {
                let next = || todo.lock().unwrap().next();
                while let Some((number, steps)) = next() {
                    compare(&store, &format!("k{number}").parse().unwrap(), steps, &seen, &commands).await;
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.unwrap();
    }

    println!("{count} sequences, {seen:?}");
    let outcomes = seen.outcomes.lock().unwrap();
    for reached in REACHED.split(", ") {
        assert!(outcomes.get(reached).is_some_and(|times| *times >= 10), "rarely or never {reached}: {outcomes:?}");
    }
    let paths = [path(&["fast"]), path(&["fast", "whole"]), path(&["whole"])];
    let taken = paths.map(|path| outcomes.get(path).copied().unwrap_or_default());
    let tenth = taken.iter().sum::<usize>() / 10;
    assert!(
        taken.iter().all(|times| *times >= tenth),
        "each path is taken by a tenth of acquires and releases: {outcomes:?}"
    );
}

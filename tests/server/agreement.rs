//! Property test: the state machine in Rust and the MongoDB pipeline agree. The same requests make the same records and
//! outcomes.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex, atomic},
    task::{Context, Waker},
    time::Duration,
};

use mongodb::{
    Client,
    bson::Bson,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use mongoseal::{
    AcquireId, Deadline, FencingToken, HybridTime, Key, LeaseId, Metadata,
    record::{
        self, Acquire, BatchRequest, Downgrade, LeaseSpec, Leave, Outcome, Raise, Record, Refresh, Release, Request,
        Revoke, StoreClock, Transfer, WaitSpec,
    },
    store::{Applied, MongoStore, Snapshot, Store},
};
use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};

/// How many sequences of requests a push tries, where `MONGOSEAL_SEQUENCES` does not say. Each is so many requests on a key
/// of its own: long ones reach what is rare, and begin with short ones.
const SEQUENCES: usize = 1_150;
const LENGTH: RangeInclusive<usize> = 20..=32;
/// How many sequences run at once.
const LANES: usize = 32;
const WITHIN: Duration = Duration::from_secs(20);

/// One step: a request, and how long to wait before it so that some entries expire.
#[derive(Clone, Debug)]
struct Step {
    pause: Duration,
    asked: Asked,
    /// Sends it once more, as after a lost reply.
    twice: bool,
}

/// What is asked of a store.
#[derive(Clone, Debug)]
enum Asked {
    Of(Request),
    /// Of those holders whose bits are set, in the order of the record; the last bit stands for one who
    /// never held.
    Jointly(BatchRequest, u8),
    /// Of the same key at the same time: acquires that wait, acquires that do not, or leaves.
    Together(Vec<Request>),
}

/// One of the few callers that ask with a lease.
fn caller_of(lease: LeaseId, asks: u64) -> AcquireId {
    format!("{:016x}/{asks}", lease.to_bytes()[0]).parse().unwrap()
}

fn step() -> impl Strategy<Value = Step> {
    // Few leases, so that requests meet; short times, so that they pass.
    let lease_of = || (1_u8..=8).prop_map(|number| LeaseId::from_bytes([number; 16]));
    let lease = lease_of();
    // The last is that of a lease without expiry.
    let millis = prop_oneof![2 => 1_u64..60, 8 => Just(60_000_u64), 1 => Just(220_752_000_000_000_u64)];
    let limit = prop_oneof![2 => Just(0_u32), 4 => 1_u32..5, 1 => Just(u32::try_from(i32::MAX).unwrap())];
    let grace = prop_oneof![3 => Just(0_u64), 1 => 1_u64..30];
    let patience = (millis.clone(), prop_oneof![1 => 1_u32..4, 2 => Just(u32::MAX)]);
    let patience =
        proptest::option::weighted(0.8, patience.prop_map(|(ttl, queue_limit)| WaitSpec { ttl, queue_limit }));
    let text = prop_oneof![Just("me"), Just("$owner"), Just("$$NOW"), Just("{\"$literal\": 1}")];
    let acquire = (lease.clone(), limit, millis.clone(), grace.clone(), patience, text, (any::<bool>(), 0_u64..3))
        .prop_map(|(lease, limit, ttl, grace, patience, owner, (described, asks))| {
            let mut metadata = Metadata::default();
            if described {
                metadata.insert("note", owner).unwrap();
            }
            let group = described.then(|| owner.parse().unwrap());
            let caller = caller_of(lease, asks);
            let terms = LeaseSpec { lease, caller, owner: owner.parse().unwrap(), limit, ttl, grace, group, metadata };
            Acquire { terms, wait: patience }
        });
    let enough = prop_oneof![Just(0_u64), Just(1_000_u64), Just(100_000_u64)];
    let joint = prop_oneof![
        Just(BatchRequest::Release),
        Just(BatchRequest::Revoke { by: "$ops".into(), reason: "$$ROOT".into() }),
        (millis.clone(), enough).prop_map(|(ttl, least)| BatchRequest::Refresh { ttl, least }),
        millis.clone().prop_map(|ttl| BatchRequest::Keep { ttl }),
    ];
    let which = prop_oneof![8 => 1_u8..8, 1 => any::<u8>()];
    let joint = (joint, which).prop_map(|(joint, which)| Asked::Jointly(joint, which));
    let refresh = (lease.clone(), millis, grace, any::<bool>()).prop_map(|(lease, ttl, grace, described)| {
        let metadata = described.then(|| {
            let mut metadata = Metadata::default();
            metadata.insert("$x", "$$NOW").unwrap_err();
            metadata.insert("value", "$$NOW").unwrap();
            metadata
        });
        Request::Refresh(Refresh { lease, ttl, grace, metadata })
    });
    // With the token of a holder, if there is one: see `sent`.
    let release = lease.clone().prop_map(|lease| Request::Release(Release { lease, token: FencingToken::MAX }));
    let taken_back =
        (lease, 0_u64..3).prop_map(|(lease, asks)| Request::Leave(Leave { lease, caller: caller_of(lease, asks) }));
    // Half of the revocations are of those who held before the last: see `sent`.
    let upto = prop_oneof![Just(FencingToken::MAX), Just(FencingToken::new(1).unwrap())];
    let revoke = upto.prop_map(|upto| Request::Revoke(Revoke { by: "$ops".into(), reason: "$$ROOT".into(), upto }));
    // Of a holder, if there is one: see `sent`.
    let transfer = (lease_of(), lease_of())
        .prop_map(|(lease, to)| Request::Transfer(Transfer { lease, token: FencingToken::MAX, to }));
    let downgrade = (lease_of(), 0_u32..5)
        .prop_map(|(lease, limit)| Request::Downgrade(Downgrade { lease, token: FencingToken::MAX, limit }));
    // From one less than the version to two hours above it: see `sent`.
    let to = prop_oneof![1_u64..7, Just(7_200 << HybridTime::ORDINAL_BITS)];
    let raise = to.prop_map(|to| Request::Raise(Raise { to: FencingToken::new(to).unwrap() }));
    let together = (vec(acquire.clone(), 2..6), 0_u8..3).prop_map(|(mut acquires, verb)| {
        // With the same bound on how many wait.
        let room = acquires[0].wait.map_or(4, |wait| wait.queue_limit);
        for Acquire { terms, wait: patience } in &mut acquires {
            terms.limit = terms.limit.min(1);
            let lasts = patience.map_or(terms.ttl, |wait| wait.ttl);
            *patience = (verb == 0).then_some(WaitSpec { ttl: lasts, queue_limit: room });
        }
        let mut leases = HashSet::new();
        acquires.retain(|acquire| leases.insert(acquire.terms.lease));
        let request = |acquire: Acquire| match verb {
            0 | 1 => Request::Acquire(acquire),
            _ => Request::Leave(Leave { lease: acquire.terms.lease, caller: acquire.terms.caller }),
        };
        Asked::Together(acquires.into_iter().map(request).collect())
    });
    let acquire = acquire.prop_map(Request::Acquire);
    let request = prop_oneof![12 => acquire, 4 => refresh, 1 => release, 3 => taken_back, 1 => revoke, 2 => transfer, 2 => downgrade, 1 => raise, 3 => Just(Request::Prune)];
    let pause = prop_oneof![4 => Just(0_u64), 1 => 1_u64..25].prop_map(Duration::from_millis);
    let asked = prop_oneof![24 => request.prop_map(Asked::Of), 3 => joint, 3 => together];
    (pause, asked, proptest::bool::weighted(0.15)).prop_map(|(pause, asked, twice)| Step { pause, asked, twice })
}

/// A step of a key that is mostly free: two leases acquire it, and release it.
fn calm_step() -> impl Strategy<Value = Step> {
    let request = (1_u8..=2, 0_u8..3, any::<bool>()).prop_map(|(number, verb, waits)| {
        let lease = LeaseId::from_bytes([number; 16]);
        if verb > 0 {
            return Request::Release(Release { lease, token: FencingToken::MAX });
        }
        let (caller, owner) = (caller_of(lease, 0), "me".parse().unwrap());
        let terms = LeaseSpec {
            lease,
            caller,
            owner,
            limit: 0,
            ttl: 60_000,
            grace: 5,
            group: None,
            metadata: Metadata::default(),
        };
        let wait = waits.then_some(WaitSpec { ttl: 60_000, queue_limit: 9 });
        Request::Acquire(Acquire { terms, wait })
    });
    let pause = prop_oneof![4 => Just(0_u64), 1 => 1_u64..25].prop_map(Duration::from_millis);
    let asked = request.prop_map(Asked::Of);
    (pause, asked, proptest::bool::weighted(0.15)).prop_map(|(pause, asked, twice)| Step { pause, asked, twice })
}

/// The steps of a key: one key of four is mostly free.
fn sequence() -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![3 => vec(step(), LENGTH), 1 => vec(calm_step(), LENGTH)]
}

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
        Request::Transfer(Transfer { lease, token, .. }) | Request::Downgrade(Downgrade { lease, token, .. }) => {
            let own = met.and_then(|record| record.holder(*lease));
            *token = own.map_or(first.version, |own| own.version);
        }
        Request::Revoke(Revoke { upto, .. }) if *upto != FencingToken::MAX => *upto = first.version,
        _ => {}
    }
    request
}

/// The commands that were sent for each key, as the names of their forms.
type Commands = Arc<Mutex<HashMap<String, Vec<&'static str>>>>;

/// A client that notes which form each acquire and each release has.
async fn noting_client(uri: &str) -> (Client, Commands) {
    let (commands, mut options) = (Commands::default(), ClientOptions::parse(uri).await.unwrap());
    let note = Arc::clone(&commands);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let CommandEvent::Started(started) = event else { return };
        let command = started.command;
        // The fast path has short pipelines, and releases by an update.
        let (key, form) = if let Ok([Bson::Document(update)]) = command.get_array("updates").map(Vec::as_slice) {
            (update.get_document("q").and_then(|query| query.get_str("_id")), "fast")
        } else {
            let stages = command.get_array("update").map_or(0, Vec::len);
            let key = command.get_document("query").and_then(|query| query.get_str("_id"));
            (key, if stages == 2 { "fast" } else { "whole" })
        };
        if let Ok(key) = key {
            note.lock().unwrap().entry(key.to_owned()).or_default().push(form);
        }
    }));
    (Client::with_options(options).unwrap(), commands)
}

/// The path of an acquire or a release that sent commands of these forms.
fn path(forms: &[&str]) -> &'static str {
    match forms {
        ["fast"] => "by the fast path",
        ["fast", "whole"] => "by the whole pipeline after the fast path",
        ["whole"] => "by the whole pipeline",
        other => panic!("no request is sent as {other:?}"),
    }
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

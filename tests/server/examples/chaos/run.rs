//! One run, from the start of the servers to the final check of the records.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::ReadConcern,
};
use mongoseal::{Lease, Mongoseal};
use mongoseal_test_support::{ReplicaSet, find_libfaketime};
use tokio::time::sleep;

use crate::{
    crew::{APP_NAME, Crew, DATABASE},
    faults::{AFTERMATH, Chaos, Kind, term},
    history::History,
    judge::Case,
    options::Options,
    sabotage::Sabotage,
    words::{Acquire, Entry, Event, Inspect, Micros, micros, now},
    worker::{
        CROWDED_KEY, DOCUMENTS, HOT_KEYS, LEADERSHIP, OPERATION_TIMEOUT, OUTSTAYED_KEYS, RETENTION, SMALLEST_GRACE,
        STALL, WRITTEN_KEYS, client, holder::contents,
    },
};

/// How many members the set has.
const MEMBERS: usize = 3;
/// The longest ttl and grace together, and a little: by how much clocks may differ, too.
const LAPSE: Duration = Duration::from_millis(4500);

pub(crate) async fn run(options: &Options) -> Vec<Event> {
    let kinds = kinds(options);
    println!("seed         {}", options.seed);
    let mut builder = ReplicaSet::builder().members(MEMBERS).proxied().election_timeout(Duration::from_secs(2));
    builder = builder.parameter("shutdownTimeoutMillisForSignaledShutdown", "500");
    // A worker that is killed in a transaction keeps the record locked for so long, by default for a minute: longer
    // than any claim, so that at the end of a run its key could not be had.
    builder = builder.parameter("transactionLifetimeLimitSeconds", "5");
    let differ = options.clock_offsets && clocks_can_differ();
    if differ || kinds.contains(&Kind::ClockJump) {
        builder = builder.own_clocks();
    }
    let set = Arc::new(builder.start().await);
    let offsets = if differ { offsets(options.seed) } else { [Duration::ZERO; MEMBERS] };
    if differ {
        set_clocks(&set, offsets).await;
        println!("clocks       ahead by {offsets:?}");
    }
    if let Some(sabotage) = options.sabotage {
        sabotage.tamper(&set);
        println!("sabotage     {}", sabotage.name());
    }
    let history = History::default();
    watch_for_stalls(&history);
    history.note(Event::Elected { term: term(&set).await });
    let begin = now();
    history.note(Event::Run {
        seed: options.seed,
        sabotage: options.sabotage.map(|sabotage| sabotage.name().to_owned()),
        only: options.only.iter().map(|kind| kind.name().to_owned()).collect(),
        retention: micros(RETENTION),
        begin,
        spread: micros(offsets.into_iter().max().unwrap_or_default()),
    });
    let database = set.client().await.database(DATABASE);
    let documents = database.collection::<Document>(DOCUMENTS);
    let empty = WRITTEN_KEYS.map(|key| doc! { "_id": key, "count": 0_i64 });
    documents.insert_many(empty).await.expect("a new set takes documents");
    let least_grace = if differ { micros(SMALLEST_GRACE) } else { 0 };
    // Also what is there before the workers: the index, by a handle that nobody sabotages.
    let seal =
        Mongoseal::builder().ttl(Duration::from_secs(2)).retention(RETENTION).operation_timeout(OPERATION_TIMEOUT);
    let seal = seal.grace(Duration::from_micros(least_grace));
    let seal = seal.on(&database).expect("the settings are valid");
    let crew = Arc::new(Crew::start(&set, options, least_grace, &history));
    let until = begin + micros(Duration::from_secs_f64(options.minutes * 60.0));
    let chaos = Chaos {
        set: Arc::clone(&set),
        crew: Arc::clone(&crew),
        history: history.clone(),
        kinds,
        outage: options.outage.map(Duration::from_secs_f64),
        seed: options.seed,
        until,
        offsets: offsets.map(shift).to_vec(),
    };
    let chaos = Arc::new(chaos);
    let counting = tokio::spawn(count_streams(set.client().await, history.clone(), until));
    let chaotic = tokio::spawn({
        let chaos = Arc::clone(&chaos);
        async move { chaos.run().await }
    });
    while now() < until
        && !chaotic.is_finished()
        && !options.sabotage.is_some_and(|sabotage| is_caught(sabotage, &history))
    {
        sleep(Duration::from_secs(2)).await;
    }
    if now() < until && !chaotic.is_finished() {
        // A sabotage that is caught has no more to show, and its faults end with the servers.
        chaotic.abort();
        return history.events();
    }
    chaotic.await.expect("faults can be done and healed");
    counting.await.expect("change streams can be counted");
    set.settled().await;
    history.note(Event::Healed { at: now(), term: term(&set).await });
    drop(chaos);
    // What the last faults have held up comes to its end.
    sleep(AFTERMATH).await;
    Arc::into_inner(crew).expect("nobody else has the crew").end().await;
    look(&seal, &history).await;
    read(&documents, &history).await;
    history.events()
}

/// Whether there is a libfaketime. Says so if there is none.
fn clocks_can_differ() -> bool {
    let found = find_libfaketime();
    if let Err(error) = &found {
        println!("clocks       do not differ: {error}");
    }
    found.is_ok()
}

/// By how much the clock of each member is ahead: one not at all, one by the most, and one by either.
fn offsets(seed: u64) -> [Duration; MEMBERS] {
    let mut rng = Rng::with_seed(seed);
    let most = SMALLEST_GRACE.mul_f64(rng.f64().mul_add(0.25, 0.75));
    let mut offsets = [Duration::ZERO, if rng.bool() { Duration::ZERO } else { most }, most];
    rng.shuffle(&mut offsets);
    offsets
}

/// In the language of libfaketime.
fn shift(offset: Duration) -> String {
    format!("+{}", offset.as_secs_f64())
}

/// Sets the clock of each member ahead, and waits until its answers say so.
async fn set_clocks(set: &ReplicaSet, offsets: [Duration; MEMBERS]) {
    for (member, offset) in offsets.into_iter().enumerate() {
        set.set_clock(member, &shift(offset));
        let begin = now();
        loop {
            let asked = SystemTime::now();
            let hello = set.admin(member, doc! { "hello": 1 }).await.expect("a member that is well says hello");
            let told = hello.get_datetime("localTime").expect("a hello tells the time").to_system_time();
            let answered = SystemTime::now() + Duration::from_millis(1);
            if (asked + offset - Duration::from_millis(1)..=answered + offset).contains(&told) {
                break;
            }
            assert!(now() - begin < 10_000_000, "the clock of member {member} is at {told:?}, asked at {asked:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// All, but clocks: a run in which they jump cannot say whether two held a key at once, and is one of
/// its own.
fn kinds(options: &Options) -> Vec<Kind> {
    if !options.only.is_empty() {
        return options.only.clone();
    }
    println!("left out     clock-jump, which is run by --only clock-jump");
    // What a deletion excuses is known when it is over, and a sabotaged run is judged all the while.
    let left_out = |kind: Kind| kind == Kind::ClockJump || options.sabotage.is_some() && kind == Kind::Drop;
    Kind::ALL.iter().copied().filter(|kind| !left_out(*kind)).collect()
}

/// Whether more was found than calls that took long, which they do on a busy machine, too; unless that is what the
/// sabotage does.
fn is_caught(sabotage: Sabotage, history: &History) -> bool {
    let is_enough = |of: &str| of != "I8" && (of != "I12" || sabotage == Sabotage::SharedFate);
    Case::of(&history.events()).judge().iter().any(|violation| is_enough(violation.of))
}

/// The last look: every key that many wanted can be had, and nobody holds any.
async fn look(seal: &Mongoseal, history: &History) {
    let keys = HOT_KEYS.into_iter().chain(WRITTEN_KEYS).chain(OUTSTAYED_KEYS).chain([LEADERSHIP, CROWDED_KEY]);
    for (number, key) in (0..).zip(keys) {
        let begin = now();
        let answer = seal.acquire(key).ttl(Duration::from_secs(2)).wait(LAPSE).await;
        let end = now();
        let outcome = client::outcome(answer.as_ref().map(Lease::token));
        if let Ok(lease) = answer {
            lease.release().await.ok();
        }
        history.note(Event::Acquire(Acquire {
            worker: 0,
            lease: number,
            key: key.into(),
            limit: 0,
            ttl: 2_000_000,
            grace: 0,
            group: None,
            begin,
            end,
            within: micros(LAPSE + OPERATION_TIMEOUT),
            outcome,
            attempts: 1,
            doubts: 0,
            queued: None,
            anew: false,
            probe: true,
            refreshes: true,
        }));
    }
    sleep(LAPSE).await;
    let keys: BTreeSet<String> = history.events().into_iter().filter_map(key).collect();
    for key in keys {
        let begin = now();
        let seen = client::seen(seal.inspect(key.as_str()).await);
        let (end, within) = (now(), micros(OPERATION_TIMEOUT));
        history.note(Event::Inspect(Inspect { worker: 0, key, begin, end, within, seen }));
    }
}

/// What became of the documents.
async fn read(documents: &Collection<Document>, history: &History) {
    for key in WRITTEN_KEYS {
        let begin = now();
        let found = documents.find_one(doc! { "_id": key }).read_concern(ReadConcern::linearizable()).await;
        let before = found.as_ref().ok().and_then(Option::as_ref).and_then(contents);
        let outcome = if before.is_some() { "ok".into() } else { format!("{found:?}") };
        let (end, within) = (now(), micros(OPERATION_TIMEOUT));
        let (worker, lease, token, key) = (0, 0, None, key.into());
        history.note(Event::Entry(Entry { worker, lease, key, token, begin, end, within, outcome, before }));
    }
}

fn key(event: Event) -> Option<String> {
    match event {
        Event::Acquire(acquire) => Some(acquire.key),
        _ => None,
    }
}

/// Tells how many change streams each process waits for, once a second. A primary that does not answer has nothing to tell.
async fn count_streams(client: Client, history: History, until: Micros) {
    let admin = client.database("admin");
    let is_stream = doc! {
        "appName": { "$regex": format!("^{APP_NAME}") },
        "cursor.originatingCommand.pipeline.0.$changeStream": { "$exists": true },
    };
    let pipeline = [
        doc! { "$currentOp": { "allUsers": true } },
        doc! { "$match": is_stream },
        doc! { "$group": { "_id": "$appName", "count": { "$sum": 1_i64 } } },
    ];
    while now() < until {
        sleep(Duration::from_secs(1)).await;
        let Ok(mut counts) = admin.aggregate(pipeline.clone()).await else { continue };
        let at = now();
        while counts.advance().await.unwrap_or(false) {
            let counted = counts.current();
            let slot = counted.get_str("_id").ok().and_then(|name| name.strip_prefix(APP_NAME)?.parse().ok());
            let count = counted.get_i64("count").ok().and_then(|count| u64::try_from(count).ok());
            if let (Some(slot), Some(count)) = (slot, count) {
                history.note(Event::Streams { slot, count, at });
            }
        }
    }
}

/// Tells when the runner itself did not run, as worker 0.
fn watch_for_stalls(history: &History) {
    let history = history.clone();
    std::thread::spawn(move || {
        let mut last = now();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let to = now();
            if to - last > STALL {
                history.note(Event::Stall { worker: 0, from: last, to });
            }
            last = to;
        }
    });
}

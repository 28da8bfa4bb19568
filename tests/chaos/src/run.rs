//! One run, from the start of the servers to the final check of the records.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use mongoseal::Mongoseal;
use mongoseal_test_support::ReplicaSet;
use tokio::time::sleep;

use crate::{
    clocks::Clocks,
    crew::Crew,
    faults::{AFTERMATH, Chaos, Kind},
    history::History,
    judge::{BY_TIME, Case},
    options::Options,
    servers::{Servers, redis::RedisServers, set_clocks},
    words::{Acquire, Event, Run, micros, name, now},
    worker::{
        CROWDED_KEY, HOT_KEYS, OPERATION_TIMEOUT, OUTSTAYED_KEYS, WRITTEN_KEYS, client, process::watch_for_stalls,
    },
};

/// The longest ttl and grace together, and a little: by how much clocks may differ, too.
const LAPSE: Duration = Duration::from_millis(4500);

pub(crate) async fn run(options: &Options) -> Vec<Event> {
    if options.redis { run_on::<RedisServers>(options).await } else { run_on::<ReplicaSet>(options).await }
}

async fn run_on<S: Servers>(options: &Options) -> Vec<Event> {
    let kinds = kinds(options);
    println!("seed         {}", options.seed);
    let clocks = Clocks::of(options);
    let own_clocks = clocks.offsets.is_some() || kinds.contains(&Kind::ClockJump);
    let servers = Arc::new(S::start(options, &kinds, own_clocks).await);
    set_clocks(&*servers, &clocks).await;
    servers.settled().await;
    if let Some(sabotage) = options.sabotage {
        servers.tamper(sabotage);
        println!("sabotage     {}", name(sabotage));
    }
    let history = History::default();
    let noted = history.clone();
    watch_for_stalls(0, move |stall| noted.note(stall));
    let begin = now();
    history.note(Event::Run(Run {
        sabotage: options.sabotage,
        retention: micros(servers.backing().retention()),
        spread: micros(clocks.spread()),
        redis: options.redis,
        term: servers.term().await,
    }));
    servers.prepare().await;
    let least_grace = clocks.least_grace();
    // Also what is there before the workers: the index, by a handle that nobody sabotages.
    let seal = Mongoseal::builder().ttl(Duration::from_secs(2)).operation_timeout(OPERATION_TIMEOUT);
    let seal = servers.seal(seal.grace(least_grace)).await;
    let crew = Arc::new(Crew::start(&*servers, options, least_grace, &history));
    let until = begin + micros(Duration::from_secs_f64(options.minutes * 60.0));
    let chaos = Chaos {
        servers: Arc::clone(&servers),
        crew: Arc::clone(&crew),
        history: history.clone(),
        kinds,
        seed: options.seed,
        until,
        clocks,
    };
    let chaos = Arc::new(chaos);
    let counting = tokio::spawn(Arc::clone(&servers).count(history.clone(), until));
    let chaotic = tokio::spawn({
        let chaos = Arc::clone(&chaos);
        async move { chaos.run().await }
    });
    while now() < until && !chaotic.is_finished() && !(options.sabotage.is_some() && is_caught(options, &history)) {
        sleep(Duration::from_secs(2)).await;
    }
    if now() < until && !chaotic.is_finished() {
        // A sabotage that is caught has no more to show, and its faults end with the servers.
        chaotic.abort();
        return history.events();
    }
    chaotic.await.expect("faults can be done and healed");
    counting.await.expect("what is open at the servers can be counted");
    servers.settled().await;
    history.note(Event::Healed { at: now(), term: servers.term().await });
    drop(chaos);
    // What the last faults have held up comes to its end.
    sleep(AFTERMATH).await;
    Arc::into_inner(crew).expect("nobody else has the crew").end().await;
    look(&seal, &history).await;
    servers.read(&history).await;
    history.events()
}

/// All, but clocks and logins: a run in which they jump cannot say whether two held a key at once, and is one of
/// its own. If clocks differ, two primaries at a time can issue tokens in the wrong order, at any difference.
fn kinds(options: &Options) -> Vec<Kind> {
    if !options.only.is_empty() {
        return options.only.clone();
    }
    println!("left out     clock-jump and, on MongoDB, login: each is run by --only");
    let differ = options.clock_offsets || options.clock_offset.is_some();
    // What a deletion excuses is known when it is over, and a sabotaged run is judged all the while.
    let left_out = |kind: Kind| match kind {
        // Of other servers: with shifted clocks, or with access control, whose logins keep a small machine busy.
        Kind::ClockJump | Kind::Login => true,
        Kind::Drop => options.sabotage.is_some(),
        Kind::SplitBrain => differ,
        _ => false,
    };
    Kind::all(options.redis).into_iter().filter(|kind| !left_out(*kind)).collect()
}

/// Whether the run has broken an invariant of `--caught-by`, or without that option one that does not go by seconds.
fn is_caught(options: &Options, history: &History) -> bool {
    let is_enough = |of: &str| match &options.caught_by[..] {
        [] => !BY_TIME.contains(&of),
        by => by.iter().any(|one| one == of),
    };
    Case::of(&history.events()).judge().iter().any(|violation| is_enough(violation.of))
}

/// The last look: every key that many wanted can be had, and nobody holds any.
async fn look(seal: &Mongoseal, history: &History) {
    let keys = HOT_KEYS.into_iter().chain(WRITTEN_KEYS).chain(OUTSTAYED_KEYS).chain([CROWDED_KEY]);
    for (number, key) in (0..).zip(keys) {
        let begin = now();
        let answer = seal.acquire(key).ttl(Duration::from_secs(2)).wait(LAPSE).await;
        let end = now();
        let outcome = client::outcome(&answer);
        let token = answer.as_ref().map_or(0, |lease| lease.token().get());
        if let Ok(lease) = answer {
            lease.release().await.ok();
        }
        history.note(Event::Acquire(Acquire {
            lease: number,
            key: key.into(),
            ttl: 2_000_000,
            begin,
            end,
            within: micros(LAPSE + OPERATION_TIMEOUT),
            outcome,
            token,
            attempts: 1,
            probe: true,
            refreshes: true,
            ..Acquire::default()
        }));
    }
    sleep(LAPSE).await;
    let key = |event| if let Event::Acquire(acquire) = event { Some(acquire.key) } else { None };
    let keys: BTreeSet<String> = history.events().into_iter().filter_map(key).collect();
    for key in keys {
        history.note(Event::Inspect(client::inspect(0, seal, &key).await));
    }
}

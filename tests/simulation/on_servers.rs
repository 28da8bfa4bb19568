//! The programs of the simulation on real servers, in real time: many at once, each in a collection of its own. What is
//! always true judges them there, too. They are tests of the night. Processes die and are cut off. Servers are killed, paused,
//! overloaded and cut off, and the primary steps down.
//!
//! The rules are those of the simulation that can be seen from outside of a server: not the order of tokens, and watches on
//! a calm MongoDB only. The times are 750 milliseconds, and do not count while the machine or the server is slow. On MongoDB,
//! the programs also write documents under their leases: a document has each acknowledged write, and no write under an
//! earlier token after one under a later token.
//!
//! A program that breaks a rule is run in memory. If it breaks the rule there, it is reduced.
//!
//! `MONGOSEAL_MINUTES=60 cargo test --release --workspace --test programs mongodb_with_faults -- --ignored` runs for so long.
//! `MONGOSEAL_FIRST=5000` begins with that seed, and `MONGOSEAL_SEED=17` runs one.

#![allow(dead_code, reason = "main.rs uses the rest of these files")]
#![allow(clippy::enum_glob_use, reason = "a step names many choices")]
#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod beliefs;
mod choices;
mod link;
mod process;
mod program;
mod reduce;
mod route;
mod run;
mod step;
mod table;
mod wire;
mod world;

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fastrand::Rng;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use mongoseal::{
    Builder, Mongoseal,
    store::{BoxFuture, MongoStore, Store},
};
use mongoseal_redis::{RedisBackend, RedisStore};
use mongoseal_test_support::{Forwarder, How, Peer, Redis, ReplicaSet, Way, millis, secs};
use tokio::{
    task::{JoinSet, LocalSet},
    time::timeout,
};

use choices::Choice::{OnPoolOf10, OnPoolOf64, OwnThread};
use link::Defect;
use process::{Common, LONGEST};
use reduce::{breaks, reduce};
use run::{Ended, Place, Quiet, Run, Sum, Weather, live, message, number, possible_pairs, rule, seeds};
use world::{Records, Server};

/// The members of a set that is hurt.
const MEMBERS: usize = 3;
/// How many programs run at the same time.
const AT_ONCE: usize = 16;
/// How many programs run in a test.
const PROGRAMS: u64 = 16;
/// When a program has hung.
const HANGS: Duration = secs(600);
/// How long the servers keep idle records.
const RETENTION: Duration = secs(30);
const _: () = assert!(LONGEST.as_secs() < RETENTION.as_secs(), "a record is kept for as long as it matters");
const DATABASE: &str = "programs";
/// The `appName` of the processes, whose connections the faults are about.
const APP_NAME: &str = "programs";

/// Runs a program in a collection of its own.
async fn run_one(run: Run, server: Server) -> (Run, Ended) {
    let common = Common::new(run, Records::Server(server));
    let living = Arc::clone(&common);
    let task = tokio::task::spawn_local(async move { timeout(HANGS, live(&living, &run.program())).await });
    let ended = match task.await {
        Ok(Ok(())) => Ok(common.report()),
        Ok(Err(_elapsed)) => Err((common.world.trace(), "hang: the program does not end".into())),
        Err(panicked) => Err((common.world.trace(), message(&*panicked.into_panic()))),
    };
    (run, ended)
}

/// The options of a client.
fn options(name: &str, pool: u32) -> String {
    format!("maxPoolSize={pool}&maxConnecting=8&maxAdaptiveRetries=0&appName={name}")
}

/// The collection that a program writes to.
fn documents_of(seed: u64) -> String {
    format!("program-{seed}-documents")
}

/// The servers of a test, and what goes wrong with them.
enum Servers {
    MongoDb { set: ReplicaSet, client: Client, judge: Client },
    Redis { server: Redis, front: Forwarder },
}

impl Servers {
    async fn start(place: Place, weather: Weather) -> Self {
        if place == Place::Redis {
            let (server, front) = (Redis::start().await, Forwarder::start().await);
            front.set_target(server.port());
            return Self::Redis { server, front };
        }
        let members = if weather == Weather::Faulty { MEMBERS } else { 1 };
        let set = ReplicaSet::builder().members(members).proxied().election_timeout(secs(2)).start().await;
        let client = |name: &str| Client::with_uri_str(set.uri_with(&options(name, 200)));
        let (client, judge) = (client(APP_NAME).await.unwrap(), client("judge").await.unwrap());
        Self::MongoDb { set, client, judge }
    }

    /// The collection of a program.
    fn collection(&self, seed: u64) -> Server {
        let name = format!("program-{seed}");
        match self {
            Self::MongoDb { set, client, judge } => {
                let store = |client: &Client, name: &str| -> Arc<dyn Store> {
                    Arc::new(MongoStore::new(&client.database(DATABASE), name, RETENTION))
                };
                let documents = |client: &Client| client.database(DATABASE).collection(&documents_of(seed));
                let documents = Some([documents(client), documents(judge)]);
                let uris = [10, 64].map(|pool| set.uri_with(&options(APP_NAME, pool)));
                let (judge, client, collection) = (store(judge, &name), client.clone(), name.clone());
                // On a client of the caller with a pool of 10 or of 64, or by `connect`.
                let connect = move |which, builder: Builder| -> BoxFuture<mongoseal::Result<Mongoseal>> {
                    let builder = builder.database(DATABASE).collection(&collection).retention(RETENTION);
                    let uri = uris[usize::from(which != OnPoolOf10)].clone();
                    Box::pin(async move {
                        if which == OwnThread {
                            return builder.connect(uri).await;
                        }
                        let client = Client::with_uri_str(uri).await.expect("a valid string");
                        let builder = if which == OnPoolOf64 { builder.connections(64) } else { builder };
                        builder.on_shared_client(&client.database(DATABASE))
                    })
                };
                let open = Arc::new(move || store(&client, &name));
                Server { place: Place::MongoDb, open, connect: Arc::new(connect), documents, judge }
            }
            Self::Redis { server, front } => {
                let backend = |url: String| RedisBackend::new(url).unwrap().with_collection(&*name).unwrap();
                let through = backend(format!("redis://127.0.0.1:{}", front.port()));
                let judge = Arc::new(RedisStore::new(backend(server.url()), RETENTION));
                let own = through.clone();
                let connect = move |which, builder: Builder| -> BoxFuture<mongoseal::Result<Mongoseal>> {
                    assert_eq!(which, OwnThread, "the only client of its own on Redis");
                    Box::pin(builder.retention(RETENTION).connect_to(own.clone()))
                };
                let open =
                    Arc::new(move || -> Arc<dyn Store> { Arc::new(RedisStore::new(through.clone(), RETENTION)) });
                Server { place: Place::Redis, open, connect: Arc::new(connect), documents: None, judge }
            }
        }
    }

    async fn drop_collection(&self, seed: u64) {
        if let Self::MongoDb { judge, .. } = self {
            for name in [format!("program-{seed}"), documents_of(seed)] {
                // One that is left costs nothing but space.
                drop(judge.database(DATABASE).collection::<Document>(&name).drop().await);
            }
        }
    }

    /// Does one fault after another, for ever, and counts them.
    async fn hurt(&self, rng: &mut Rng, done: &Mutex<BTreeMap<&'static str, usize>>) {
        loop {
            tokio::time::sleep(millis(rng.u64(1_000..5_000))).await;
            let lasts = millis(rng.u64(500..5_000));
            let fault = match self {
                Self::MongoDb { set, .. } => hurt_set(set, rng, lasts).await,
                Self::Redis { server, front } => hurt_redis(server, front, rng, lasts).await,
            };
            *done.lock().unwrap().entry(fault).or_default() += 1;
        }
    }
}

async fn hurt_set(set: &ReplicaSet, rng: &mut Rng, lasts: Duration) -> &'static str {
    let clients = Peer::client(APP_NAME);
    let primary = set.primary().await;
    let fault = match rng.u8(..7) {
        0 => {
            set.step_down().await;
            "step-down"
        }
        1 => {
            set.kill(primary).await;
            tokio::time::sleep(lasts).await;
            set.restart(primary).await;
            "kill"
        }
        2 => {
            set.pause(primary).await;
            tokio::time::sleep(lasts).await;
            set.resume(primary).await;
            "pause"
        }
        3 => {
            let how = if rng.bool() { How::Blackhole } else { How::Reset };
            (0..MEMBERS).for_each(|member| set.proxy().cut_both(&clients, &Peer::Member(member), how));
            tokio::time::sleep(lasts).await;
            "cut off"
        }
        4 => {
            set.proxy().swallow_reply(APP_NAME, "findAndModify update aggregate", rng.u32(1..30));
            tokio::time::sleep(lasts).await;
            "replies lost"
        }
        5 => {
            set.proxy().delay(APP_NAME, "findAndModify update", millis(rng.u64(100..3_000)));
            tokio::time::sleep(lasts).await;
            "requests late"
        }
        _ => {
            let error = doc! { "errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"] };
            let commands = ["findAndModify", "update", "find", "aggregate"];
            let refused = set.fail_command(APP_NAME, &commands, error, rng.u32(1..100)).await;
            tokio::time::sleep(lasts).await;
            refused.off().await;
            "overload"
        }
    };
    set.proxy().heal();
    set.settled().await;
    fault
}

async fn hurt_redis(server: &Redis, front: &Forwarder, rng: &mut Rng, lasts: Duration) -> &'static str {
    let fault = match rng.u8(..5) {
        0 => {
            front.reset();
            "reset"
        }
        1 => {
            server.pause();
            tokio::time::sleep(lasts).await;
            server.resume();
            "pause"
        }
        2 => {
            front.cut_both(if rng.bool() { How::Blackhole } else { How::Reset });
            "cut off"
        }
        3 => {
            front.cut(if rng.bool() { Way::Request } else { Way::Reply }, How::Blackhole);
            "cut off one way"
        }
        _ => {
            front.swallow_replies(rng.u32(1..30));
            "replies lost"
        }
    };
    tokio::time::sleep(lasts).await;
    front.heal();
    fault
}

/// What programs met, and the program that broke a rule, with its trace and the rule.
#[derive(Default)]
struct Met {
    sum: Sum,
    broken: Option<(Run, Vec<String>, String)>,
    faults: BTreeMap<&'static str, usize>,
}

/// Runs programs until the seeds are over, or until one breaks a rule.
fn run_all(place: Place, weather: Weather, defect: Option<Defect>, mut seeds: impl Iterator<Item = u64>) -> Met {
    let _quiet = Quiet::begin();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let running = async {
        let servers = Servers::start(place, weather).await;
        let (mut met, mut programs) = (Met::default(), JoinSet::new());
        let mut rng = Rng::with_seed(number("MONGOSEAL_FIRST").unwrap_or(0));
        let (is_hurt, faults) = (weather == Weather::Faulty, Mutex::default());
        let hurting = async {
            if is_hurt {
                servers.hurt(&mut rng, &faults).await;
            }
            std::future::pending::<()>().await;
        };
        let running = async {
            loop {
                while programs.len() < AT_ONCE
                    && let Some(seed) = seeds.next()
                {
                    let run = Run { seed, place, weather, defect };
                    programs.spawn_local(run_one(run, servers.collection(seed)));
                }
                let Some(ended) = programs.join_next().await else { return };
                let (run, ended) = ended.expect("a program is judged");
                servers.drop_collection(run.seed).await;
                match ended {
                    Ok(report) => met.sum.add(report),
                    Err((trace, broken)) => {
                        met.broken = Some((run, trace, broken));
                        // The others are of no use any more.
                        programs.abort_all();
                        return;
                    }
                }
            }
        };
        tokio::select! {
            () = running => {}
            () = hurting => unreachable!("it hurts for ever"),
        }
        met.faults = faults.into_inner().unwrap();
        met
    };
    runtime.block_on(LocalSet::new().run_until(running))
}

/// No program breaks a rule.
fn no_rule_is_broken(place: Place, weather: Weather) -> Result<(), Failed> {
    let began = Instant::now();
    let Met { sum, broken, faults } = run_all(place, weather, None, seeds(PROGRAMS));
    let (programs, seen, possible) = (sum.programs, &sum.seen, possible_pairs(place));
    println!(
        "{programs} programs on {place:?}, {weather:?}: {:.0} a minute; {} of {} pairs of choices were granted; {seen:?}; faults of the server {faults:?}",
        sum.rate(began),
        possible.iter().filter(|pair| sum.pairs.contains_key(pair)).count(),
        possible.len()
    );
    let Some((run, trace, broken)) = broken else {
        assert!(programs == 0 || seen.contains_key("checks"), "the machine was slow all the time: {seen:?}");
        assert!(weather == Weather::Calm || programs < 12 || faults.len() >= 3, "the server was not hurt: {faults:?}");
        return Ok(());
    };
    let (program, in_memory) = (run.program(), Run { place: Place::Memory, ..run });
    let shortest = if breaks(in_memory, &program, &broken) {
        format!("in memory also {}", reduce(in_memory, program.clone(), &broken))
    } else {
        "it does not in memory".to_owned()
    };
    let (number, trace) = (run.seed, trace.join("\n"));
    Err(format!("seed {number} on {place:?}, {weather:?} breaks a rule:\n{trace}\n{broken}\n{program}\n{shortest}")
        .into())
}

/// The first of some programs that notices a defect breaks this rule.
fn is_noticed(place: Place, defect: Defect, broken_rule: &str) -> Result<(), Failed> {
    let (run, _, broken) = run_all(place, Weather::Calm, Some(defect), 0..1_000).broken.ok_or("it is noticed")?;
    println!("{defect:?} is noticed by program {}: {broken}", run.seed + 1);
    assert_eq!(rule(&broken), broken_rule, "{broken}");
    Ok(())
}

/// A test of the night, which is ignored where its server is missing, too.
fn trial(name: &str, place: Place, test: impl Fn() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(reason) = Redis::missing().filter(|_| place == Place::Redis) {
            return Ok(Completion::ignored_with(reason));
        }
        test().map(|()| Completion::Completed)
    })
    .with_ignored_flag(true)
}

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for (name, place) in [("mongodb", Place::MongoDb), ("redis", Place::Redis)] {
        for (weather, of) in [("calm", Weather::Calm), ("faults", Weather::Faulty)] {
            let name = format!("no_rule_is_broken_on_{name}_with_{weather}");
            tests.push(trial(&name, place, move || no_rule_is_broken(place, of)));
        }
        for (what, defect, broken) in [
            ("a_shared_grant_of_an_exclusive_acquire", Defect::UnknownSharing, "exclusion"),
            ("a_maximum_hold_that_the_holder_does_not_know", Defect::UnknownMaximum, "belief"),
        ] {
            let name = format!("{what}_is_noticed_on_{name}");
            tests.push(trial(&name, place, move || is_noticed(place, defect, broken)));
        }
    }
    // With four, which take half the time, a third of the checks on calm servers come while a server is slow, and judge
    // nothing.
    let arguments = Arguments { test_threads: Some(2), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}

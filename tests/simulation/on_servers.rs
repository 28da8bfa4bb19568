//! The programs of the simulation on real servers, in real time: many at once, each in a collection of its own. What is
//! always true judges them there, too. They are tests of the night. Processes die and are cut off, and so are the servers.
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
mod held;
mod link;
mod process;
mod program;
mod reduce;
mod route;
mod run;
mod server;
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
use tokio::task::{JoinSet, LocalSet};

use choices::Choice::{self, OnPoolOf10, OnPoolOf64, OwnThread};
use link::Defect;
use process::{Common, LONGEST};
use program::Program;
use reduce::reduce;
use run::{Pairs, Place, Quiet, Run, Weather, live, message, note_pairs, number, possible_pairs, rule};
use server::Server;
use world::{Records, World};

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

/// What a program met, or its trace and the rule that it broke.
type Ended = Result<run::Report, (Vec<String>, String)>;

/// Runs a program in a collection of its own.
async fn run_one(run: Run, program: Program, server: Server) -> (Run, Program, Ended) {
    let world = World::new(run.seed, run.weather, Records::Server(server));
    let common = Common::new(Arc::clone(&world), run.defect);
    let (living, of) = (Arc::clone(&common), program.clone());
    let task = tokio::task::spawn_local(async move { tokio::time::timeout(HANGS, live(&living, &of)).await });
    let trace = || world.trace.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let ended = match task.await {
        Ok(Ok(())) => {
            let granted = std::mem::take(&mut *common.granted.lock().unwrap());
            Ok(run::Report { granted, seen: world.seen.lock().unwrap().clone(), trace: trace() })
        }
        Ok(Err(_elapsed)) => Err((trace(), "hang: the program does not end".into())),
        Err(panicked) => Err((trace(), message(&*panicked.into_panic()))),
    };
    (run, program, ended)
}

/// The options of a client.
fn options(name: &str, pool: u32) -> String {
    format!("maxPoolSize={pool}&maxConnecting=8&maxAdaptiveRetries=0&appName={name}")
}

/// The collection that a program writes to.
fn documents_of(seed: u64) -> String {
    format!("program-{seed}-documents")
}

/// Opens the handles with clients of their own: on one of the caller with a pool of 10 or of 64, or by `connect`.
fn connect_to_set(
    name: String,
    uris: [String; 2],
) -> impl Fn(Choice, Builder) -> BoxFuture<mongoseal::Result<Mongoseal>> + Send + Sync {
    move |which, builder| {
        let builder = builder.database(DATABASE).collection(&name).retention(RETENTION);
        let uri = uris[usize::from(which != OnPoolOf10)].clone();
        Box::pin(async move {
            if which == OwnThread {
                return builder.connect(uri).await;
            }
            let client = Client::with_uri_str(uri).await.expect("a valid string");
            let builder = if which == OnPoolOf64 { builder.connections(64) } else { builder };
            builder.on_shared_client(&client.database(DATABASE))
        })
    }
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
                let connect = connect_to_set(name.clone(), uris);
                let (judge, client) = (store(judge, &name), client.clone());
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

/// The seeds to run: so many, or for so long.
fn seeds() -> Box<dyn Iterator<Item = u64>> {
    if let Some(only) = number("MONGOSEAL_SEED") {
        return Box::new(std::iter::once(only));
    }
    let first = number("MONGOSEAL_FIRST").unwrap_or(0);
    match number("MONGOSEAL_MINUTES") {
        Some(minutes) => {
            let until = Instant::now() + secs(60 * minutes);
            Box::new((first..).take_while(move |_| Instant::now() < until))
        }
        None => Box::new(first..first + number("MONGOSEAL_PROGRAMS").unwrap_or(PROGRAMS)),
    }
}

/// The programs that broke a rule, each with its trace and the rule, and how often each pair of choices was granted.
#[derive(Default)]
struct Sum {
    programs: u32,
    broken: Vec<(Run, Program, Vec<String>, String)>,
    pairs: Pairs,
    seen: BTreeMap<&'static str, usize>,
    faults: BTreeMap<&'static str, usize>,
}

/// Runs programs until the seeds are over, or until one breaks a rule.
fn run_all(place: Place, weather: Weather, defect: Option<Defect>, seeds: impl Iterator<Item = u64>) -> Sum {
    let _quiet = Quiet::begin();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let running = async {
        let servers = Servers::start(place, weather).await;
        let (mut sum, mut seeds, mut programs) = (Sum::default(), seeds, JoinSet::new());
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
                while programs.len() < AT_ONCE && sum.broken.is_empty() {
                    let Some(seed) = seeds.next() else { break };
                    let run = Run { seed, place, weather, defect };
                    let program = Program::draw(&mut Rng::with_seed(seed));
                    programs.spawn_local(run_one(run, program, servers.collection(seed)));
                }
                let Some(ended) = programs.join_next().await else { return };
                let (run, program, ended) = ended.expect("a program is judged");
                servers.drop_collection(run.seed).await;
                sum.programs += 1;
                match ended {
                    Ok(report) => {
                        note_pairs(&mut sum.pairs, &report);
                        report.seen.into_iter().for_each(|(what, times)| *sum.seen.entry(what).or_insert(0) += times);
                    }
                    Err((trace, broken)) => {
                        sum.broken.push((run, program, trace, broken));
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
        sum.faults = faults.into_inner().unwrap();
        sum
    };
    runtime.block_on(LocalSet::new().run_until(running))
}

/// No program breaks a rule.
fn no_rule_is_broken(place: Place, weather: Weather) -> Result<(), Failed> {
    let began = Instant::now();
    let Sum { programs, broken, pairs, seen, faults } = run_all(place, weather, None, seeds());
    let checks = seen.get("checks").copied().unwrap_or_default();
    let rate = f64::from(programs) / began.elapsed().as_secs_f64() * 60.0;
    let granted = possible_pairs(place).iter().filter(|pair| pairs.contains_key(pair)).count();
    println!(
        "{programs} programs on {place:?}, {weather:?}: {rate:.0} a minute; {granted} of {} pairs of choices were granted; {seen:?}; faults of the server {faults:?}",
        possible_pairs(place).len()
    );
    let Some((run, program, trace, broken)) = broken.into_iter().next() else {
        assert!(programs == 0 || checks > 0, "the machine was slow all the time: {seen:?}");
        assert!(weather == Weather::Calm || programs < 12 || faults.len() >= 3, "the server was not hurt: {faults:?}");
        return Ok(());
    };
    let in_memory = Run { place: Place::Memory, ..run };
    let breaks = |shorter: &Program| in_memory.run(shorter).is_err_and(|(_, other)| rule(&other) == rule(&broken));
    let shortest = breaks(&program).then(|| reduce(program.clone(), breaks));
    let shortest =
        shortest.map_or_else(|| "it does not in memory".to_owned(), |shortest| format!("in memory also {shortest}"));
    let (seed, trace) = (run.seed, trace.join("\n"));
    Err(format!("seed {seed} on {place:?}, {weather:?} breaks a rule:\n{trace}\n{broken}\n{program}\n{shortest}")
        .into())
}

/// The first of some programs that notices a defect breaks this rule.
fn is_noticed(place: Place, defect: Defect, broken_rule: &str) -> Result<(), Failed> {
    let sum = run_all(place, Weather::Calm, Some(defect), 0..1_000);
    let (run, _, _, broken) = sum.broken.first().ok_or("it is noticed")?;
    println!("{defect:?} is noticed by program {}, one of {}: {broken}", run.seed + 1, sum.programs);
    assert_eq!(rule(broken), broken_rule, "{broken}");
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

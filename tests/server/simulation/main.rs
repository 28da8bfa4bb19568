//! Simulation: several processes on a store with faults, on paused time. All randomness comes from a seed. Most seeds run
//! on a memory store, and a tenth as many on `CompareAndSwap`.
//!
//! `MONGOSEAL_SEED=17 cargo test -p mongoseal-tests --test simulation -- --nocapture` replays one seed and prints what
//! happened; `MONGOSEAL_SEEDS=100000 cargo test --release -p mongoseal-tests --test simulation` runs more seeds.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod link;
mod process;
mod route;
mod table;
mod wire;
mod world;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mongoseal::store::MemoryStore;
use mongoseal_test_support::{millis, secs};

use process::{Beliefs, GRACE, LONGEST, OPERATION, Process, SHORTEST};
use route::Route;
use table::Table;
use wire::Sabotage;
use world::{Records, World};

/// How many seeds a push runs.
const SEEDS: u64 = 2_000;
/// How long processes work in each.
const WORK: Duration = secs(40);
const PROCESSES: u64 = 3;
const KEYS: [&str; 3] = ["one", "two", "shared"];
/// How many seeds are run to notice a defect.
const SABOTAGED_SEEDS: u64 = 20;
/// How many seeds are run in which processes are far away and nothing else goes wrong.
const FAR_SEEDS: u64 = 60;

/// What the processes work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// A memory store, with faults between the processes and the store.
    Memory,
    /// `CompareAndSwap` in each process, with faults between it and a table that all share.
    Table,
    /// The same, with a defect.
    Sabotaged(Sabotage),
}

/// Runs a seed to its end.
fn simulate(seed: u64, on: On, world: &OnceLock<Arc<World>>) {
    // The library's own chance, which is of this thread.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // In the runtime, whose clock begins here.
    runtime.block_on(async {
        let records = match on {
            On::Memory => memory(),
            On::Table => Records::Table(Table::new(None)),
            On::Sabotaged(sabotage) => Records::Table(Table::new(Some(sabotage))),
        };
        live(world.get_or_init(|| World::new(seed, records))).await;
    });
}

fn memory() -> Records {
    Records::Memory(MemoryStore::new(millis(LONGEST + GRACE)))
}

/// What a process does until it stops. On the table it does two things at once, so its requests compete and its refreshes
/// are sent as batches.
async fn work(process: Process) {
    match &process.world.records {
        Records::Memory(_) => process.work(WORK).await,
        Records::Table(_) => {
            tokio::join!(process.beside().work(WORK), process.work(WORK));
        }
    }
}

async fn live(world: &Arc<World>) {
    let (beliefs, given) = (Arc::<Beliefs>::default(), Arc::default());
    let start = |number| {
        let process = Process::start(number, world, &beliefs, &given);
        let worker = tokio::spawn(work(process.clone()));
        (process, worker)
    };
    let mut running: Vec<_> = (1..=PROCESSES).map(start).collect();
    let mut next = PROCESSES + 1;
    while world.now() < WORK {
        tokio::time::sleep(millis(1 + world.below(500))).await;
        beliefs.check(world);
        world.ensure_unbroken();
        let at = usize::try_from(world.below(PROCESSES)).unwrap();
        let (process, worker) = &running[at];
        if worker.is_finished() && world.now() < WORK {
            break;
        }
        match world.below(40) {
            0 => {
                world.note(format_args!("process {} dies", process.number));
                world.count("died");
                *process.route.cut.lock().unwrap() = Duration::MAX;
                worker.abort();
                beliefs.forget(process.number);
                running[at] = start(next);
                next += 1;
            }
            1 => {
                worker.abort();
                process.shut_down().await;
                beliefs.forget(process.number);
                running[at] = start(next);
                next += 1;
            }
            2 | 3 => {
                world.note(format_args!("process {} is cut off", process.number));
                world.count("cut off");
                *process.route.cut.lock().unwrap() = world.now() + millis(world.below(9_000));
            }
            4 | 5 => operate(process),
            _ => {}
        }
    }
    world.ensure_unbroken();
    // Nothing goes wrong any more, and all come to their end.
    *world.faulty.lock().unwrap() = false;
    for (process, worker) in running {
        worker.await.unwrap();
        process.shut_down().await;
    }
    settle(world).await;
    world.ensure_unbroken();
}

/// What an operator does to a table: deletes a record, or has all idle ones deleted.
fn operate(process: &Process) {
    let world = &process.world;
    let Records::Table(table) = &world.records else { return };
    if world.below(2) == 0 {
        let key = KEYS[usize::try_from(world.below(3)).unwrap()];
        table.remove(world, &key.parse().unwrap());
    } else {
        world.count("an operator purges");
        let seal = process.seal.clone();
        tokio::spawn(async move { seal.purge().await });
    }
}

/// I10: no dead process holds or waits, and a new acquire is granted.
async fn settle(world: &Arc<World>) {
    // A ghost takes effect within ten seconds, waits for a ttl and holds for another.
    tokio::time::sleep(secs(10) + 2 * millis(LONGEST) + millis(GRACE) + OPERATION).await;
    for key in KEYS {
        let key = key.parse().unwrap();
        let Some(record) = world.record(&key).await else { continue };
        let late = Process::start(0, world, &Arc::default(), &Arc::default());
        let lease = late.seal.acquire(key.clone()).await;
        let lease = lease.unwrap_or_else(|error| panic!("I10: {key:?} is not free: {error:?}, {record:#?}"));
        let queue = world.record(&key).await.unwrap().queue;
        assert!(queue.is_empty(), "I10: {queue:#?} wait in vain");
        lease.release().await.unwrap();
        late.seal.shutdown().await;
    }
}

/// Runs a seed and gives what happened and what was seen. Where a promise is broken, says how to see it again.
fn run(seed: u64, on: On) -> (Vec<String>, BTreeMap<&'static str, usize>) {
    let world = OnceLock::new();
    if let Err(broken) = catch_unwind(AssertUnwindSafe(|| simulate(seed, on, &world))) {
        eprintln!(
            "seed {seed} on {on:?} fails: MONGOSEAL_SEED={seed} cargo test -p mongoseal-tests --test simulation -- --nocapture"
        );
        if std::env::var("MONGOSEAL_SEED").is_ok() {
            let trace = world.get().unwrap().trace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            eprintln!("{}", trace.join("\n"));
        }
        resume_unwind(broken);
    }
    let world = world.get().unwrap();
    let trace = world.trace.lock().unwrap().clone();
    let reached = world.seen.lock().unwrap().clone();
    (trace, reached)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs so many seeds, and asserts that each of these was seen.
fn run_all(on: On, seeds: u64, expected: &[&str]) {
    if let Some(seed) = number("MONGOSEAL_SEED") {
        let (trace, seen) = run(seed, on);
        println!("{}\nseed {seed} on {on:?}: {seen:#?}", trace.join("\n"));
        return;
    }
    let (next, sum) = (AtomicU64::new(0), Mutex::new(BTreeMap::<&str, (usize, u64)>::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    let (_, reached) = run(seed, on);
                    let mut sum = sum.lock().unwrap();
                    for (what, times) in reached {
                        let (all, in_seeds) = sum.entry(what).or_default();
                        *all += times;
                        *in_seeds += 1;
                    }
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap();
    println!("{seeds} seeds on {on:?}; what happened how often, and in how many of them: {sum:#?}");
    for what in expected {
        assert!(sum.contains_key(what), "never: {what}");
    }
}

/// What the processes see on each store.
const OF_PROCESSES: [&str; 19] = [
    "a collected record is made again",
    "a group is not refreshed",
    "a group is released",
    "a request times out",
    "an acquire is dropped",
    "cut off",
    "died",
    "dropped",
    "granted",
    "granted to one who would wait",
    "left to its ttl",
    "lost",
    "not answered",
    "not released",
    "refused",
    "released",
    "released too late",
    "shut down",
    "transferred",
];

#[test]
fn no_promise_is_broken_whatever_goes_wrong() {
    let expected = [
        "a ghost arrives",
        "a group is refreshed",
        "a reply is lost",
        "a request is done twice",
        "a request is late",
        "a wake-up is lost",
        "a watch breaks off",
        "an old primary answers",
        "waited in vain",
    ];
    run_all(On::Memory, number("MONGOSEAL_SEEDS").unwrap_or(SEEDS), &[&OF_PROCESSES[..], &expected].concat());
}

#[test]
fn no_promise_is_broken_on_a_table_that_can_only_compare_and_swap() {
    let expected = [
        "a batch has several keys",
        "a blank is written",
        "a call of the store is dropped",
        "a caller is dropped between load and swap",
        "a ghost load arrives",
        "a ghost swap arrives",
        "a ghost swap takes effect",
        "a key expires by itself",
        "a listener drops",
        "a load is late",
        "a message is late",
        "a message is lost",
        "a swap is late",
        "a swap has several callers",
        "a swap is overtaken",
        "an operator deletes a held key",
        "an operator deletes a record",
        "an operator purges",
        "only its age refuses a swap",
        "the answer to a load is lost",
        "the answer to a swap is lost",
        "waited in vain",
    ];
    // A seed takes five times as long as one on the memory store.
    let seeds = number("MONGOSEAL_SEEDS").unwrap_or(SEEDS) / 10;
    run_all(On::Table, seeds, &[&OF_PROCESSES[..], &expected].concat());
}

/// The promise that the first of some seeds breaks with this defect.
fn broken_by(sabotage: Sabotage) -> String {
    let broken = (0..SABOTAGED_SEEDS).find_map(|seed| {
        let world = OnceLock::new();
        catch_unwind(AssertUnwindSafe(|| simulate(seed, On::Sabotaged(sabotage), &world))).err().map(|broken| {
            let message = broken.downcast_ref::<String>().cloned().unwrap_or_default();
            println!("{sabotage:?} is noticed with seed {seed}: {message}");
            message
        })
    });
    broken.expect("it is noticed")
}

#[test]
fn a_store_that_sends_abandoned_requests_is_noticed() {
    // An abandoned acquire is granted the key (I11), or an abandoned release ends a lease (I9).
    let broken = broken_by(Sabotage::SendsAbandoned);
    assert!(["I9", "I11"].iter().any(|of| broken.contains(of)), "{broken}");
}

#[test]
fn a_store_that_answers_a_request_with_the_outcome_of_another_is_noticed() {
    assert!(broken_by(Sabotage::SwapsAnswers).contains("I12"));
}

#[test]
fn a_seed_is_the_same_each_time() {
    for (seed, on) in [1, 2, 3, 5, 8].into_iter().flat_map(|seed| [(seed, On::Memory), (seed, On::Table)]) {
        let (first, second) = (run(seed, on).0, run(seed, on).0);
        let differs = first.iter().zip(&second).position(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed} on {on:?}: {:?}", differs.map(|at| (&first[at], &second[at])));
        assert_eq!(first.len(), second.len(), "seed {seed} on {on:?}");
    }
}

/// Runs processes that are far away, each by up to so many hundredths of the shortest ttl, with no other fault. Gives what
/// was seen.
fn run_far(seed: u64, hundredths: u64, short_attempts: bool) -> BTreeMap<&'static str, usize> {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new(seed, memory());
        *world.faulty.lock().unwrap() = false;
        let (beliefs, given) = (Arc::<Beliefs>::default(), Arc::default());
        let start = |number| {
            let far = millis(1 + world.below(SHORTEST * hundredths / 100));
            let route = Route::new(&world, Some(far));
            let process = Process::start_on(route, short_attempts, number, &beliefs, &given);
            let worker = tokio::spawn(process.clone().work(WORK));
            (process, worker)
        };
        let running: Vec<_> = (1..=PROCESSES).map(start).collect();
        for (process, worker) in running {
            worker.await.unwrap();
            process.shut_down().await;
        }
        let counted = world.seen.lock().unwrap();
        if counted.contains_key("at risk") {
            println!("{}", world.trace.lock().unwrap().join("\n"));
        }
        counted.clone()
    })
}

#[test]
fn a_constant_round_trip_below_two_fifths_of_the_ttl_costs_no_lease_and_puts_none_at_risk() {
    let mut granted = 0;
    for seed in 0..FAR_SEEDS {
        let seen = run_far(seed, 38, false);
        for what in ["lost by expiry", "at risk"] {
            assert!(!seen.contains_key(what), "seed {seed}: {what}: {seen:#?}");
        }
        granted += seen.get("granted").copied().unwrap_or_default();
    }
    assert!(granted > 100, "{granted}");
}

#[test]
fn an_attempt_that_is_given_up_after_a_sixth_of_the_ttl_is_noticed() {
    let lost = (0..FAR_SEEDS).find(|seed| run_far(*seed, 38, true).contains_key("lost by expiry"));
    println!("a lease is lost with seed {lost:?}");
    assert!(lost.is_some());
}

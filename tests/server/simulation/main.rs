//! Simulation: several processes on a store with faults, on paused time. What they do is a program, which is drawn by a seed
//! from a table of what a caller can do. What is always true judges it. All randomness comes from the seed.
//!
//! A program that breaks a rule is reduced to the shortest one that still breaks it, and printed as a test.
//! `MONGOSEAL_PROGRAMS=100000 cargo test --release -p mongoseal-tests --test simulation` runs so many for each test,
//! `MONGOSEAL_FIRST=5000` begins with that seed, and `MONGOSEAL_SEED=17` runs one.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod beliefs;
mod choices;
mod found;
mod link;
mod process;
mod program;
mod reduce;
mod route;
mod table;
mod wire;
mod world;

use std::{
    any::Any,
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use mongoseal::{EventKind, Key, Mongoseal, WatchItem, store::MemoryStore};
use mongoseal_test_support::{millis, secs};
use tokio::task::{LocalSet, spawn_local};

use choices::{
    AXES, Choice,
    Choice::{Acquires, AcquiresTwo, Campaigns, Resumes, RunsATick},
    Choices,
};
use link::Defect;
use process::{Common, LONGEST, Process};
use program::{KEYS, Program, Track};
use reduce::reduce;
use table::Table;
use world::{Records, World};

/// The shortest ttl.
const SHORTEST: Duration = secs(1);
/// When a program has hung.
const HANGS: Duration = secs(1_800);
/// How often each pair of choices is granted in a long run.
const OFTEN: u32 = 20;

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A memory store, with faults between the processes and the store.
    Memory,
    /// `CompareAndSwap` in each process, with faults between it and a table that all share.
    Table,
}

/// What goes wrong beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Calm,
    /// Processes are far away, by up to 38 hundredths of the shortest ttl. Nothing else goes wrong.
    Far,
    /// Requests are late, lost and duplicated, processes are cut off and die. On the table an operator deletes records.
    Faulty,
}

/// How a program is run.
#[derive(Clone, Copy, Debug)]
struct Run {
    seed: u64,
    place: Place,
    weather: Weather,
    defect: Option<Defect>,
}

/// What a program was granted, and what it met.
#[derive(Default)]
struct Report {
    granted: Vec<Vec<Choice>>,
    seen: BTreeMap<&'static str, usize>,
    trace: Vec<String>,
}

impl Run {
    /// Runs a program to its end. Gives the trace and the rule that it breaks, if it breaks one.
    fn run(self, program: &Program) -> Result<Report, (Vec<String>, String)> {
        let _quiet = Quiet::begin();
        let world: Mutex<Option<Arc<World>>> = Mutex::default();
        let common: Mutex<Option<Arc<Common>>> = Mutex::default();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            // The library's own chance, which is of this thread.
            fastrand::seed(self.seed);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            // In the runtime, whose clock begins here.
            runtime.block_on(async {
                let records = match self.place {
                    Place::Memory => Records::Memory(MemoryStore::new(LONGEST)),
                    Place::Table => Records::Table(Table::new(self.defect)),
                };
                let new = World::new(self.seed, records);
                *new.faulty.lock().unwrap() = self.weather == Weather::Faulty;
                *world.lock().unwrap() = Some(Arc::clone(&new));
                let shared = Common::new(new, self.weather, self.defect);
                *common.lock().unwrap() = Some(Arc::clone(&shared));
                let living = tokio::time::timeout(HANGS, live(&shared, program));
                // The work of a program borrows, so it is not sent to other threads.
                LocalSet::new().run_until(living).await.expect("hang: the program does not end");
            });
        }));
        let world = world.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).expect("it began");
        match ended {
            Ok(()) => {
                let common = common.into_inner().unwrap().expect("it began");
                let granted = std::mem::take(&mut *common.granted.lock().unwrap());
                let trace = world.trace.lock().unwrap().clone();
                Ok(Report { granted, seen: world.seen.lock().unwrap().clone(), trace })
            }
            Err(panic) => {
                let trace = world.trace.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
                Err((trace, message(&*panic)))
            }
        }
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, panics of this thread print nothing: what they say is reported with the program.
struct Quiet;

impl Quiet {
    fn begin() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                if !IS_QUIET.get() {
                    usual(panic);
                }
            }));
        });
        IS_QUIET.set(true);
        Self
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        IS_QUIET.set(false);
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "a panic".into())
}

/// The first word of what a broken rule says: its name.
fn rule(broken: &str) -> &str {
    broken.split(':').next().unwrap_or(broken)
}

async fn live(common: &Arc<Common>, program: &Program) {
    let world = &common.world;
    let events = watch(world).await;
    let numbers: BTreeSet<u64> = program.0.iter().map(|track| track.process).collect();
    let processes: BTreeMap<u64, _> =
        numbers.into_iter().map(|number| (number, Process::start(number, common))).collect();
    let mut tracks = Vec::new();
    for (at, Track { process, steps }) in program.0.iter().enumerate() {
        let process = &processes[process];
        tracks.push((process.number, spawn_local(Arc::clone(process).run(at, steps.clone()))));
    }
    let working = async {
        let mut dead = BTreeSet::new();
        while tracks.iter().any(|(_, track)| !track.is_finished()) {
            tokio::time::sleep(millis(500)).await;
            if world.is_faulty() {
                hurt(common, &processes, &tracks, &mut dead);
            }
            for (number, track) in &mut tracks {
                // A panic of a track ends the program at once.
                if track.is_finished() && !dead.contains(number) {
                    if let Err(panicked) = (&mut *track).await {
                        std::panic::resume_unwind(panicked.into_panic());
                    }
                    *track = spawn_local(async {});
                    tokio::task::yield_now().await;
                }
            }
        }
        *world.faulty.lock().unwrap() = false;
        // What is held up comes to its end.
        for (_, process) in processes.iter().filter(|(number, _)| !dead.contains(number)) {
            process.shut_down().await;
        }
        for number in dead {
            common.beliefs.forget(number);
        }
        settle(common).await;
    };
    tokio::select! {
        biased;
        () = working => {}
        () = common.beliefs.keep_checking(world) => unreachable!("it checks for ever"),
    }
    if let Records::Memory(_) = world.records {
        check_events(world, &events.lock().unwrap());
    }
}

type Tracks = Vec<(u64, tokio::task::JoinHandle<()>)>;

/// Cuts a process off for a while, or ends it.
fn hurt(common: &Common, processes: &BTreeMap<u64, Arc<Process>>, tracks: &Tracks, dead: &mut BTreeSet<u64>) {
    let world = &common.world;
    let which = usize::try_from(world.below(u64::try_from(processes.len()).unwrap())).unwrap();
    let process = processes.values().nth(which).expect("there are so many");
    match world.below(20) {
        0 if dead.insert(process.number) => {
            world.note(format_args!("process {} dies", process.number));
            world.count("died");
            *process.route.cut.lock().unwrap() = Duration::MAX;
            tracks.iter().filter(|(number, _)| *number == process.number).for_each(|(_, track)| track.abort());
            common.beliefs.forget(process.number);
        }
        3 => {
            let Records::Table(table) = &world.records else { return };
            let key: Key = KEYS[usize::try_from(world.below(2)).unwrap()].parse().unwrap();
            table.remove(world, &key);
            // The completed tick is deleted with it.
            common.forgotten.lock().unwrap().insert(key);
        }
        1 | 2 if !dead.contains(&process.number) => {
            world.note(format_args!("process {} is cut off", process.number));
            world.count("cut off");
            *process.route.cut.lock().unwrap() = world.now() + millis(world.below(9_000));
        }
        _ => {}
    }
}

/// When all processes have ended and the longest ttl is over, every key is free, and no waiter is queued.
async fn settle(common: &Arc<Common>) {
    let world = &common.world;
    tokio::time::sleep(secs(10) + 2 * LONGEST).await;
    let late = Process::start(0, common);
    for key in KEYS {
        let (record, at) = world.snapshot(&key.parse().unwrap()).await;
        let Some(record) = record else { continue };
        let waits = record.queue.iter().any(|waiter| waiter.expires_at > at.now);
        assert!(!waits, "rest: a waiter of {key:?} is left: {record:#?}");
        // A lease without expiry that its holder did not release stays until an operator revokes it.
        if record.holders.iter().any(|held| held.expires_at > at.now.after(1_000_000)) {
            world.count("a lease without expiry is left");
            late.seal().revoke(key).await.expect("it is revoked");
        }
        let lease = late.seal().acquire(key).await;
        let lease = lease.unwrap_or_else(|error| panic!("rest: {key:?} is not free: {error:?}, {record:#?}"));
        lease.release().await.expect("it is released");
    }
    late.seal().shutdown().await;
    // Until the watches have seen that.
    tokio::time::sleep(secs(1)).await;
}

type Events = Arc<Mutex<Vec<(Key, WatchItem)>>>;

/// Watches each key by a handle that nothing hurts. A watch on the table polls, so it may leave events out.
async fn watch(world: &World) -> Events {
    let events = Events::default();
    let Records::Memory(store) = &world.records else { return events };
    let seal =
        Mongoseal::builder().ttl(process::TTL).on_store(Arc::new(store.clone())).expect("the settings are valid");
    for key in KEYS {
        let mut stream = seal.watch(key).await.expect("the watch begins");
        let events = Arc::clone(&events);
        tokio::spawn(async move {
            while let Some(Ok(item)) = stream.next().await {
                events.lock().unwrap().push((key.parse().unwrap(), item));
            }
        });
    }
    events
}

/// A stream shows each grant, and how it ended.
fn check_events(world: &World, events: &[(Key, WatchItem)]) {
    for key in KEYS {
        let key: Key = key.parse().unwrap();
        let (mut begun, mut ended) = (BTreeSet::new(), BTreeSet::new());
        for (_, item) in events.iter().filter(|(of, _)| *of == key) {
            let WatchItem::Event(event) = item else { panic!("stream: {item:?} although nothing broke") };
            match &event.kind {
                EventKind::Granted { .. } => assert!(begun.insert(event.token), "stream: {event:?} comes twice"),
                EventKind::Transferred { to } => {
                    ended.insert(event.token);
                    begun.insert(to.token);
                }
                EventKind::Holds { .. } => panic!("stream: {event:?} although nothing held before"),
                _ => assert!(ended.insert(event.token), "stream: {event:?} comes after another end"),
            }
        }
        let granted = world.tokens(&key);
        let missing: Vec<_> = granted.symmetric_difference(&begun).collect();
        assert!(missing.is_empty(), "stream: {missing:?} of {key:?} are not in both {granted:?} and {begun:?}");
        let open: Vec<_> = begun.difference(&ended).collect();
        assert!(open.is_empty(), "stream: {open:?} of {key:?} did not end");
    }
}

/// How often each pair of choices was granted.
type Pairs = BTreeMap<(Choice, Choice), u32>;

fn note_pairs(pairs: &mut Pairs, report: &Report) {
    for granted in &report.granted {
        for (at, one) in granted.iter().enumerate() {
            for other in &granted[at + 1..] {
                *pairs.entry((*one, *other)).or_default() += 1;
            }
        }
    }
}

/// The pairs of choices that the API can express, of steps that can be granted something.
fn possible_pairs() -> BTreeSet<(Choice, Choice)> {
    let choices: Vec<_> = AXES.iter().flat_map(|(_, choices)| *choices).copied().collect();
    let mut pairs = BTreeSet::new();
    let mut add = |named: &[Choice], one: Choice, other: Choice| {
        let all = Choices::of(named);
        let is_there = |choice| all.all().any(|of| of == choice);
        if is_there(one) && is_there(other) && !all.is_refused() {
            pairs.insert((one.min(other), one.max(other)));
        }
    };
    // Some need a third and a fourth choice that makes them possible.
    for verb in [Acquires, AcquiresTwo, RunsATick, Campaigns, Resumes] {
        for (at, one) in choices.iter().enumerate() {
            for other in choices[at + 1..].iter().filter(|other| other.axis() != one.axis()) {
                add(&[verb, *one, *other], *one, *other);
                add(&[verb, Choice::InAGroup, *one, *other], *one, *other);
                add(&[verb, Choice::InAGroup, Choice::Runs, *one, *other], *one, *other);
            }
        }
    }
    pairs.retain(|(one, other)| {
        let verbs = [Choice::Inspects, Choice::Lists, Choice::Raises, Choice::Purges, Choice::Revokes];
        !verbs.contains(one) && !verbs.contains(other)
    });
    pairs
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs so many programs, and asserts that each of these was seen. If one breaks a rule, prints it, reduced, and fails.
fn run_programs(place: Place, weather: Weather, count: u64, expected: &[&str]) -> Pairs {
    let count = number("MONGOSEAL_PROGRAMS").unwrap_or(count);
    let (only, first) = (number("MONGOSEAL_SEED"), number("MONGOSEAL_FIRST").unwrap_or(0));
    let seeds: Vec<u64> = only.map_or_else(|| (first..first + count).collect(), |seed| vec![seed]);
    let began = std::time::Instant::now();
    let (next, pairs, sum) = (AtomicU64::new(0), Mutex::new(Pairs::new()), Mutex::new(BTreeMap::new()));
    let broken = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap()) {
                    let run = Run { seed: *seed, place, weather, defect: None };
                    let program = Program::draw(&mut Rng::with_seed(*seed));
                    match run.run(&program) {
                        Ok(report) => {
                            note_pairs(&mut pairs.lock().unwrap(), &report);
                            let mut sum = sum.lock().unwrap();
                            report.seen.into_iter().for_each(|(what, times)| *sum.entry(what).or_insert(0) += times);
                        }
                        Err((_, rule)) => {
                            broken.lock().unwrap().get_or_insert((run, program, rule));
                            next.store(u64::MAX / 2, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    if let Some((run, program, broken)) = broken.into_inner().unwrap() {
        fail(run, program, &broken);
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    #[expect(clippy::cast_precision_loss, reason = "a count of programs is small")]
    let rate = seeds.len() as f64 / minutes;
    let sum = sum.into_inner().unwrap();
    println!("{} programs on {place:?}, {weather:?}: {rate:.0} a minute; {sum:?}", seeds.len());
    for what in expected.iter().filter(|_| only.is_none()) {
        assert!(sum.contains_key(what), "never: {what}");
    }
    pairs.into_inner().unwrap()
}

/// Reduces a program and fails with a test that runs it.
fn fail(run: Run, program: Program, broken: &str) -> ! {
    let shortest = reduce(program, |shorter| run.run(shorter).is_err_and(|(_, other)| rule(&other) == rule(broken)));
    let (trace, broken) = run.run(&shortest).err().unwrap_or_default();
    let Run { seed, place, weather, .. } = run;
    panic!(
        "a program of seed {seed} on {place:?}, {weather:?}, breaks a rule. What happens in the shortest one:\n{}\n{broken}\n\n#[test]\nfn …() {{\n    replay({seed}, Place::{place:?}, Weather::{weather:?}, {shortest});\n}}",
        trace.join("\n")
    );
}

/// Runs a program that broke a rule.
fn replay(seed: u64, place: Place, weather: Weather, program: Program) {
    let run = Run { seed, place, weather, defect: None };
    if let Err((_, broken)) = run.run(&program) {
        fail(run, program, &broken);
    }
}

/// Prints the possible pairs that were granted seldom.
fn print_seldom(pairs: &Pairs) {
    let possible = possible_pairs();
    let often = |pair: &(Choice, Choice)| pairs.get(pair).copied().unwrap_or_default() >= OFTEN;
    let seldom: Vec<_> = possible.iter().filter(|pair| !often(pair)).collect();
    println!(
        "{} of {} pairs of choices were granted {OFTEN} times or more. The others: {seldom:?}",
        possible.len() - seldom.len(),
        possible.len()
    );
}

#[test]
fn nothing_is_lost_and_nobody_waits_too_long_where_nothing_goes_wrong() {
    print_seldom(&run_programs(Place::Memory, Weather::Calm, 2_000, &["a tick is completed", "purged"]));
}

#[test]
fn nothing_is_lost_and_nobody_waits_too_long_on_a_table_where_nothing_goes_wrong() {
    let expected = ["a batch has several keys", "a key expires by itself", "a swap has several callers"];
    run_programs(Place::Table, Weather::Calm, 300, &expected);
}

#[test]
fn a_constant_round_trip_below_two_fifths_of_the_ttl_costs_no_lease_and_puts_none_at_risk() {
    run_programs(Place::Memory, Weather::Far, 300, &[]);
}

#[test]
fn no_promise_is_broken_whatever_goes_wrong() {
    let expected = [
        "a collected record is made again",
        "a ghost arrives",
        "a reply is lost",
        "a request is done twice",
        "a request is late",
        "a request times out",
        "a tick is completed",
        "a wake-up is lost",
        "a watch breaks off",
        "an acquire is dropped",
        "an old primary answers",
        "cut off",
        "died",
        "lost",
    ];
    run_programs(Place::Memory, Weather::Faulty, 3_000, &expected);
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
        "an acquire is dropped",
        "an operator deletes a held key",
        "an operator deletes a record",
        "cut off",
        "died",
        "lost",
        "only its age refuses a swap",
        "purged",
        "the answer to a load is lost",
        "the answer to a swap is lost",
    ];
    run_programs(Place::Table, Weather::Faulty, 1_000, &expected);
}

#[test]
fn a_seed_is_the_same_each_time() {
    for seed in [1, 2, 3, 5, 8] {
        for place in [Place::Memory, Place::Table] {
            let run = Run { seed, place, weather: Weather::Faulty, defect: None };
            let program = Program::draw(&mut Rng::with_seed(seed));
            let trace = || run.run(&program).unwrap_or_else(|(_, broken)| panic!("{broken}")).trace;
            let (first, second) = (trace(), trace());
            let differs = first.iter().zip(&second).position(|(one, other)| one != other);
            assert_eq!(differs, None, "{run:?}: {:?}", differs.map(|at| (&first[at], &second[at])));
            assert_eq!(first.len(), second.len(), "{run:?}");
        }
    }
}

/// How many programs are run to notice a defect.
const UNTIL_NOTICED: u64 = 4_000;

/// The rule that the first of some programs breaks with this defect.
fn broken_by(place: Place, weather: Weather, defect: Defect) -> String {
    let broken = (0..UNTIL_NOTICED).find_map(|seed| {
        let run = Run { seed, place, weather, defect: Some(defect) };
        let (_, broken) = run.run(&Program::draw(&mut Rng::with_seed(seed))).err()?;
        println!("{defect:?} is noticed by program {}: {broken}", seed + 1);
        Some(rule(&broken).to_owned())
    });
    broken.expect("it is noticed")
}

#[test]
fn a_waiter_that_is_not_notified_of_a_minimum_hold_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, Defect::UntoldHold), "liveness");
}

#[test]
fn a_maximum_hold_that_the_holder_does_not_know_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, Defect::UnknownMaximum), "belief");
}

#[test]
fn a_shared_grant_of_an_exclusive_acquire_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, Defect::UnknownSharing), "exclusion");
}

#[test]
fn a_tick_that_is_forgotten_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, Defect::ForgottenTick), "tick");
}

#[test]
fn a_resumed_lease_that_is_not_notified_of_its_revocation_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, Defect::UntoldRevocation), "revocation");
}

#[test]
fn a_release_by_a_shutdown_under_work_is_noticed() {
    assert_eq!(broken_by(Place::Memory, Weather::Calm, Defect::UntoldWork), "exclusion");
}

#[test]
fn an_attempt_that_is_given_up_after_a_sixth_of_the_ttl_is_noticed() {
    // A lease is lost, or at risk before that.
    let broken = broken_by(Place::Memory, Weather::Far, Defect::ShortAttempts);
    assert!(["lost", "risk", "error"].contains(&&*broken), "{broken}");
}

#[test]
fn a_store_that_sends_abandoned_requests_is_noticed() {
    // An abandoned acquire is granted the key (I11), or an abandoned release ends a lease (I9).
    let broken = broken_by(Place::Table, Weather::Faulty, Defect::SendsAbandoned);
    assert!(["I9", "I11"].contains(&&*broken), "{broken}");
}

#[test]
fn a_store_that_answers_a_request_with_the_outcome_of_another_is_noticed() {
    assert_eq!(broken_by(Place::Table, Weather::Faulty, Defect::SwapsAnswers), "I12");
}

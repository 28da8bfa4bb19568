//! Runs a program to its end, with what judges it.

use std::{
    any::Any,
    cell::{Cell, OnceCell},
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, Once},
    time::{Duration, Instant},
};

use fastrand::Rng;
use mongoseal::{
    Error, Key, Mongoseal,
    inspect::{EventKind, WatchItem},
    store::{MemoryStore, Store},
};
use tokio::task::{LocalSet, spawn_local};

use crate::{
    choices::{
        AXES, Choice,
        Choice::{Acquires, AcquiresAny, AcquiresTwo, Campaigns, Resumes, RunsATick},
        Choices,
    },
    link::Defect,
    millis,
    process::{self, Common, LONGEST, Process},
    program::{KEYS, Program, Track},
    route::away,
    secs,
    table::Table,
    world::{Records, World},
};

/// When a program has hung.
const HANGS: Duration = secs(1_800);
/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A memory store, with faults between the processes and the store.
    Memory,
    /// `CompareAndSwap` in each process, with faults between it and a table that all share.
    Table,
    /// A replica set, in real time.
    MongoDb,
    /// A Redis server, in real time.
    Redis,
}

/// What goes wrong beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Calm,
    /// Requests are late, lost and duplicated, processes are cut off and die. On the table an operator deletes records.
    Faulty,
}

/// How a program is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) place: Place,
    pub(crate) weather: Weather,
    pub(crate) defect: Option<Defect>,
}

/// What a program was granted, and what it met.
pub(crate) struct Report {
    pub(crate) granted: Vec<Vec<Choice>>,
    pub(crate) seen: BTreeMap<&'static str, usize>,
    pub(crate) trace: Vec<String>,
}

/// What a program met, or its trace and the rule that it broke.
pub(crate) type Ended = Result<Report, (Vec<String>, String)>;

impl Run {
    pub(crate) fn program(self) -> Program {
        Program::draw(&mut Rng::with_seed(self.seed))
    }

    /// Runs a program to its end, in memory.
    pub(crate) fn run(self, program: &Program) -> Ended {
        let _quiet = Quiet::begin();
        let begun = OnceCell::new();
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
                    Place::MongoDb | Place::Redis => unreachable!("it runs in real time: on_servers.rs"),
                };
                let common = begun.get_or_init(|| Common::new(self, records));
                let living = tokio::time::timeout(HANGS, live(common, program));
                // The work of a program borrows, so it is not sent to other threads.
                LocalSet::new().run_until(living).await.expect("hang: the program does not end");
            });
        }));
        let common = begun.into_inner().expect("it began");
        ended.map(|()| common.report()).map_err(|panic| (common.world.trace(), message(&*panic)))
    }
}

/// The seeds of the programs to run: so many, or what the environment says.
pub(crate) fn seeds(count: u64) -> Box<dyn Iterator<Item = u64> + Send> {
    let first = number("MONGOSEAL_FIRST").unwrap_or(0);
    match (number("MONGOSEAL_SEED"), number("MONGOSEAL_MINUTES")) {
        (Some(only), _) => Box::new(std::iter::once(only)),
        (None, Some(minutes)) => {
            let until = Instant::now() + secs(60 * minutes);
            Box::new((first..).take_while(move |_| Instant::now() < until))
        }
        (None, None) => Box::new(first..first + number("MONGOSEAL_PROGRAMS").unwrap_or(count)),
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, panics of this thread print nothing: what they say is reported with the program.
pub(crate) struct Quiet;

impl Quiet {
    pub(crate) fn begin() -> Self {
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

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "a panic".into())
}

/// The number that a variable of the environment has.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// The first word of what a broken rule says: its name.
pub(crate) fn rule(broken: &str) -> &str {
    broken.split(':').next().unwrap_or(broken)
}

pub(crate) async fn live(common: &Arc<Common>, program: &Program) {
    let world = &common.world;
    let (events, watching) = watch(world).await;
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
            process.shut_down_all().await;
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
        () = keep_time(world) => unreachable!("it does so for ever"),
    }
    check_events(common, &events.lock().unwrap());
    if let Some(watching) = watching {
        watching.shutdown().await;
    }
}

/// Notes when this machine does not run. On paused time it always does.
async fn keep_time(world: &World) {
    if !world.is_on_server() {
        std::future::pending::<()>().await;
    }
    loop {
        let began = world.now();
        tokio::time::sleep(millis(50)).await;
        world.note_stall((world.now() - began).saturating_sub(millis(50)));
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
            Arc::clone(process).end_direct_handles();
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
    let seal = late.seal().await;
    for key in KEYS {
        let looked = async || world.snapshot(&key.parse().unwrap()).await.ok_or_else(away);
        let (record, at) = until_answered(world, looked).await.expect("the judge can look at the record");
        let Some(record) = record else { continue };
        let waits = record.queue.iter().any(|waiter| waiter.expires_at > at.now);
        assert!(!waits, "rest: a waiter of {key:?} is left: {record:#?}");
        // A lease without expiry that its holder did not release stays until an operator revokes it.
        let is_left = record.holders.iter().any(|held| held.expires_at > at.now.after(1_000_000));
        if is_left {
            world.count("a lease without expiry is left");
            until_answered(world, async || seal.revoke(key).await).await.expect("it is revoked");
        }
        // An attempt without an answer may have been granted the key, and is then taken back.
        let acquire = async || match seal.acquire(key).await {
            Err(Error::Held { owner, .. }) if owner == *seal.owner() => Err(away()),
            acquired => acquired,
        };
        let lease = until_answered(world, acquire).await;
        let lease = lease.unwrap_or_else(|error| panic!("rest: {key:?} is not free: {error:?}, {record:#?}"));
        drop(lease.release().await.map_err(|error| assert!(world.is_on_server(), "{error:?}")));
        let read = async || world.check_document(&key.parse().unwrap()).await.map_err(|_| away());
        until_answered(world, read).await.expect("the judge can read the document");
    }
    seal.shutdown().await;
    // Until the watches have seen that.
    tokio::time::sleep(secs(if world.is_on_server() { 5 } else { 1 })).await;
}

/// Makes a call again while a server cannot answer it, for a while: other programs may still hurt it.
async fn until_answered<T>(world: &World, call: impl AsyncFn() -> mongoseal::Result<T>) -> mongoseal::Result<T> {
    let until = world.now() + secs(30);
    loop {
        match call().await {
            Err(Error::Unavailable { .. }) if world.is_on_server() && world.now() < until => {
                tokio::time::sleep(millis(200)).await;
            }
            answered => return answered,
        }
    }
}

type Events = Arc<Mutex<Vec<(Key, WatchItem)>>>;

/// Watches each key by a handle that nothing hurts. A watch on the table polls, so it may leave events out.
async fn watch(world: &World) -> (Events, Option<Mongoseal>) {
    let events = Events::default();
    let store: Arc<dyn Store> = match &world.records {
        Records::Memory(store) => Arc::new(store.clone()),
        Records::Server(server) if server.judge.capabilities().durable_answers => Arc::clone(&server.judge),
        _ => return (events, None),
    };
    let seal = Mongoseal::builder().ttl(process::TTL).on_store(store).expect("the settings are valid");
    for key in KEYS {
        let begun = until_answered(world, async || seal.watch(key).await).await;
        let mut stream = begun.expect("the watch begins");
        let events = Arc::clone(&events);
        tokio::spawn(async move {
            while let Some(Ok(item)) = stream.next().await {
                events.lock().unwrap().push((key.parse().unwrap(), item));
            }
        });
    }
    (events, Some(seal))
}

/// A stream shows each grant, and how it ended. Of a server that is hurt it may still come to it.
fn check_events(common: &Common, events: &[(Key, WatchItem)]) {
    let world = &common.world;
    let is_watched = match &world.records {
        Records::Memory(_) => true,
        Records::Table(_) => false,
        Records::Server(server) => server.judge.capabilities().durable_answers && world.weather == Weather::Calm,
    };
    for key in KEYS.into_iter().filter(|_| is_watched) {
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
        // On a server, more were granted the key than believed so.
        let unknown = begun.difference(&granted).filter(|_| !world.is_on_server());
        let missing: Vec<_> = granted.difference(&begun).chain(unknown).collect();
        assert!(missing.is_empty(), "stream: {missing:?} of {key:?} are not in both {granted:?} and {begun:?}");
        let open: Vec<_> = begun.difference(&ended).collect();
        assert!(open.is_empty(), "stream: {open:?} of {key:?} did not end");
    }
}

/// What several programs were granted, and what they met.
#[derive(Default)]
pub(crate) struct Sum {
    pub(crate) programs: u32,
    /// How often each pair of choices was granted.
    pub(crate) pairs: BTreeMap<(Choice, Choice), u32>,
    pub(crate) seen: BTreeMap<&'static str, usize>,
}

impl Sum {
    pub(crate) fn add(&mut self, report: Report) {
        self.programs += 1;
        report.seen.into_iter().for_each(|(what, times)| *self.seen.entry(what).or_default() += times);
        for granted in &report.granted {
            for (at, one) in granted.iter().enumerate() {
                for other in &granted[at + 1..] {
                    *self.pairs.entry((*one, *other)).or_default() += 1;
                }
            }
        }
    }

    /// How many programs ran in a minute.
    pub(crate) fn rate(&self, began: Instant) -> f64 {
        f64::from(self.programs) / began.elapsed().as_secs_f64() * 60.0
    }
}

/// The pairs of choices that the API can express there, of steps that can be granted something.
pub(crate) fn possible_pairs(place: Place) -> BTreeSet<(Choice, Choice)> {
    let choices: Vec<_> = AXES.iter().flat_map(|(_, choices)| *choices).copied().collect();
    let mut pairs = BTreeSet::new();
    let mut add = |named: &[Choice], one: Choice, other: Choice| {
        let all = Choices::of(named);
        let is_there = |choice: Choice| choice.is_of(place) && all.all().any(|of| of == choice);
        if is_there(one) && is_there(other) && !all.is_refused() {
            pairs.insert((one.min(other), one.max(other)));
        }
    };
    // Some need a third and a fourth choice that makes them possible.
    for verb in [Acquires, AcquiresTwo, AcquiresAny, RunsATick, Campaigns, Resumes] {
        for (at, one) in choices.iter().enumerate() {
            for other in choices[at + 1..].iter().filter(|other| other.axis() != one.axis()) {
                add(&[verb, *one, *other], *one, *other);
                add(&[verb, Choice::InAGroup, *one, *other], *one, *other);
                add(&[verb, Choice::OnPoolOf64, *one, *other], *one, *other);
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

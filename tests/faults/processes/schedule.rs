//! Eight processes run the same schedules, with tickers that are up to a second apart: each tick is completed exactly
//! once.
//!
//! `MONGOSEAL_TICKS=1000 cargo test -p mongoseal-tests --test processes schedule` runs more ticks than a push does.

use std::{collections::BTreeMap, time::Duration};

use mongodb::bson::{Bson, Document};
use mongoseal::FencingToken;
use mongoseal_test_support::{ReplicaSet, by_length, shared};

use crate::{
    crew::Worker,
    fleet::Fleet,
    millis, secs,
    words::{Order, Schedule, Word, now},
};

const PROCESSES: usize = 8;
/// The schedules, each with the same share of the ticks. All processes run all of them.
const SCHEDULES: u64 = 4;
/// How far the tickers of the processes are apart at most, in milliseconds.
const APART: u64 = 1_000;
/// The longest work, in milliseconds.
const WORK: u64 = 50;

/// How many ticks all schedules have together, if `MONGOSEAL_TICKS` is not set.
fn ticks(push: u64) -> u64 {
    let set = std::env::var("MONGOSEAL_TICKS").ok();
    set.map_or(push, |ticks| ticks.parse().expect("MONGOSEAL_TICKS is a number"))
}

/// What a test orders each worker to do.
struct Orders {
    ticks: u64,
    ttl: Duration,
    wait: Option<Duration>,
    /// When the tickers begin.
    begin: Duration,
}

impl Orders {
    fn new(ticks: u64, ttl: Duration, wait: Option<Duration>) -> Self {
        Self { ticks: ticks / SCHEDULES, ttl, wait, begin: now() + millis(200) }
    }

    fn keys() -> impl Iterator<Item = String> {
        (0..SCHEDULES).map(|number| format!("schedule/{number}"))
    }

    /// Orders a worker to run all schedules, from the last tick on that is known to be completed.
    async fn give(&self, fleet: &Fleet, worker: &mut Worker) {
        let words = fleet.heard.words();
        let begin = self.begin + millis(fastrand::u64(..APART));
        for key in Self::keys() {
            let completed = words.iter().filter_map(|word| match word {
                Word::Ran { schedule, tick, .. } if *schedule == key => Some(*tick),
                _ => None,
            });
            let (first, last) = (completed.max().unwrap_or(1), self.ticks);
            let (ttl, wait, every) = (self.ttl, self.wait, millis(20));
            let schedule = Schedule { key, first, last, begin, every, ttl, wait, work: WORK, stays: false };
            worker.order(Order::Schedule(schedule)).await;
        }
    }

    /// How many schedules have no tick left, as some worker has reported.
    fn through(fleet: &Fleet) -> usize {
        let words = fleet.heard.words();
        let is_through =
            |key: &String| words.iter().any(|word| matches!(word, Word::Through { schedule } if schedule == key));
        Self::keys().filter(is_through).count()
    }

    fn is_over(&self, fleet: &Fleet) -> bool {
        let took = now().saturating_sub(self.begin);
        assert!(took < secs(300), "{} of {SCHEDULES} schedules are through after {took:?}", Self::through(fleet));
        Self::through(fleet) == usize::try_from(SCHEDULES).unwrap()
    }
}

/// A schedule and a tick of it.
type Of = (String, u64);

/// What happened, by schedule and tick.
#[derive(Default)]
struct Ticks {
    /// When work began, with which token.
    runs: BTreeMap<Of, Vec<(FencingToken, Option<Duration>)>>,
    /// When a completion was confirmed, of which token.
    confirmed: BTreeMap<Of, Vec<(FencingToken, Duration)>>,
    /// The completed ticks of each schedule in the order of their writes, as the oplog has them.
    completed: BTreeMap<String, Vec<u64>>,
    unfinished: usize,
    busy: usize,
}

impl Ticks {
    async fn of(fleet: &Fleet, set: &ReplicaSet) -> Self {
        let mut ticks = Self::default();
        for word in fleet.heard.words() {
            match word {
                Word::Runs { schedule, tick, token, at } => {
                    ticks.runs.entry((schedule, tick)).or_default().push((token, at));
                }
                Word::Ran { schedule, tick, token, at } => {
                    ticks.confirmed.entry((schedule, tick)).or_default().push((token, at));
                }
                Word::Unfinished { .. } => ticks.unfinished += 1,
                Word::Skips { .. } => ticks.busy += 1,
                Word::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        for key in Orders::keys() {
            let entries = set.oplog_entries(&fleet.namespace(), &Bson::from(key.as_str())).await;
            ticks.completed.insert(key, entries.iter().filter_map(written_tick).collect());
        }
        ticks
    }

    /// Checks what is true whatever happens to the processes: no tick is completed twice, a confirmed completion is in
    /// the record, and work of a tick does not begin after its completion was confirmed.
    fn check(&self) {
        for (schedule, completed) in &self.completed {
            let grow = completed.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(grow, "a tick of {schedule} is completed once, after those before it: {completed:?}");
        }
        for ((schedule, tick), confirmed) in &self.confirmed {
            let of = format!("tick {tick} of {schedule}");
            let [(token, at)] = confirmed[..] else { panic!("{of} was completed by {confirmed:?}") };
            assert!(self.completed[schedule].contains(tick), "{of} was confirmed with {token} and is not in the oplog");
            let runs = &self.runs[&(schedule.clone(), *tick)];
            let late = runs.iter().find(|(other, began)| *other != token && *began > Some(at));
            assert_eq!(late, None, "{of} was completed with {token} at {at:?} and ran again");
        }
        for (of, runs) in &self.runs {
            assert!(runs.windows(2).all(|pair| pair[0].0 != pair[1].0), "{of:?} ran twice with a token: {runs:?}");
        }
    }

    /// Checks that each tick was completed. That is true only if the processes wait.
    fn are_all_completed(&self, orders: &Orders) {
        for (schedule, completed) in &self.completed {
            assert!(completed.iter().copied().eq(1..=orders.ticks), "all ticks of {schedule}: {completed:?}");
        }
    }

    /// How often the work of a tick began again.
    fn repeated(&self) -> usize {
        self.runs.values().map(|runs| runs.len() - 1).sum()
    }

    fn completed(&self) -> usize {
        self.completed.values().map(Vec::len).sum()
    }
}

/// The tick that an entry of the oplog completes.
fn written_tick(entry: &Document) -> Option<u64> {
    entry.iter().find_map(|(name, value)| match value {
        Bson::Int64(tick) if name == "tick" => u64::try_from(*tick).ok(),
        Bson::Document(inner) => written_tick(inner),
        _ => None,
    })
}

/// Runs the schedules in eight workers, and injects faults until no tick is left.
async fn run(
    fleet: &Fleet,
    set: &ReplicaSet,
    orders: &Orders,
    mut inject: impl AsyncFnMut(&mut [Option<Worker>]),
) -> Ticks {
    let mut workers = fleet.workers::<PROCESSES>().await.map(Some);
    for worker in workers.iter_mut().flatten() {
        orders.give(fleet, worker).await;
    }
    while !orders.is_over(fleet) {
        inject(&mut workers).await;
    }
    let took = now().saturating_sub(orders.begin);
    // So that no worker reports any more.
    for worker in workers.into_iter().flatten() {
        worker.kill().await;
    }
    let ticks = Ticks::of(fleet, set).await;
    println!(
        "in {took:.1?}: {} ticks completed, {} of them confirmed; {} runs repeated, {} calls ended in Lost or Unavailable, \
         {} in Busy",
        ticks.completed(),
        ticks.confirmed.len(),
        ticks.repeated(),
        ticks.unfinished,
        ticks.busy
    );
    ticks.check();
    ticks
}

pub(crate) async fn eight_processes_complete_each_tick_exactly_once_and_run_it_once() {
    let set = shared(1).await;
    let fleet = Fleet::on(set, "ticks").await;
    let orders = Orders::new(ticks(200), secs(30), Some(Duration::MAX));
    let ticks = run(&fleet, set, &orders, async |_| tokio::time::sleep(millis(50)).await).await;
    ticks.are_all_completed(&orders);
    assert_eq!((ticks.repeated(), ticks.unfinished), (0, 0), "there were no faults");
}

pub(crate) async fn each_tick_is_completed_exactly_once_while_runners_are_killed_and_stopped() {
    const TTL: Duration = millis(700);
    let set = shared(1).await;
    let fleet = Fleet::on(set, "ticks_killed").await;
    let orders = Orders::new(ticks(120), TTL, Some(Duration::MAX));
    let (mut stopped, mut faults) = (None, [0, 0]);
    let ticks = run(&fleet, set, &orders, async |workers| {
        // Longer than a lease lasts.
        tokio::time::sleep(secs(1)).await;
        if let Some(worker) = stopped.take().and_then(|number: usize| workers[number].as_ref()) {
            worker.go_on();
        }
        let Some(number) = fleet.heard.last_runner() else { return };
        if fastrand::bool() {
            faults[0] += 1;
            workers[number].take().expect("it was started").kill().await;
            let mut worker = fleet.worker(number).await;
            orders.give(&fleet, &mut worker).await;
            workers[number] = Some(worker);
        } else if let Some(worker) = &workers[number] {
            faults[1] += 1;
            worker.stop();
            stopped = Some(number);
        }
    })
    .await;
    println!("{} processes killed and {} stopped", faults[0], faults[1]);
    ticks.are_all_completed(&orders);
}

pub(crate) async fn each_tick_is_completed_exactly_once_while_the_primary_steps_down() {
    let set = ReplicaSet::start(3).await;
    let fleet = Fleet::on(&set, "ticks_failover").await;
    let orders = Orders::new(ticks(120), secs(6), Some(Duration::MAX));
    let mut steps = 0;
    let ticks = run(&fleet, &set, &orders, async |_| {
        tokio::time::sleep(millis(700)).await;
        if steps < 3 && fleet.heard.last_runner().is_some() {
            set.step_down().await;
            steps += 1;
        }
    })
    .await;
    println!("{steps} step-downs");
    ticks.are_all_completed(&orders);
    assert!(steps > 0);
}

pub(crate) async fn a_tick_that_no_process_waits_for_is_completed_once_or_skipped() {
    let set = shared(1).await;
    let fleet = Fleet::on(set, "ticks_skipped").await;
    let orders = Orders::new(ticks(200), secs(30), None);
    let ticks = run(&fleet, set, &orders, async |_| tokio::time::sleep(millis(50)).await).await;
    let all = usize::try_from(orders.ticks * SCHEDULES).unwrap();
    println!("{} of {all} ticks were skipped", all - ticks.completed());
    assert!(ticks.completed() > 0 && ticks.busy > 0);
    assert_eq!((ticks.repeated(), ticks.unfinished), (0, 0), "there were no faults");
}

pub(crate) async fn a_tick_whose_runner_is_killed_between_its_work_and_its_completion_runs_again() {
    let ttl = by_length(secs(6), millis(1_200));
    let set = shared(1).await;
    let fleet = Fleet::on(set, "tick_killed").await;
    let [mut dead, mut next] = fleet.workers().await;
    let schedule = |stays| Schedule {
        key: "schedule/0".into(),
        first: 1,
        last: 1,
        begin: Duration::ZERO,
        every: Duration::ZERO,
        ttl,
        wait: Some(Duration::MAX),
        work: 1,
        stays,
    };
    dead.order(Order::Schedule(schedule(true))).await;
    let worked = |word: &Word| matches!(word, Word::Worked { .. }).then_some(());
    fleet.heard.until(secs(60), "the work ends", worked).await;
    next.order(Order::Schedule(schedule(false))).await;
    dead.kill().await;
    let killed = now();
    let ran = |word: &Word| match word {
        Word::Ran { token, at, .. } => Some((*token, *at)),
        _ => None,
    };
    let (token, at) = fleet.heard.until(secs(60), "another process completes the tick", ran).await;
    let ticks = Ticks::of(&fleet, set).await;
    ticks.check();
    let runs = &ticks.runs[&("schedule/0".to_owned(), 1)];
    assert!(runs.len() == 2 && runs[0].0 < token && runs[1].0 == token, "{runs:?} and {token}");
    assert_eq!(ticks.completed["schedule/0"], [1]);
    println!("completed {:.1?} after the runner was killed, with a ttl of {ttl:?}", at - killed);
}

//! Measures single leases, and many concurrent ones, without contention.

use std::time::{Duration, Instant};

use mongodb::{
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal::{Error, Mongoseal};
use tokio::task::JoinSet;

use crate::{
    cpu,
    figures::{Figures, Round, Samples, commands_per_sample, timed},
    many::acquired,
    measured_set::{BLOCK, MeasuredSet, bare_client},
};

/// Acquires and releases new and known keys, beside two updates.
pub(crate) async fn acquire_release(measured: &MeasuredSet) -> Figures {
    const CYCLES: u64 = 100;
    let seal = measured.handle().await;
    let mut rounds = Vec::new();
    for round in 0..measured.rounds {
        let clocks = measured.clocks().await;
        let (mut ours, mut floor) = (Samples::default(), Samples::default());
        let before = measured.writes_sent().await;
        for first in (0..CYCLES).step_by(BLOCK) {
            let updates = async {
                let took = measured.floor(2 * BLOCK).await;
                took.chunks(2).map(|pair| pair.iter().sum()).collect()
            };
            floor.add(&clocks, updates).await;
            let cycles = timed(first..first + BLOCK as u64, |number| {
                // Every other one is a key that has no record yet.
                let key = if number % 2 == 0 { "known".into() } else { format!("new/{round}/{number}") };
                let acquire = seal.acquire(key);
                async {
                    let lease = acquire.await.expect("the key is free");
                    lease.release().await.expect("it is released");
                }
            });
            ours.add(&clocks, cycles).await;
        }
        floor.commands = 2 * CYCLES;
        ours.commands = measured.writes_sent().await - before - floor.commands;
        rounds.push(Round { ours, floor });
    }
    seal.shutdown().await;
    Figures {
        case: "acquire-release",
        what: "acquire and release, beside two updates",
        commands: commands_per_sample(&rounds),
        rounds,
        notes: vec![],
    }
}

const ATTEMPTS: u64 = 200;

/// Tries again and again to acquire a key that another handle holds.
pub(crate) async fn refused(measured: &MeasuredSet) -> Figures {
    let (holder, seal) = (measured.handle().await, measured.handle().await);
    let lease = holder.acquire("refused").await.expect("the key is free");
    let mut rounds = Vec::new();
    for _ in 0..measured.rounds {
        rounds.push(attempts(measured, &seal, |_| "refused".into()).await);
    }
    lease.release().await.expect("it is released");
    holder.shutdown().await;
    seal.shutdown().await;
    Figures {
        case: "refused",
        what: "one attempt on a held key",
        commands: commands_per_sample(&rounds),
        rounds,
        notes: vec![],
    }
}

/// Tries once to acquire each of many keys that another handle holds.
pub(crate) async fn refused_first(measured: &MeasuredSet) -> Figures {
    let seal = measured.handle().await;
    let mut rounds = Vec::new();
    for round in 0..measured.rounds {
        let holder = measured.handle().await;
        let key = |number: u64| format!("refused/{round}/{number}");
        let held = acquired(&holder, Duration::from_secs(30), (0..ATTEMPTS).map(key)).await;
        rounds.push(attempts(measured, &seal, key).await);
        holder.shutdown().await;
        drop(held);
    }
    seal.shutdown().await;
    Figures {
        case: "refused-first",
        what: "one attempt on a held key that this handle has not tried before",
        commands: commands_per_sample(&rounds),
        rounds,
        notes: vec![],
    }
}

/// One round of attempts on keys that are held.
async fn attempts(measured: &MeasuredSet, seal: &Mongoseal, key: impl Fn(u64) -> String) -> Round {
    let clocks = measured.clocks().await;
    let (mut ours, mut floor) = (Samples::default(), Samples::default());
    let sent = async || measured.writes_sent().await + measured.commands("find").await;
    let before = sent().await;
    for first in (0..ATTEMPTS).step_by(BLOCK) {
        floor.add(&clocks, measured.floor(BLOCK)).await;
        let attempts = timed(first..first + BLOCK as u64, |number| {
            let acquire = seal.acquire(key(number));
            async { assert!(matches!(acquire.await, Err(Error::Held { .. })), "it is held") }
        });
        ours.add(&clocks, attempts).await;
    }
    floor.commands = ATTEMPTS;
    ours.commands = sent().await - before - floor.commands;
    Round { ours, floor }
}

const TASKS: usize = 64;

/// 64 tasks of so many handles with clients of their own, each on a key of its own, beside as many of as many
/// clients that do two updates. Of a handle with many tasks the requests travel together.
pub(crate) async fn throughput(measured: &MeasuredSet, case: &'static str, handles: usize, quick: bool) -> Figures {
    let time = Duration::from_secs(if quick { 1 } else { 3 });
    let (mut seals, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..handles {
        seals.push(measured.handle().await);
        let floor = bare_client(measured.set).await;
        floors.push(floor.database("mongoseal_figures").collection::<Document>("floor"));
    }
    let (mut rounds, mut commands, mut cycles) = (Vec::new(), 0, 0);
    let (mut client, mut threads, mut pairs_of_floor) = ([Duration::ZERO; 2], Duration::ZERO, 0);
    for _ in 0..measured.rounds {
        let clocks = measured.clocks().await;
        let updates = side_by_side(time, |task| {
            let floor = floors[task % handles].clone();
            async move {
                for _ in 0..2 {
                    floor
                        .find_one_and_update(doc! { "_id": format!("floor/{task}") }, doc! { "$inc": { "n": 1 } })
                        .upsert(true)
                        .write_concern(WriteConcern::majority())
                        .await
                        .expect("the floor is updated");
                }
            }
        });
        let before = cpu::of_client();
        let ((bare, pairs), servers) = clocks.spent(updates).await;
        client[0] += cpu::of_client().saturating_sub(before);
        pairs_of_floor += pairs;
        let floor = Samples { took: vec![bare], servers, commands: 2 * u64::from(pairs) };
        let before = measured.writes_sent().await;
        let leases = side_by_side(time, |task| {
            let seal = seals[task % handles].clone();
            async move {
                let lease = seal.acquire(format!("own/{task}").as_str()).await.expect("the key is free");
                lease.release().await.expect("it is released");
            }
        });
        let processor = (cpu::of_client(), cpu::of_threads("mongoseal"));
        let ((took, count), servers) = clocks.spent(leases).await;
        client[1] += cpu::of_client().saturating_sub(processor.0);
        threads += cpu::of_threads("mongoseal").saturating_sub(processor.1);
        let ours = Samples { took: vec![took], servers, commands: measured.writes_sent().await - before };
        commands += ours.commands;
        cycles += count;
        rounds.push(Round { ours, floor });
    }
    for seal in seals {
        seal.shutdown().await;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / f64::from(cycles);
    let what = "one of the cycles of 64 tasks on keys of their own, as time over their number";
    let [floor, ours, thread] =
        [(client[0], pairs_of_floor), (client[1], cycles), (threads, cycles)].map(|(spent, many)| spent / many.max(1));
    let notes = vec![
        format!("{handles} handles with a client each"),
        format!("client: {ours:.0?} of processor for a cycle, {floor:.0?} for two bare updates"),
        format!(
            "threads of the handles: {thread:.0?} of it, so one has time for {:.0} cycles a second",
            1.0 / thread.as_secs_f64()
        ),
    ];
    Figures { case, what, rounds, commands, notes }
}

/// How long a cycle takes, as the time divided by the number of cycles of all tasks, and that number.
async fn side_by_side<F>(time: Duration, cycle: impl Fn(usize) -> F) -> (Duration, u32)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    let start = |running: &mut JoinSet<usize>, task: usize| {
        let cycle = cycle(task);
        running.spawn(async move {
            cycle.await;
            task
        });
    };
    let began = Instant::now();
    for task in 0..TASKS {
        start(&mut running, task);
    }
    let mut cycles = 0;
    while let Some(done) = running.join_next().await {
        cycles += 1;
        if began.elapsed() < time {
            start(&mut running, done.expect("no task panics"));
        }
    }
    (began.elapsed() / cycles, cycles)
}

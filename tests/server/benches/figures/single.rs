//! Measures single leases, and many concurrent ones, without contention.

use std::time::{Duration, Instant};

use mongodb::{
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal::Error;
use tokio::task::JoinSet;

use crate::{
    figures::{Figures, Round},
    measured_set::{MeasuredSet, bare_client},
};

/// Acquires and releases new and known keys, beside two updates.
pub(crate) async fn acquire_release(measured: &MeasuredSet) -> Figures {
    const CYCLES: u64 = 100;
    let seal = measured.handle().await;
    let (mut rounds, mut commands) = (Vec::new(), 0);
    for round in 0..measured.rounds {
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        let before = measured.commands("findAndModify").await;
        for number in 0..CYCLES {
            let updates = measured.floor(2).await;
            floor.push(updates.iter().sum());
            // Every other one is a key that has no record yet.
            let key = if number % 2 == 0 { "known".into() } else { format!("new/{round}/{number}") };
            let began = Instant::now();
            let lease = seal.acquire(key.as_str()).await.expect("the key is free");
            lease.release().await.expect("it is released");
            ours.push(began.elapsed());
        }
        // Less those of the floor.
        commands += measured.commands("findAndModify").await - before - 2 * CYCLES;
        rounds.push(Round { ours, floor });
    }
    seal.shutdown().await;
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / (CYCLES as f64 * measured.rounds as f64);
    Figures {
        case: "acquire-release",
        what: "acquire and release, beside two updates",
        rounds,
        commands,
        notes: vec![],
    }
}

/// Asks for a key that somebody else holds.
pub(crate) async fn refused(measured: &MeasuredSet) -> Figures {
    const ATTEMPTS: u64 = 200;
    let (holder, seal) = (measured.handle().await, measured.handle().await);
    let lease = holder.acquire("refused").await.expect("the key is free");
    let mut rounds = Vec::new();
    let sent = async || measured.commands("findAndModify").await + measured.commands("find").await;
    let before = sent().await;
    for _ in 0..measured.rounds {
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..ATTEMPTS {
            floor.extend(measured.floor(1).await);
            let began = Instant::now();
            assert!(matches!(seal.acquire("refused").await, Err(Error::Held { .. })), "it is held");
            ours.push(began.elapsed());
        }
        rounds.push(Round { ours, floor });
    }
    let attempts = ATTEMPTS * u64::try_from(measured.rounds).expect("they are few");
    // Less those of the floor.
    let commands = sent().await - before - attempts;
    lease.release().await.expect("it is released");
    holder.shutdown().await;
    seal.shutdown().await;
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / attempts as f64;
    Figures { case: "refused", what: "one attempt on a held key", rounds, commands, notes: vec![] }
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
    let sent = || async { measured.commands("findAndModify").await + measured.commands("update").await };
    let (mut rounds, mut commands, mut cycles) = (Vec::new(), 0, 0);
    for _ in 0..measured.rounds {
        let (bare, _count) = side_by_side(time, |task| {
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
        })
        .await;
        let before = sent().await;
        let (ours, count) = side_by_side(time, |task| {
            let seal = seals[task % handles].clone();
            async move {
                let lease = seal.acquire(format!("own/{task}").as_str()).await.expect("the key is free");
                lease.release().await.expect("it is released");
            }
        })
        .await;
        commands += sent().await - before;
        cycles += count;
        rounds.push(Round { ours: vec![ours], floor: vec![bare] });
    }
    for seal in seals {
        seal.shutdown().await;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / f64::from(cycles);
    let what = "one of the cycles of 64 tasks on keys of their own, as time over their number";
    let note =
        format!("{handles} handles with a client each; 0.90 of the floor's rate is a ratio of 1.11, 1.4 one of 0.71");
    Figures { case, what, rounds, commands, notes: vec![note] }
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

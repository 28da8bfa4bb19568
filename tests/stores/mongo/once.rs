//! Work that runs once for each tick of a schedule, and the limits of a hold, on a real server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use mongoseal::{Error, Mongoseal, OnceOutcome, Result, Tick, TickLease};

use crate::{TestDatabase, millis, noting_client, secs};

/// Work that returns the number of its tick.
async fn number(tick: &TickLease) -> Result<u64> {
    Ok(tick.number())
}

async fn last_tick(db: &TestDatabase, key: &str) -> Option<u64> {
    db.seal().inspect(key).await.unwrap()?.done.map(|done| done.tick)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_runners_of_a_tick_one_runs_it_and_the_rest_find_it_completed() {
    let db = TestDatabase::new("mongoseal_once").await;
    let runs = Arc::new(AtomicU32::new(0));
    let mut runners = Vec::new();
    for runner in 0..12 {
        let seal = db.build(Mongoseal::builder().owner(format!("runner-{runner}")));
        let runs = Arc::clone(&runs);
        runners.push(tokio::spawn(async move {
            let once = seal.once("k", Tick::number(7)).wait(secs(30));
            let ended = once.run(async |_| -> Result<()> {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            (runner, ended.await.unwrap())
        }));
    }
    let mut ran = Vec::new();
    let mut seen = Vec::new();
    for runner in runners {
        match runner.await.unwrap() {
            (runner, OnceOutcome::Ran(())) => ran.push(format!("runner-{runner}")),
            (_, OnceOutcome::AlreadyDone { by, at }) => seen.push((by, at)),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!((runs.load(Ordering::Relaxed), ran.len(), seen.len()), (1, 1, 11));
    let done = db.seal().inspect("k").await.unwrap().unwrap().done.unwrap();
    assert!(seen.iter().all(|(by, at)| *by == ran[0] && *at == done.at), "{seen:?} {done:?}");
    assert_eq!((done.tick, &done.by), (7, &ran[0]));
}

#[tokio::test]
async fn a_tick_costs_two_reads_and_two_writes_and_a_completed_tick_one_read() {
    let db = TestDatabase::new("mongoseal_once_commands").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::new(&client.database("mongoseal_once_commands"));
    seal.prepare().await.unwrap();
    let sent_by = async |tick: u64| {
        sent.take();
        let ended = seal.once("k", Tick::number(tick)).run(number).await.unwrap();
        (ended, sent.take_names())
    };
    // Without a record, the time is read in its place.
    sent_by(1).await;
    let (ended, commands) = sent_by(2).await;
    assert_eq!(ended, OnceOutcome::Ran(2));
    assert_eq!(commands, ["find", "findAndModify", "find", "findAndModify"]);
    let (ended, commands) = sent_by(2).await;
    assert!(matches!(ended, OnceOutcome::AlreadyDone { .. }), "{ended:?}");
    assert_eq!(commands, ["find"]);
}

#[tokio::test]
async fn a_runner_whose_clock_is_a_year_ahead_is_refused_and_the_schedule_goes_on() {
    let db = TestDatabase::new("mongoseal_once_ahead").await;
    let seal = db.seal();
    let millis = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let tick = |at| Tick::at_millis(millis(at).try_into().unwrap());
    let run = async |at: SystemTime| seal.once("k", tick(at)).run(number).await;
    let now = SystemTime::now();
    assert!(matches!(run(now - secs(60)).await, Ok(OnceOutcome::Ran(_))));
    let before = db.record("k").await;
    let error = run(now + secs(365 * 24 * 3_600)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains("check the clock of this machine"), "{error}");
    assert_eq!(db.record("k").await, before, "nothing was written");
    assert!(matches!(run(now).await, Ok(OnceOutcome::Ran(_))), "the schedule goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_outlasts_its_lease_completes_its_tick_if_the_key_was_not_granted_since() {
    const HOLD: Duration = millis(400);
    let db = TestDatabase::new("mongoseal_once_late").await;
    let seal = db.build(Mongoseal::builder().grace(Duration::ZERO));
    let once = |key| seal.once(key, Tick::number(1)).max_hold(HOLD);
    // The work blocks its thread, so that it ends before the loss drops it.
    let late = once("k").run(async |tick| -> Result<bool> {
        std::thread::sleep(HOLD + millis(200));
        Ok(tick.lease().is_valid())
    });
    assert_eq!(late.await.unwrap(), OnceOutcome::Ran(false));
    assert_eq!(last_tick(&db, "k").await, Some(1));

    // A grant since then ends that.
    let late = once("taken").run(async |tick| -> Result<()> {
        let (taken, granted) = std::sync::mpsc::channel();
        let other = db.seal();
        tokio::spawn(async move {
            let lease = other.acquire("taken").wait(secs(20)).await.unwrap();
            taken.send(lease.token()).unwrap();
        });
        assert!(granted.recv_timeout(secs(20)).unwrap() > tick.token());
        Ok(())
    });
    let error = late.await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_eq!(last_tick(&db, "taken").await, None);
}

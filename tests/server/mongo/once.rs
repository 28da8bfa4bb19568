//! Work that runs once for each tick of a schedule, and the limits of a hold, on a real server.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use mongoseal::{Error, LeaseState, LossCause, Mongoseal, OnceOutcome, Result, Tick, TickLease};

use crate::{TestDatabase, eventually, millis, noting_client, secs, timed_turn};

/// Work that returns the number of its tick.
async fn number(tick: &TickLease) -> Result<u64> {
    Ok(tick.number())
}

async fn last_tick(db: &TestDatabase, key: &str) -> Option<u64> {
    db.seal().inspect(key).await.unwrap()?.done.map(|done| done.tick)
}

/// When the key was granted to its first holder, in milliseconds.
async fn since(db: &TestDatabase, key: &str) -> i64 {
    let record = db.record(key).await.unwrap();
    let holder = record.get_array("holders").unwrap()[0].as_document().unwrap();
    holder.get_datetime("since").unwrap().timestamp_millis()
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
        sent.lock().unwrap().clear();
        let ended = seal.once("k", Tick::number(tick)).run(number).await.unwrap();
        (ended, sent.lock().unwrap().clone())
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

#[tokio::test]
async fn a_failed_tick_can_run_until_a_later_tick_is_completed() {
    let db = TestDatabase::new("mongoseal_once_superseded").await;
    let seal = db.seal();
    let failed = seal.once("k", Tick::number(4)).run(async |_| Err::<(), _>(Error::invalid("the work failed")));
    assert!(failed.await.unwrap_err().to_string().contains("the work failed"));
    assert_eq!(last_tick(&db, "k").await, None);
    let later = seal.once("k", Tick::number(5)).run(number).await.unwrap();
    assert_eq!(later, OnceOutcome::Ran(5));
    let earlier = seal.once("k", Tick::number(4)).run(number).await.unwrap();
    assert!(matches!(earlier, OnceOutcome::Superseded { tick: 5, .. }), "{earlier:?}");

    // An operator allows it again.
    seal.rewind_tick("k", 3).by("olga").await.unwrap();
    assert_eq!(seal.once("k", Tick::number(4)).run(number).await.unwrap(), OnceOutcome::Ran(4));
    assert_eq!(last_tick(&db, "k").await, Some(4));
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

#[tokio::test]
async fn a_lease_is_lost_at_its_maximum_hold_although_it_is_refreshed() {
    const HOLD: Duration = millis(900);
    let _turn = timed_turn().await;
    let db = TestDatabase::new("mongoseal_hold_at_most").await;
    let seal = db.build(Mongoseal::builder().grace(millis(200)));
    let began = Instant::now();
    let lease = seal.acquire("k").ttl(millis(450)).max_hold(HOLD).await.unwrap();
    let granted = Instant::now();
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::HeldTooLong });
    let lost = (granted.elapsed(), began.elapsed());
    assert!(lost.0 <= HOLD && lost.1 > HOLD * 8 / 10, "lost after {lost:?}");
    assert!(
        db.record("k").await.unwrap().get_array("holders").unwrap()[0].as_document().unwrap().contains_key("not_after")
    );
    // The store keeps the key for the grace after it, and no longer.
    assert!(matches!(lease.refresh().await, Err(Error::Lost { cause: LossCause::HeldTooLong, .. })));
    let next = db.seal().acquire("k").wait(secs(20)).await.unwrap();
    let freed = began.elapsed();
    assert!(granted.elapsed() + millis(200) >= HOLD && next.token() > lease.token());
    println!("lost {:?} after the grant, of {HOLD:?}; granted again {freed:?} after the acquire", lost.0);
}

#[tokio::test]
async fn a_waiter_is_granted_the_key_right_after_the_minimum_hold() {
    const HOLD: Duration = millis(1_200);
    let _turn = timed_turn().await;
    let db = TestDatabase::new("mongoseal_hold_at_least").await;
    let mut late = Vec::new();
    for round in 0..5 {
        let key = format!("k{round}");
        let first = db.seal().acquire(&key).min_hold(HOLD).await.unwrap();
        let end = since(&db, &key).await + i64::try_from(HOLD.as_millis()).unwrap();
        let waiting = tokio::spawn(db.seal().acquire(&key).wait(secs(20)).into_future());
        let queued = async || !db.record(&key).await.unwrap().get_array("queue").unwrap().is_empty();
        eventually(secs(5), "the waiter is queued", queued).await;
        first.release().await.unwrap();
        match db.seal().acquire(&key).await.unwrap_err() {
            Error::Held { is_released, remaining, .. } => assert!(is_released && remaining <= HOLD, "{remaining:?}"),
            error => panic!("{error}"),
        }
        let next = waiting.await.unwrap().unwrap();
        late.push(since(&db, &key).await - end);
        next.release().await.unwrap();
    }
    println!("granted so many ms after the minimum hold: {late:?}");
    assert!(late.iter().all(|late| (0..400).contains(late)), "{late:?}");
}

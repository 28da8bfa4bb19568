//! Work that runs once for each tick of a schedule: its commands, and the clock that refuses a tick.

use std::time::SystemTime;

use mongoseal::{Error, Mongoseal, OnceOutcome, Result, Tick, TickLease};

use crate::{TestDatabase, noting_client, secs};

/// Work that returns the number of its tick.
async fn number(tick: &TickLease) -> Result<u64> {
    Ok(tick.number())
}

#[tokio::test]
async fn a_tick_costs_two_reads_and_two_writes_and_a_completed_tick_one_read() {
    let db = TestDatabase::new("mongoseal_once_commands").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_once_commands"));
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

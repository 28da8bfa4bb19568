//! Minimum holds with waiters, and shutdowns with running work, on a real set.

use std::time::Instant;

use mongoseal::FencingToken;
use tokio::task::{JoinSet, block_in_place, yield_now};

use crate::{Duration, OpenedStreams, TestDatabase, eventually, millis, noting_client, secs, timed_turn};

const WAITERS: u32 = 6;
const LEAST: Duration = millis(600);

/// Six handles wait for a key in turn and hold it for this time, with this minimum hold. Returns when each was granted the
/// key, and how many commands were sent for each grant.
async fn in_turn(db: &TestDatabase, name: &str, hold: Duration, least: Option<Duration>) -> (Vec<Instant>, f64) {
    let (client, sent) = noting_client(&db.set.uri_with("maxPoolSize=64")).await;
    let opened = OpenedStreams::default();
    let handle = || opened.builder().connections(64).on(&client.database(name)).unwrap();
    let first = handle().acquire("k").await.unwrap();
    let mut asked = JoinSet::new();
    for _ in 0..WAITERS {
        let seal = handle();
        asked.spawn(async move {
            let mut acquire = seal.acquire("k").wait(secs(60));
            if let Some(least) = least {
                acquire = acquire.min_hold(least);
            }
            let taken = acquire.await.unwrap();
            let at = Instant::now();
            tokio::time::sleep(hold).await;
            taken.release().await.unwrap();
            at
        });
    }
    let queued = || async { client.database(name).collection::<mongodb::bson::Document>("mongoseal") };
    eventually(secs(20), "all wait", || async {
        let record = queued().await.find_one(mongodb::bson::doc! { "_id": "k" }).await.unwrap().unwrap();
        record.get_array("queue").is_ok_and(|queue| queue.len() == WAITERS as usize)
    })
    .await;
    // That of the holder, too.
    opened.wait_for(WAITERS as usize + 1).await;
    let writes = || sent.count("findAndModify");
    let before = writes();
    first.release().await.unwrap();
    let mut granted = asked.join_all().await;
    granted.sort_unstable();
    (granted, f64::from(u32::try_from(writes() - before).unwrap()) / f64::from(WAITERS))
}

/// Each waits on a handle of its own, as in a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn each_waiter_is_granted_the_key_at_the_end_of_the_minimum_hold_before_it() {
    let _turn = timed_turn().await;
    let db = TestDatabase::new("mongoseal_least").await;
    let (_, without) = in_turn(&db, "mongoseal_least_without", LEAST, None).await;
    let (granted, with) = in_turn(&db, "mongoseal_least_with", millis(60), Some(LEAST)).await;
    let mut late: Vec<_> = granted.windows(2).map(|pair| (pair[1] - pair[0]).saturating_sub(LEAST)).collect();
    late.sort_unstable();
    println!("late by {late:?}; writes a grant: {with:.2} with a minimum hold, {without:.2} without");
    assert!(late[late.len() / 2] < millis(250), "{late:?}");
    // Less than a third of the ttl, after which a waiter asks by itself.
    assert!(late[late.len() - 1] < secs(3), "{late:?}");
    assert!(with <= without + 2.1, "{with} and {without} writes a grant");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_frees_a_key_when_the_work_under_it_has_ended() {
    let _turn = timed_turn().await;
    let db = TestDatabase::new("mongoseal_closing").await;
    let (seal, other) = (db.seal(), db.seal());
    let lease = seal.acquire("k").await.unwrap();
    let waiting = tokio::spawn(async move {
        let next = other.acquire("k").wait(secs(60)).await.unwrap();
        (Instant::now(), next.token())
    });
    let token: FencingToken = lease.token();
    eventually(secs(20), "another waits", || async {
        db.record("k").await.is_some_and(|record| record.get_array("queue").is_ok_and(|queue| !queue.is_empty()))
    })
    .await;
    let working = tokio::spawn(async move {
        let mut ended = Instant::now();
        let work = async {
            // A computation that notices nothing.
            block_in_place(|| std::thread::sleep(secs(2)));
            ended = Instant::now();
            yield_now().await;
        };
        lease.run(work).await.unwrap_err();
        ended
    });
    tokio::time::sleep(millis(500)).await;
    let began = Instant::now();
    seal.shutdown().await;
    let took = began.elapsed();
    let (ended, (granted, next)) = (working.await.unwrap(), waiting.await.unwrap());
    println!("the shutdown took {took:?}, and the next holder had the key {:?} after the work", granted - ended);
    assert!(next > token && granted > ended && granted - ended < secs(2), "{:?}", granted.duration_since(ended));
}

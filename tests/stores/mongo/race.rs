//! Many concurrent acquires, of one key and of distinct keys.

use std::sync::Arc;

use mongoseal::{Error, ReleaseOutcome};
use tokio::{sync::Barrier, task::JoinSet};

use crate::{TestDatabase, by_length};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_that_race_for_a_new_key_one_wins_and_63_are_refused() {
    let db = TestDatabase::new("mongoseal_race").await;
    for round in 0..by_length(3, 20) {
        let start = Arc::new(Barrier::new(64));
        let mut racers = JoinSet::new();
        for _ in 0..64 {
            let (seal, start) = (db.seal(), Arc::clone(&start));
            racers.spawn(async move {
                seal.prepare().await.unwrap();
                start.wait().await;
                seal.acquire(format!("new-{round}")).await
            });
        }
        let results = racers.join_all().await;
        let (won, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1);
        for error in refused {
            assert!(matches!(error, Err(Error::Held { .. })), "{error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: ten thousand acquires"]
async fn thousands_of_cycles_on_distinct_keys_at_64_at_once_meet_no_error() {
    let db = TestDatabase::new("mongoseal_cycles").await;
    let seal = db.seal();
    let cycles = 160;
    let mut workers = JoinSet::new();
    for worker in 0..64 {
        let seal = seal.clone();
        workers.spawn(async move {
            for cycle in 0..cycles {
                let lease = seal.acquire(format!("{worker}/{cycle}")).await.unwrap();
                assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
            }
        });
    }
    workers.join_all().await;
}

//! Acquiring several keys at once on a real server.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use mongoseal::{FencingToken, Mongoseal};

use crate::{TestDatabase, busy_turn, by_length, secs};

/// Whether somebody uses a key now, and the last token it was used with.
type Use = (bool, Option<FencingToken>);

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_over_random_subsets_of_six_keys_never_block_each_other_for_ever() {
    let _turn = busy_turn().await;
    let db = TestDatabase::new("mongoseal_several").await;
    let uses: Arc<Mutex<HashMap<String, Use>>> = Arc::default();
    let (began, enough) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    // All go on until each got on.
    let goes_on = move |enough: &AtomicUsize| {
        began.elapsed() < by_length(secs(2), secs(8))
            || (enough.load(Ordering::Relaxed) < 8 && began.elapsed() < secs(30))
    };
    let mut handles = Vec::new();
    for _ in 0..4 {
        let builder = Mongoseal::builder().database("mongoseal_several");
        handles.push(builder.connect(db.set.uri()).await.unwrap());
    }
    let tasks: Vec<_> = (0..8)
        .map(|number: usize| {
            let (seal, uses) = (handles[number % 4].clone(), Arc::clone(&uses));
            let enough = Arc::clone(&enough);
            tokio::spawn(async move {
                let mut rounds = 0;
                while goes_on(&enough) {
                    let mut keys: Vec<&str> = KEYS.into_iter().filter(|_| fastrand::bool()).collect();
                    fastrand::shuffle(&mut keys);
                    if keys.is_empty() {
                        continue;
                    }
                    let set = seal.acquire_all(keys.clone()).wait(secs(20)).await.unwrap();
                    for (key, token) in set.tokens() {
                        let mut uses = uses.lock().unwrap();
                        let last = uses.entry(key.as_str().to_owned()).or_default();
                        assert!(!last.0 && last.1 < Some(token), "{key} is used with {last:?}, now {token}");
                        *last = (true, Some(token));
                    }
                    tokio::time::sleep(crate::millis(fastrand::u64(0..5))).await;
                    for key in keys {
                        uses.lock().unwrap().get_mut(key).unwrap().0 = false;
                    }
                    set.release().await.unwrap();
                    rounds += 1;
                    enough.fetch_add(usize::from(rounds == 21), Ordering::Relaxed);
                }
                rounds
            })
        })
        .collect();
    let mut rounds = 0;
    for task in tasks {
        let own: i32 = task.await.unwrap();
        assert!(own > 20, "one got through {own} times");
        rounds += own;
    }
    println!("{rounds} sets of keys in {:?}", began.elapsed());
    for seal in handles {
        seal.shutdown().await;
    }
}

//! Grants go on while replies are lost.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mongoseal::Mongoseal;
use mongoseal_test_support::{ReplicaSet, by_length};

use crate::{connect, millis, secs};

/// Acquires and leaves alternate. If only those of one operation at the head of the queue shared a command, each would
/// be a command of its own, and a lost reply would hold up all of them.
pub(super) async fn grants_go_on_while_replies_are_lost_and_sixty_callers_drop_their_acquires() {
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=one")).await;
    let (began, grants) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let lasts = by_length(secs(10), secs(20));
    let goes_on = move || began.elapsed() < lasts;
    let callers: Vec<_> = (0..60)
        .map(|_| {
            let (seal, grants) = (seal.clone(), Arc::clone(&grants));
            tokio::spawn(async move {
                while goes_on() {
                    let patience = millis(fastrand::u64(0..300));
                    let acquired = tokio::time::timeout(patience, seal.acquire("k").wait(secs(60))).await;
                    if let Ok(Ok(lease)) = acquired {
                        grants.lock().unwrap().push(began.elapsed());
                        drop(lease.release().await);
                    }
                }
            })
        })
        .collect();
    let mut lost = 0;
    for _ in 0..8 {
        let hits = set.proxy().swallow_reply("one", "findAndModify", 1);
        tokio::time::sleep(lasts / 10).await;
        lost += hits.count();
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let mut grants = grants.lock().unwrap().clone();
    let count = grants.len();
    grants.insert(0, Duration::ZERO);
    grants.push(lasts);
    let longest = grants.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
    println!("{count} grants while {lost} replies were lost, the longest gap is {longest:?}");
    assert!(lost > 4, "{lost} replies were lost");
    // A lost answer holds up the others for half a second.
    assert!(longest < secs(5), "{longest:?}");
}

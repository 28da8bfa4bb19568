//! Requests that arrive after their callers have given up, and grants that go on while replies are lost.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{ReplicaSet, by_length, eventually};

use crate::{connect, millis, secs};

pub(super) async fn one_who_gave_up_leaves_nothing_held_beyond_its_ttl() {
    let set = ReplicaSet::builder().proxied().start().await;
    // It connects in any time.
    let connected = connect(Mongoseal::builder(), set.uri_with("appName=one")).await;
    let seal = Mongoseal::builder().operation_timeout(secs(1)).sibling_of(&connected).unwrap();
    let other = connect(Mongoseal::builder(), set.uri_with("appName=two")).await;

    // All that the caller sends arrives two seconds late: its requests, and the release with which
    // they are taken back, which has given up, too.
    let ghosts = set.proxy().delay("one", "findAndModify update", secs(2));
    let before = set.command_count(0, "findAndModify").await;
    let error = seal.acquire("k").ttl(secs(3)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let executed = async || set.command_count(0, "findAndModify").await > before;
    eventually(secs(30), "a ghost is executed", executed).await;
    assert!(ghosts.count() >= 1);
    // The last ghost is sent within a second and arrives two seconds later. A push judges that the key is free at all.
    let longest = by_length(secs(60), secs(1 + 2 + 3) + millis(500));
    eventually(longest, "the key is held by nobody", async || match other.acquire("k").await {
        Ok(_) => true,
        Err(error) => {
            assert!(matches!(error, Error::Held { .. }), "{error}");
            false
        }
    })
    .await;
}

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

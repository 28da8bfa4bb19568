//! If a reply is lost, the request is sent again, and the lease and its token stay the same.

use std::time::Instant;

use mongoseal::{Error, Mongoseal, ReleaseOutcome};
use mongoseal_test_support::ReplicaSet;

use crate::{connect, millis, secs, turn};

#[tokio::test]
async fn a_swallowed_reply_costs_a_second_send_and_nothing_else() {
    let _turn = turn().await;
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=one")).await;
    let other = connect(Mongoseal::builder(), set.uri_with("appName=two")).await;
    for round in 0..5 {
        let key = format!("k{round}");
        let hits = set.proxy().swallow_reply("one", "findAndModify", 1);
        let before = set.command_count(0, "findAndModify").await;
        let lease = seal.acquire(&key).ttl(secs(60)).await.unwrap();
        assert_eq!(hits.count(), 1, "the reply of the first send was lost");
        assert_eq!(set.command_count(0, "findAndModify").await - before, 2, "and it was executed");
        assert!(lease.remaining() > secs(58), "nobody waits for his own lost reply: {:?}", lease.remaining());
        match other.acquire(&key).await.unwrap_err() {
            Error::Held { token, .. } => assert_eq!(token, lease.token(), "one grant, one token"),
            error => panic!("{error}"),
        }

        let hits = set.proxy().swallow_reply("one", "findAndModify", 1);
        lease.refresh().await.unwrap();
        assert_eq!(hits.count(), 1);

        let hits = set.proxy().swallow_reply("one", "update", 1);
        assert_eq!(
            lease.release().await.unwrap(),
            ReleaseOutcome::Released,
            "the release that was not heard of was ours"
        );
        assert_eq!(hits.count(), 1);
        other.acquire(&key).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn one_who_gave_up_leaves_nothing_held_beyond_its_ttl() {
    let _turn = turn().await;
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(1)), set.uri_with("appName=one")).await;
    let other = connect(Mongoseal::builder(), set.uri_with("appName=two")).await;

    // All that the caller sends arrives two seconds late: its requests, and the release with which
    // they are taken back, which has given up, too.
    let ghosts = set.proxy().delay("one", "findAndModify update", secs(2));
    let before = set.command_count(0, "findAndModify").await;
    let began = Instant::now();
    let error = seal.acquire("k").ttl(secs(3)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(began.elapsed() < millis(1250), "{:?}", began.elapsed());
    while set.command_count(0, "findAndModify").await == before {
        assert!(began.elapsed() < secs(4), "no ghost was executed");
        tokio::time::sleep(millis(20)).await;
    }
    assert!(ghosts.count() >= 1);

    let freed = async {
        while let Err(error) = other.acquire("k").await {
            assert!(matches!(error, Error::Held { .. }), "{error}");
            tokio::time::sleep(millis(20)).await;
        }
    };
    // The last ghost was sent before the caller gave up and arrives two seconds later.
    let longest = secs(1 + 2 + 3) + millis(500);
    tokio::time::timeout(longest.saturating_sub(began.elapsed()), freed).await.expect("the key is held by nobody");
}

#[tokio::test]
async fn a_deadline_is_counted_from_before_the_send() {
    let _turn = turn().await;
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder(), set.uri_with("appName=one")).await;
    let hits = set.proxy().delay("one", "findAndModify", millis(800));
    let lease = seal.acquire("k").ttl(secs(20)).without_refresh().await.unwrap();
    assert!(lease.remaining() <= millis(19_200), "{:?}", lease.remaining());
    lease.refresh().await.unwrap();
    assert!(lease.remaining() <= millis(19_200) && lease.remaining() > secs(18), "{:?}", lease.remaining());
    assert!(hits.count() >= 2);
}

#[tokio::test]
async fn a_reply_that_comes_after_the_deadline_of_what_it_grants_is_thrown_away() {
    let _turn = turn().await;
    let set = ReplicaSet::builder().proxied().start().await;
    let seal = connect(Mongoseal::builder().operation_timeout(secs(3)), set.uri_with("appName=one")).await;
    let hits = set.proxy().delay("one", "findAndModify", millis(700));
    let error = seal.acquire("k").ttl(millis(500)).await.unwrap_err();
    assert!(error.to_string().contains("choose a longer ttl"), "{error}");
    assert!(hits.count() >= 2, "it asked again");
    set.proxy().heal();
    let lease = seal.acquire("k").ttl(millis(500)).await;
    assert!(lease.is_ok() || matches!(lease, Err(Error::Held { .. })), "{lease:?}");
}

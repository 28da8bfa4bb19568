//! A reply that never came is not a lost lease: every request can be sent again.

use mongoseal::{Error, Mongoseal, Released};
use mongoseal_test_support::{How, Peer, ReplicaSet};

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

        let hits = set.proxy().swallow_reply("one", "findAndModify", 1);
        assert_eq!(lease.release().await.unwrap(), Released::Ours, "the release that was not heard of was ours");
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

    // Cut off before it asks, so that what it sent arrives when the network is healed: a ghost.
    set.proxy().cut_both(&Peer::client("one"), &Peer::Anyone, How::Blackhole);
    let began = std::time::Instant::now();
    let error = seal.acquire("k").ttl(secs(3)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(began.elapsed() < millis(1250), "{:?}", began.elapsed());
    set.proxy().heal();
    let healed = std::time::Instant::now();
    let mut held = 0;
    let free = loop {
        match other.acquire("k").await {
            Ok(lease) => {
                lease.release().await.unwrap();
                // The ghost may still be on its way.
                if healed.elapsed() > secs(4) {
                    break healed.elapsed();
                }
            }
            Err(Error::Held { .. }) => held += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(healed.elapsed() < secs(10), "the key is held by nobody");
        tokio::time::sleep(millis(50)).await;
    };
    println!("free after {free:?}, seen held {held} times");
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

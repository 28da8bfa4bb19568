//! Leaders, on paused time.

use std::future::IntoFuture;

use mongoseal::{Error, LossCause, Mongoseal, Released};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn candidates_lead_in_the_order_they_came_and_others_see_who() {
    let store = Faulty::new();
    let first = store.seal().campaign("scheduler").value("one").await.unwrap();
    let mut rest = Vec::new();
    for value in ["two", "three"] {
        rest.push(tokio::spawn(store.seal().campaign("scheduler").value(value).into_future()));
        tokio::time::sleep(millis(10)).await;
    }
    let seen = |leader: Option<mongoseal::Incumbent>| leader.map(|leader| (leader.value, leader.token));
    let leads = || async { seen(store.seal().leader("scheduler").await.unwrap()) };
    let mut now = first;
    for next in rest {
        let value = if leads().await.unwrap().0 == "one" { "two" } else { "three" };
        assert_eq!(leads().await.unwrap().1, now.token());
        let token = now.token();
        assert_eq!(now.resign().await.unwrap(), Released::Ours);
        now = next.await.unwrap().unwrap();
        assert!(now.token() > token);
        assert_eq!(leads().await, Some((value.into(), now.token())));
    }
    drop(now);
    tokio::time::sleep(millis(1)).await;
    assert_eq!(leads().await, None, "whoever drops its leadership resigns");
    assert_eq!(store.seal().leader("never").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_proclaims_another_value_with_the_same_token() {
    let store = Faulty::new();
    let leader = store.seal().campaign("k").value("one").await.unwrap();
    leader.proclaim("$$two").await.unwrap();
    let seen = store.seal().leader("k").await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.token, &seen.owner), ("$$two", leader.token(), leader.lease().owner()));
    assert!(matches!(leader.proclaim("x".repeat(5_000)).await, Err(Error::Invalid { .. })));
    assert_eq!(store.seal().leader("k").await.unwrap().unwrap().value, "$$two");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_has_stopped_before_the_next_one_leads() {
    let store = Faulty::new();
    let clock = tokio::time::Instant::now();
    let cut_off = store.seal();
    let leader = cut_off.campaign("k").ttl(secs(30)).await.unwrap();
    let next = tokio::spawn(store.seal().campaign("k").ttl(secs(30)).into_future());
    tokio::time::sleep(millis(100)).await;
    // Of its refreshes none arrives; the other candidate reaches the store.
    store.script(|call| matches!(call, Call::Apply(mongoseal::record::Request::Refresh(_))).then_some(Fault::Fail));
    let done = leader.run(std::future::pending::<()>()).await;
    let stopped = clock.elapsed();
    assert!(matches!(done, Err(Error::Lost { cause: LossCause::Expired, .. })));
    assert!(stopped > secs(24) && stopped <= secs(25), "{stopped:?}");
    let next = next.await.unwrap().unwrap();
    let followed = clock.elapsed();
    assert!(followed >= secs(30) && followed < secs(31), "{followed:?}");
    assert!(next.token() > leader.token());
}

#[tokio::test(start_paused = true)]
async fn durations_that_do_not_fit_are_refused_before_anything_is_sent() {
    let store = Faulty::new();
    let campaign = || store.seal().campaign("k").ttl(secs(30)).wait(secs(1));
    for (bad, says) in [
        (campaign().stop_within(secs(16)), "cannot stop 16s earlier: choose up to half the ttl"),
        (campaign().stop_within(secs(10)).refresh_every(secs(11)), "choose up to half the ttl"),
        (campaign().refresh_every(secs(0)), "cannot be refreshed every 0ns"),
        (campaign().ttl(secs(0)), "a ttl must be from 10 milliseconds"),
        (campaign().ttl(secs(48 * 3600)), "longer than idle records are kept"),
        (campaign().value("x".repeat(5_000)), "at most 4096 bytes"),
    ] {
        let error = bad.await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{error}");
    }
    assert!(store.requests().is_empty());
    for good in [campaign().stop_within(secs(15)), campaign().stop_within(secs(0)).refresh_every(secs(15))] {
        good.await.unwrap().resign().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_campaign_waits_no_longer_than_it_says_and_one_that_is_dropped_withdraws() {
    let store = Faulty::new();
    let leader = store.seal().campaign("k").await.unwrap();
    let other = store.seal();
    assert!(matches!(other.campaign("k").wait(secs(5)).await, Err(Error::Held { .. })));
    assert!(tokio::time::timeout(secs(5), other.campaign("k").into_future()).await.is_err());
    leader.resign().await.unwrap();
    tokio::time::sleep(millis(1)).await;
    assert_eq!(other.leader("k").await.unwrap(), None);
    assert!(matches!(Mongoseal::in_memory().campaign("").await, Err(Error::Invalid { .. })));
}

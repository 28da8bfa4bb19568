//! Leases whose holder lets other holders in.

use mongoseal::{Error, Lease, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Result, record::Request};
use tokio::task::JoinHandle;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

fn waiting(seal: &Mongoseal, shared: bool) -> JoinHandle<Result<Lease>> {
    let acquire = seal.acquire("k").wait(secs(600));
    tokio::spawn(if shared { acquire.shared() } else { acquire }.into_future())
}

/// How many downgrades were sent.
fn sent(store: &Faulty) -> usize {
    store.requests().iter().filter(|request| matches!(request, Request::Downgrade(_))).count()
}

#[tokio::test(start_paused = true)]
async fn waiting_sharers_are_granted_the_key_in_the_order_of_the_queue_and_at_once() {
    let store = Faulty::new();
    let writer = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    let mut queue = Vec::new();
    for shared in [true, true, false, true] {
        queue.push(waiting(&store.seal(), shared));
        tokio::time::sleep(millis(10)).await;
    }
    let (id, token, remaining) = (writer.id(), writer.token(), writer.remaining());
    let began = tokio::time::Instant::now();
    writer.downgrade(u32::MAX).await.unwrap();
    let [one, two, excluding, last] = <[_; 4]>::try_from(queue).unwrap();
    let (one, two) = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    assert!(began.elapsed() < millis(5), "{:?}", began.elapsed());
    assert!(token < one.token() && one.token() < two.token());
    assert_eq!((writer.id(), writer.token(), writer.state()), (id, token, LeaseState::Held));
    assert!(writer.remaining() <= remaining, "the expiry stays");
    tokio::time::sleep(secs(120)).await;
    assert!(!excluding.is_finished() && !last.is_finished());
    writer.verify().await.unwrap();
    assert_eq!(writer.release().await.unwrap(), ReleaseOutcome::Released);
    drop((one, two));
    let excluding = excluding.await.unwrap().unwrap();
    assert!(!last.is_finished());
    drop(excluding);
    drop(last.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_to_the_same_limit_has_the_effect_of_one_and_another_limit_is_refused() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    for holders in [0, 1] {
        let error = lease.downgrade(holders).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("2 or more"), "{error}");
    }
    assert_eq!(sent(&store), 0);
    lease.downgrade(3).await.unwrap();
    lease.downgrade(3).await.unwrap();
    for holders in [2, 4, u32::MAX] {
        let error = lease.downgrade(holders).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("with up to 3 holders already"), "{error}");
    }
    let sharer = store.seal().acquire("s").shared().await.unwrap();
    sharer.downgrade(u32::MAX).await.unwrap();
    assert!(matches!(sharer.downgrade(2).await, Err(Error::Invalid { .. })));
    lease.verify().await.unwrap();
    assert_eq!(store.records.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_whose_answer_was_lost_is_made_once() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    let sharers = [waiting(&store.seal(), true), waiting(&store.seal(), true)];
    tokio::time::sleep(millis(10)).await;
    store.first(2, |call| matches!(call, Call::Apply(Request::Downgrade(_))), Fault::LoseReply);
    lease.downgrade(2).await.unwrap();
    assert_eq!(sent(&store), 3);
    let [first, second] = sharers;
    let first = first.await.unwrap().unwrap();
    tokio::time::sleep(secs(60)).await;
    assert!(!second.is_finished(), "two hold it");
    drop(first);
    drop(second.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_is_lost_and_the_key_stays_as_it_is() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    store.seal().revoke("k").await.unwrap();
    let next = store.seal().acquire("k").await.unwrap();
    let error = lease.downgrade(2).await.unwrap_err();
    assert!(matches!(error, Error::Lost { cause: LossCause::Revoked { .. }, .. }), "{error}");
    assert!(matches!(lease.downgrade(2).await, Err(Error::Lost { .. })));
    assert!(matches!(store.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    next.verify().await.unwrap();
    // A stale copy knows nothing of the lease: a read says that it holds.
    let (lease, mut stale) = (next, true);
    store.script(move |call| match call {
        Call::Apply(Request::Downgrade(_)) if std::mem::take(&mut stale) => Some(Fault::Stale),
        _ => None,
    });
    lease.downgrade(2).await.unwrap();
    drop(store.seal().acquire("k").shared().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_meanwhile_is_lost_before_the_operation_timeout() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(3)).without_refresh().await.unwrap();
    let (began, deadline) = (tokio::time::Instant::now(), lease.remaining());
    store.always(Fault::Fail);
    let error = lease.downgrade(2).await.unwrap_err();
    assert!(matches!(error, Error::Lost { cause: LossCause::Expired, .. }), "{error}");
    assert!(began.elapsed() <= deadline + millis(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_unavailable_and_the_lease_lives_on() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(60)).await.unwrap();
    store.script(|call| matches!(call, Call::Apply(Request::Downgrade(_))).then_some(Fault::Fail));
    let began = tokio::time::Instant::now();
    assert!(matches!(lease.downgrade(2).await, Err(Error::Unavailable { .. })));
    assert!(began.elapsed() <= secs(10), "{:?}", began.elapsed());
    store.heal();
    assert!(matches!(store.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    lease.downgrade(2).await.unwrap();
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_later_sharer_takes_nothing_from_a_downgraded_lease() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    lease.downgrade(3).await.unwrap();
    let sharer = store.seal().acquire("k").shared().ttl(secs(600)).await.unwrap();
    assert!(sharer.token() > lease.token());
    // The record does not tell how the lease ended, and its version is that of the sharer.
    store.first(1, |call| matches!(call, Call::Apply(Request::Release(_))), Fault::LoseReply);
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn it_is_resumed_and_still_shares_the_key() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    lease.downgrade(3).await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    lease.orphan();
    let again = store.seal().resume("k", id, token).await.unwrap();
    let sharer = store.seal().acquire("k").shared_up_to(3).await.unwrap();
    again.verify().await.unwrap();
    assert!(again.is_valid() && sharer.token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_watch_reports_the_sharers_and_no_change_of_the_lease() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = seal.acquire("k").await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().into_event().unwrap().token, lease.token());
    lease.downgrade(2).await.unwrap();
    let sharer = seal.acquire("k").shared().await.unwrap();
    let event = events.next().await.unwrap().unwrap().into_event().unwrap();
    assert_eq!(event.token, sharer.token());
    assert!(format!("{:?}", event.kind).starts_with("Granted"), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_dropped_half_way_may_be_made_and_the_lease_stays() {
    for (fault, is_made) in [(Fault::Delay(secs(2)), true), (Fault::DelayReply(secs(2)), true), (Fault::Fail, false)] {
        let store = Faulty::new();
        let lease = store.seal().acquire("k").ttl(secs(60)).await.unwrap();
        store.script(move |call| matches!(call, Call::Apply(Request::Downgrade(_))).then_some(fault));
        assert!(tokio::time::timeout(millis(10), lease.downgrade(2)).await.is_err(), "it is dropped half-way");
        tokio::time::sleep(secs(20)).await;
        assert_eq!(store.seal().acquire("k").shared().await.is_ok(), is_made, "{fault:?}");
        lease.verify().await.unwrap();
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    }
    // One that was not polled is not sent.
    let store = Faulty::new();
    let lease = store.seal().acquire("k").await.unwrap();
    drop(lease.downgrade(2));
    assert_eq!(sent(&store), 0);
}

#[tokio::test]
async fn its_future_can_be_sent_to_another_thread() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").await.unwrap();
    tokio::spawn(async move { lease.downgrade(2).await }).await.unwrap().unwrap();
}

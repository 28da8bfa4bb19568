//! Keys that several hold at once, and leases that do not expire.

use std::{sync::Arc, time::Duration};

use mongoseal::{
    Error, Lease, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Result, record::Request, store::MemoryStore,
};
use tokio::task::JoinHandle;

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[allow(clippy::needless_pass_by_value, reason = "a lease in it is dropped")]
fn held(result: Result<Lease>) -> bool {
    matches!(result, Err(Error::Held { .. }))
}

#[tokio::test(start_paused = true)]
async fn shared_and_exclusive_exclude_each_other_and_each_sharer_has_a_larger_token() {
    let seal = Mongoseal::in_memory();
    let first = seal.acquire("k").shared().await.unwrap();
    let second = seal.acquire("k").shared().await.unwrap();
    assert!(second.token() > first.token());
    assert!(held(seal.acquire("k").await));
    first.release().await.unwrap();
    assert!(held(seal.acquire("k").await));
    let token = second.token();
    second.release().await.unwrap();
    let alone = seal.acquire("k").await.unwrap();
    assert!(alone.token() > token);
    assert!(held(seal.acquire("k").shared().await));
}

#[tokio::test(start_paused = true)]
async fn sharers_are_no_more_than_any_of_them_allows() {
    let seal = Mongoseal::in_memory();
    let mut holders = Vec::new();
    for _ in 0..3 {
        holders.push(seal.acquire("k").shared_up_to(3).await.unwrap());
    }
    assert!(held(seal.acquire("k").shared_up_to(3).await));
    assert!(held(seal.acquire("k").shared().await), "the others allow three");
    holders.pop();
    assert!(held(seal.acquire("k").shared_up_to(2).await), "it allows two itself");
    drop(seal.acquire("k").shared().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn one_holder_at_most_is_exclusive_and_none_is_refused() {
    let seal = Mongoseal::in_memory();
    let error = seal.acquire("k").shared_up_to(0).await.unwrap_err();
    assert!(
        matches!(error, Error::Invalid { .. }) && error.to_string().contains("`shared_up_to` cannot be 0"),
        "{error}"
    );
    let _alone = seal.acquire("k").shared_up_to(1).await.unwrap();
    assert!(held(seal.acquire("k").shared_up_to(1).await));
    assert!(held(seal.acquire("k").shared_up_to(u32::MAX).await));
}

#[tokio::test(start_paused = true)]
async fn an_expired_sharer_s_place_is_free_at_once_and_goes_to_the_first_in_line() {
    let store = Faulty::new();
    let seal = store.seal();
    let _kept = seal.acquire("k").shared_up_to(2).ttl(secs(60)).await.unwrap();
    std::mem::forget(seal.acquire("k").shared_up_to(2).ttl(secs(5)).without_refresh().await.unwrap());
    let began = tokio::time::Instant::now();
    let next = seal.acquire("k").shared_up_to(2).wait(secs(60)).await.unwrap();
    assert!(began.elapsed() >= secs(5) + GRACE && began.elapsed() <= millis(5_010) + GRACE, "{:?}", began.elapsed());
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn neither_readers_nor_writers_starve() {
    let store = Faulty::new();
    let reader = store.seal().acquire("k").shared().await.unwrap();
    let wait = |shared: bool| -> JoinHandle<Result<Lease>> {
        let asked = store.seal().acquire("k").wait(secs(600));
        tokio::spawn(if shared { asked.shared() } else { asked }.into_future())
    };
    let mut waiting = Vec::new();
    for shared in [false, true, true, false] {
        waiting.push(wait(shared));
        tokio::time::sleep(millis(10)).await;
    }
    tokio::time::sleep(secs(60)).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "readers wait behind a writer that waits");
    assert!(held(store.seal().acquire("k").shared().await), "and so does one that does not queue");
    reader.release().await.unwrap();
    let [writer, one, two, last] = <[_; 4]>::try_from(waiting).unwrap();
    let writer = writer.await.unwrap().unwrap();
    tokio::time::sleep(secs(5)).await;
    assert!(!one.is_finished() && !two.is_finished());
    writer.release().await.unwrap();
    let readers = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    tokio::time::sleep(secs(5)).await;
    assert!(!last.is_finished());
    drop(readers);
    drop(last.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_lasts_until_it_is_released_and_shows_as_such() {
    let mut store = Faulty::new();
    store.records = MemoryStore::new(secs(600));
    let seal = store.build(Mongoseal::builder());
    let lease = seal.acquire("k").without_expiry().await.unwrap();
    assert_eq!(lease.remaining(), Duration::MAX);
    // Longer than the store keeps idle records, and with the store away all the time.
    store.always(Fault::Fail);
    tokio::time::sleep(secs(3600)).await;
    assert!(lease.is_valid());
    assert_eq!(lease.state(), LeaseState::AtRisk);
    store.heal();
    tokio::time::sleep(secs(20)).await;
    assert_eq!(lease.state(), LeaseState::Held);
    let error = seal.acquire("k").await.unwrap_err();
    assert!(matches!(error, Error::Held { remaining: Duration::MAX, .. }));
    assert!(error.to_string().contains("without expiry"), "{error}");
    assert!(matches!(lease.extend(secs(5)).await, Err(Error::Invalid { .. })));
    let token = lease.token();
    lease.release().await.unwrap();
    assert!(seal.acquire("k").await.unwrap().token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_is_refreshed_now_and_then_and_not_at_once() {
    let store = Faulty::new();
    // The clock does not begin now.
    tokio::time::sleep(secs(60)).await;
    let _lease = store.seal().acquire("k").without_expiry().await.unwrap();
    // One that grants the key for a while, and one that makes it for ever.
    assert_eq!(store.requests().len(), 2);
    tokio::time::sleep(millis(9_990)).await;
    assert_eq!(store.requests().len(), 2);
    tokio::time::sleep(secs(11)).await;
    assert_eq!(store.requests().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_for_a_lease_without_expiry_is_given_one() {
    let store = Faulty::new();
    let holder = store.seal().acquire("k").await.unwrap();
    let waiting = tokio::spawn(store.seal().acquire("k").without_expiry().wait(secs(60)).into_future());
    tokio::time::sleep(secs(5)).await;
    holder.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert_eq!(lease.remaining(), Duration::MAX);
    // Not only for as long as a waiter keeps what it was handed.
    store.always(Fault::Hang);
    tokio::time::sleep(secs(3600)).await;
    store.heal();
    assert!(lease.is_valid());
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ttl_and_no_expiry_contradict_each_other() {
    let seal = Mongoseal::in_memory();
    let error = seal.acquire("k").ttl(secs(5)).without_expiry().await.unwrap_err();
    assert!(error.to_string().contains("leave one of them out"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_that_is_deleted_is_lost_with_the_next_refresh() {
    let store = Faulty::new();
    let lease = Arc::new(store.seal().acquire("k").without_expiry().await.unwrap());
    store.records.remove(lease.key());
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Removed });
}

#[tokio::test(start_paused = true)]
async fn an_acquire_without_expiry_that_is_lost_or_late_holds_nothing_for_ever() {
    for fault in [Fault::LoseReply, Fault::Delay(secs(30))] {
        let store = Faulty::new();
        let mut asked = false;
        store.script(move |call| match call {
            Call::Apply(Request::Acquire(_)) if !std::mem::replace(&mut asked, true) => Some(fault),
            Call::Prepare => None,
            _ => Some(Fault::Fail),
        });
        assert!(store.seal().acquire("k").without_expiry().await.is_err());
        tokio::time::sleep(secs(60)).await;
        store.heal();
        tokio::time::sleep(secs(60)).await;
        drop(store.seal().acquire("k").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_sharer_s_larger_token_takes_nothing_from_another() {
    let store = Faulty::new();
    let seal = store.seal();
    let one = seal.acquire("k").shared().await.unwrap();
    let _two = seal.acquire("k").shared().await.unwrap();
    store.first(1, |call| matches!(call, Call::Apply(Request::Release(_))), Fault::LoseReply);
    assert_eq!(one.release().await.unwrap(), ReleaseOutcome::Released);
}

//! The value of a key.

use mongoseal::{
    Error, Json, KeyValue, Lease, LossCause, Mongoseal, ReleaseOutcome, action::PutValue, record::Request,
    store::MemoryStore,
};
use serde_json::json;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
    watch::count,
};

/// How many writes of a value were sent.
fn writes(store: &Faulty) -> usize {
    store.requests().iter().filter(|request| matches!(request, Request::PutValue(_))).count()
}

async fn content(lease: &Lease) -> Option<u64> {
    lease.value::<u64>().await.unwrap().map(|value| value.content)
}

#[tokio::test(start_paused = true)]
async fn a_value_survives_a_release_an_expiry_a_revocation_and_a_transfer() {
    let store = MemoryStore::default();
    let seal = || Mongoseal::in_memory_on(&store);
    let first = seal().acquire("k").await.unwrap();
    assert_eq!(content(&first).await, None);
    first.put_value(&1_u64).await.unwrap();
    let token = first.token();
    first.release().await.unwrap();

    let second = seal().acquire("k").await.unwrap();
    let KeyValue { content: one, token: by, at, .. } = second.value::<u64>().await.unwrap().unwrap();
    assert_eq!((one, by), (1, token));
    assert!(at <= second.value::<u64>().await.unwrap().unwrap().at, "the same by a read");
    second.put_value(&2_u64).await.unwrap();
    second.orphan();
    tokio::time::sleep(secs(60)).await;

    let third = seal().acquire("k").await.unwrap();
    assert_eq!(content(&third).await, Some(2));
    third.put_value(&3_u64).await.unwrap();
    seal().revoke("k").await.unwrap();
    assert!(matches!(third.put_value(&9_u64).await, Err(Error::Lost { .. })));

    let fourth = seal().acquire("k").await.unwrap();
    assert_eq!(content(&fourth).await, Some(3));
    fourth.put_value(&4_u64).await.unwrap();
    let to = mongoseal::LeaseId::random();
    let token = fourth.transfer(to).await.unwrap();
    let fifth = seal().resume("k", to, token).await.unwrap();
    assert_eq!(content(&fifth).await, Some(4));
    fifth.put_value(&5_u64).await.unwrap();
    assert_eq!(content(&fifth).await, Some(5));
    let inspected = seal().inspect("k").await.unwrap().unwrap().value.unwrap();
    assert_eq!((inspected.content.to_string().as_str(), inspected.token), ("5", fifth.token()));
    let listed = seal().leases().await.unwrap().next().await.unwrap().unwrap().value;
    assert_eq!(listed, Some(inspected));
    fifth.clear_value().await.unwrap();
    assert_eq!(content(&fifth).await, None);
    assert_eq!(seal().inspect("k").await.unwrap().unwrap().value, None);
}

#[tokio::test(start_paused = true)]
async fn the_first_reading_after_a_direct_grant_sends_nothing_and_later_ones_read() {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").await.unwrap();
    lease.put_value(&1_u64).await.unwrap();
    let waiter = tokio::spawn(store.seal().acquire("k").wait(secs(600)).into_future());
    tokio::time::sleep(millis(20)).await;
    lease.release().await.unwrap();
    let handed_over = waiter.await.unwrap().unwrap();
    let reads = count(&store, |call| (matches!(call, Call::Read), None));
    assert_eq!(content(&handed_over).await, Some(1));
    assert_eq!(reads(), 1, "after a hand-over");
    handed_over.release().await.unwrap();
    let direct = seal.acquire("k").await.unwrap();
    for expected in [1, 2] {
        assert_eq!(content(&direct).await, Some(1));
        assert_eq!(reads(), expected);
    }
    direct.release().await.unwrap();
    let direct = seal.acquire("k").await.unwrap();
    direct.put_value(&2_u64).await.unwrap();
    assert_eq!(content(&direct).await, Some(2), "its own value");
    assert_eq!(reads(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_made_once_and_a_delayed_one_changes_nothing() {
    let (store, lease) = Faulty::held().await;
    let mut faults = vec![Fault::Delay(secs(8)), Fault::LoseReply];
    store.script(move |call| match call {
        Call::Apply(Request::PutValue(_)) => faults.pop(),
        _ => None,
    });
    lease.put_value(&1_u64).await.unwrap();
    assert!(writes(&store) >= 3, "{}", writes(&store));
    lease.put_value(&2_u64).await.unwrap();
    tokio::time::sleep(secs(20)).await;
    assert_eq!(content(&lease).await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn two_writes_at_once_are_both_confirmed_and_one_of_them_stays() {
    let (store, lease) = Faulty::held().await;
    let (one, two) = tokio::join!(lease.put_value(&1_u64).into_future(), lease.put_value(&2_u64).into_future());
    one.unwrap();
    two.unwrap();
    assert!(matches!(content(&lease).await, Some(1 | 2)));
    assert_eq!(writes(&store), 3, "the second names the first");
}

#[tokio::test(start_paused = true)]
async fn another_process_writes_under_the_lease_by_its_id_and_its_token() {
    let (store, lease) = Faulty::held().await;
    lease.put_value(&1_u64).await.unwrap();
    let child = store.seal();
    child.put_value("k", lease.id(), lease.token(), &2_u64).await.unwrap();
    assert_eq!(content(&lease).await, Some(2));
    lease.put_value(&3_u64).await.unwrap();
    assert_eq!(content(&lease).await, Some(3));
    assert!(lease.is_valid() && lease.verify().await.is_ok());
    let (id, token) = (lease.id(), lease.token());
    lease.release().await.unwrap();
    let error = child.put_value("k", id, token, &4_u64).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(matches!(child.put_value("", id, token, &4_u64).await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_value_is_one_write_also_if_its_answer_is_lost() {
    let store = Faulty::new();
    for loses in [false, true] {
        let lease = store.seal().acquire("k").await.unwrap();
        let (before, mut is_lost) = (store.requests().len(), !loses);
        let reads = count(&store, move |call| {
            let loses = matches!(call, Call::Apply(Request::PutValue(_))) && !std::mem::replace(&mut is_lost, true);
            (matches!(call, Call::Read), loses.then_some(Fault::LoseReply))
        });
        lease.release_with_value("done").await.unwrap();
        assert_eq!(store.requests().len() - before, if loses { 2 } else { 1 });
        assert_eq!(reads(), usize::from(loses), "the second write finds the first, and writes nothing");
        store.heal();
        let next = store.seal().acquire("k").await.unwrap();
        assert_eq!(next.value::<String>().await.unwrap().unwrap().content, "done");
        next.clear_value().await.unwrap();
        next.release().await.unwrap();
    }
}

/// The outcome outlasts the future of the first call.
#[tokio::test(start_paused = true)]
async fn a_release_after_a_release_with_a_value_tells_how_that_one_ended() {
    let store = Faulty::new();
    // The first call is awaited to its end, or dropped half-way.
    for is_dropped in [false, true] {
        let release = async |lease: Lease| {
            store.always(Fault::Delay(secs(2)));
            let at_most = secs(if is_dropped { 1 } else { 60 });
            let released = tokio::time::timeout(at_most, lease.release_with_value("done"));
            assert_eq!(released.await.is_err(), is_dropped);
            let outcome = lease.release().await.unwrap();
            store.heal();
            outcome
        };
        assert_eq!(release(store.seal().acquire("k").await.unwrap()).await, ReleaseOutcome::Released);
        let next = store.seal().acquire("k").await.unwrap();
        assert_eq!(next.value::<String>().await.unwrap().unwrap().content, "done");
        next.clear_value().await.unwrap();

        // The lease was lost before. The one who revoked it sees no value.
        store.seal().revoke("k").await.unwrap();
        let outcome = release(next).await;
        let is_revoked = matches!(outcome, ReleaseOutcome::AlreadyLost { cause: LossCause::Revoked { .. } });
        assert!(is_revoked, "{outcome:?}");
        assert_eq!(store.seal().inspect("k").await.unwrap().unwrap().value, None);
    }

    // No answer has come in time, and none comes later.
    let lease = store.seal().acquire("k").await.unwrap();
    store.always(Fault::Hang);
    let error = lease.release_with_value("lost").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_value_that_cannot_be_stored_leaves_the_lease_held() {
    let (store, lease) = Faulty::held().await;
    let before = store.requests().len();
    let too_long = lease.release_with_value(&1).keep_for(PutValue::MAX_KEEP + secs(1));
    let too_large = lease.release_with_value(&"x".repeat(64 * 1024));
    drop(lease.release_with_value(&1));
    for refused in [too_long, too_large] {
        let error = refused.await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && lease.is_valid(), "{error}");
    }
    assert_eq!(store.requests().len(), before, "nothing was sent");
    lease.release_with_value(&1).await.unwrap();
    assert!(matches!(lease.check(), Err(Error::Ended { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_value_that_was_not_stored_is_an_error() {
    let (store, seal) = Faulty::open();
    let lease = seal.acquire("k").await.unwrap();
    store.seal().revoke("k").await.unwrap();
    let error = lease.release_with_value(&1).await.unwrap_err();
    assert!(matches!(error, Error::Lost { cause: LossCause::Revoked { .. }, .. }), "{error}");

    let shared = seal.acquire("k").shared().await.unwrap();
    let error = shared.put_value(&1).await.unwrap_err();
    assert!(error.to_string().contains("shares"), "{error}");
    assert!(matches!(shared.release_with_value(&1).await, Err(Error::Invalid { .. })));
    shared.verify().await.unwrap();
    shared.release().await.unwrap();

    let lease = seal.acquire("k").await.unwrap();
    seal.shutdown().await;
    assert!(matches!(lease.release_with_value(&1).await, Err(Error::Ended { .. })));
    assert_eq!(store.seal().inspect("k").await.unwrap().unwrap().value, None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_wrote_nothing_is_not_believed() {
    let (store, lease) = Faulty::held().await;
    store.first(2, |call| matches!(call, Call::Apply(Request::PutValue(_))), Fault::Stale);
    lease.put_value(&1_u64).await.unwrap();
    assert_eq!(content(&lease).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_stored_is_refused_before_anything_is_sent() {
    let (store, lease) = Faulty::held().await;
    let too_big = "x".repeat(Json::MAX_BYTES);
    for refused in [
        lease.put_value(&too_big).await,
        lease.put_value(&u64::MAX).await,
        lease.put_value(&json!({ "a\0": 1 })).await,
        lease.put_value(&1).keep_for(PutValue::MAX_KEEP + secs(1)).await,
    ] {
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    assert_eq!(writes(&store), 0);
    lease.put_value("text").await.unwrap();
    let error = lease.value::<u64>().await.unwrap_err();
    assert!(error.to_string().contains("another form"), "{error}");
    assert_eq!(lease.value::<Json>().await.unwrap().unwrap().content.to_string(), r#""text""#);
}

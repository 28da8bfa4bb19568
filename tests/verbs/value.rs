//! The value of a key.

use mongoseal::{
    Error, Json, Lease, LossCause, Mongoseal, ReleaseOutcome, action::PutValue, record::Request, store::MemoryStore,
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
    let mut before = None;
    for (number, end) in (1_u64..).zip(["release", "expiry", "revocation", "transfer"]) {
        let lease = seal().acquire("k").await.unwrap();
        let found = lease.value::<u64>().await.unwrap().map(|value| (value.content, value.token));
        assert_eq!(found, before, "before the {end}");
        lease.put_value(&number).await.unwrap();
        before = Some((number, lease.token()));
        match end {
            "release" => drop(lease.release().await.unwrap()),
            "expiry" => {
                lease.orphan();
                tokio::time::sleep(secs(60)).await;
            }
            "revocation" => {
                seal().revoke("k").await.unwrap();
                assert!(matches!(lease.put_value(&9_u64).await, Err(Error::Lost { .. })));
            }
            _ => {
                let to = mongoseal::LeaseId::random();
                let token = lease.transfer(to).await.unwrap();
                let next = seal().resume("k", to, token).await.unwrap();
                assert_eq!(content(&next).await, Some(number));
                next.put_value(&5_u64).await.unwrap();
                let inspected = seal().inspect("k").await.unwrap().unwrap().value.unwrap();
                assert_eq!((inspected.content.to_string().as_str(), inspected.token), ("5", token));
                let listed = seal().leases().await.unwrap().next().await.unwrap().unwrap().value;
                assert_eq!(listed, Some(inspected));
                next.clear_value().await.unwrap();
                assert_eq!(content(&next).await, None);
                assert_eq!(seal().inspect("k").await.unwrap().unwrap().value, None);
            }
        }
    }
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
async fn a_write_without_an_answer_to_believe_is_made_once_and_a_delayed_one_changes_nothing() {
    for mut faults in [vec![Fault::Delay(secs(8)), Fault::LoseReply], vec![Fault::Stale, Fault::Stale]] {
        let (store, lease) = Faulty::held().await;
        store.script(move |call| match call {
            Call::Apply(Request::PutValue(_)) => faults.pop(),
            _ => None,
        });
        lease.put_value(&1_u64).await.unwrap();
        assert!(writes(&store) >= 3, "{}", writes(&store));
        assert_eq!(content(&lease).await, Some(1));
        lease.put_value(&2_u64).await.unwrap();
        tokio::time::sleep(secs(20)).await;
        assert_eq!(content(&lease).await, Some(2));
    }
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
    let (child, id, token) = (store.seal(), lease.id(), lease.token());
    lease.put_value(&1_u64).await.unwrap();
    child.put_value("k", id, token, &2_u64).await.unwrap();
    assert_eq!(content(&lease).await, Some(2));
    lease.put_value(&3_u64).await.unwrap();
    assert_eq!(content(&lease).await, Some(3));
    lease.release().await.unwrap();
    let error = child.put_value("k", id, token, &4_u64).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(matches!(child.put_value("", id, token, &4_u64).await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_value_is_one_write_also_if_its_answer_is_lost() {
    for loses in [0, 1] {
        let (store, lease) = Faulty::held().await;
        let (before, mut left) = (store.requests().len(), loses);
        let reads = count(&store, move |call| {
            let meets = left > 0 && matches!(call, Call::Apply(Request::PutValue(_)));
            left -= usize::from(meets);
            (matches!(call, Call::Read), meets.then_some(Fault::LoseReply))
        });
        lease.release_with_value("done").await.unwrap();
        assert_eq!(store.requests().len() - before, 1 + loses);
        assert_eq!(reads(), loses, "the second write finds the first, and writes nothing");
        let next = store.seal().acquire("k").await.unwrap();
        assert_eq!(next.value::<String>().await.unwrap().unwrap().content, "done");
    }
}

/// The outcome outlasts the future of the first call.
#[tokio::test(start_paused = true)]
async fn a_release_after_a_release_with_a_value_tells_how_that_one_ended() {
    // The first call is awaited to its end, or dropped half-way. No answer comes in time, or later, if the store hangs.
    for (fault, at_most) in
        [(Fault::Delay(secs(2)), secs(60)), (Fault::Delay(secs(2)), secs(1)), (Fault::Hang, secs(60))]
    {
        for is_lost in [false, true] {
            let (store, lease) = Faulty::held().await;
            if is_lost {
                store.seal().revoke("k").await.unwrap();
            }
            store.always(fault);
            let first = tokio::time::timeout(at_most, lease.release_with_value("done")).await;
            assert_eq!(first.is_err(), at_most == secs(1));
            let outcome = lease.release().await.unwrap();
            store.heal();
            let value = store.seal().inspect("k").await.unwrap().unwrap().value.map(|value| value.content.to_string());
            if matches!(fault, Fault::Hang) {
                assert!(matches!(first, Ok(Err(Error::Unavailable { .. }))), "{first:?}");
                assert_eq!((outcome, value), (ReleaseOutcome::Unknown, None));
            } else if is_lost {
                // The one who revoked it sees no value.
                let is_revoked = matches!(outcome, ReleaseOutcome::AlreadyLost { cause: LossCause::Revoked { .. } });
                assert!(is_revoked && value.is_none(), "{outcome:?} {value:?}");
            } else {
                assert_eq!((outcome, value.as_deref()), (ReleaseOutcome::Released, Some("\"done\"")));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_stored_is_refused_before_anything_is_sent_and_leaves_the_lease_held() {
    let (store, lease) = Faulty::held().await;
    let before = store.requests().len();
    let too_big = "x".repeat(Json::MAX_BYTES);
    for refused in [
        lease.put_value(&too_big).await,
        lease.put_value(&u64::MAX).await,
        lease.put_value(&json!({ "a\0": 1 })).await,
        lease.put_value(&1).keep_for(PutValue::MAX_KEEP + secs(1)).await,
        lease.release_with_value(&too_big).await,
        lease.release_with_value(&1).keep_for(PutValue::MAX_KEEP + secs(1)).await,
    ] {
        assert!(matches!(refused, Err(Error::Invalid { .. })) && lease.is_valid(), "{refused:?}");
    }
    drop(lease.release_with_value(&1));
    assert_eq!(store.requests().len(), before, "nothing was sent");
    lease.put_value("text").await.unwrap();
    let error = lease.value::<u64>().await.unwrap_err();
    assert!(error.to_string().contains("another form"), "{error}");
    assert_eq!(lease.value::<Json>().await.unwrap().unwrap().content.to_string(), r#""text""#);
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
    seal.shutdown().await;
    assert!(matches!(shared.release_with_value(&1).await, Err(Error::Ended { .. })));
    assert_eq!(store.seal().inspect("k").await.unwrap().unwrap().value, None);
}

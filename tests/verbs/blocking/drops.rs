//! What is dropped, and when the threads end.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use mongoseal::{Error, blocking::Mongoseal, record::Request};

use super::{HASTY, SOON, build, eventually, on, until_refreshed};
use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

fn is_release(call: &Call<'_>) -> bool {
    matches!(call, Call::Apply(Request::Release(_)))
}

/// What is dropped when the runtime of a handle ends: a task keeps it that has no other end.
fn end_of(seal: &Mongoseal) -> Weak<()> {
    let kept = Arc::new(());
    let end = Arc::downgrade(&kept);
    let forever = async move {
        std::future::pending::<()>().await;
        drop(kept);
    };
    let spawn = async {
        tokio::spawn(forever);
        Ok::<_, Error>(())
    };
    seal.block_on(spawn).unwrap();
    end
}

#[test]
fn a_dropped_lease_is_released() {
    let seal = Mongoseal::in_memory().unwrap();
    for _ in 0..100 {
        drop(seal.acquire("k").ttl(secs(3_600)).run().unwrap());
    }
}

#[test]
fn a_lease_outlives_its_handle_and_is_released_when_it_is_dropped() {
    let store = Faulty::new();
    let (seal, other) = (on(&store), on(&store));
    let end = end_of(&seal);
    let lease = seal.acquire("k").refresh_every(millis(100)).run().unwrap();
    drop(seal);
    until_refreshed(&store);
    lease.verify().unwrap();
    assert!(end.strong_count() > 0, "the threads live as long as the lease");
    drop(lease);
    drop(other.acquire("k").wait(SOON).run().unwrap());
    eventually("the threads end", || end.strong_count() == 0);
}

#[test]
fn the_threads_of_a_handle_without_leases_end_with_its_last_clone() {
    let seal = Mongoseal::in_memory().unwrap();
    let end = end_of(&seal);
    let clone = seal.clone();
    drop(seal);
    clone.acquire("k").run().unwrap().release().unwrap();
    drop(clone);
    eventually("the threads end", || end.strong_count() == 0);
}

#[test]
fn the_threads_of_a_handle_live_as_long_as_its_sibling() {
    let seal = Mongoseal::in_memory().unwrap();
    let end = end_of(&seal);
    let sibling = Mongoseal::builder().sibling_of(&seal).unwrap();
    drop(seal);
    sibling.acquire("k").run().unwrap().release().unwrap();
    assert!(end.strong_count() > 0);
    drop(sibling);
    eventually("the threads end", || end.strong_count() == 0);
}

#[test]
fn a_slow_release_is_sent_after_handle_and_lease_were_dropped() {
    let (store, stuck) = (Faulty::new(), Arc::new(AtomicBool::new(true)));
    let is_stuck = Arc::clone(&stuck);
    store.script(move |call| (is_release(&call) && is_stuck.load(Ordering::SeqCst)).then_some(Fault::Hang));
    let seal = on(&store);
    let end = end_of(&seal);
    let lease = seal.acquire("k").ttl(secs(3_600)).run().unwrap();
    drop(seal);
    // The drop does not wait for it. It is sent again when it has not been answered.
    drop(lease);
    let other = on(&store);
    assert!(matches!(other.acquire("k").run(), Err(Error::Held { .. })));
    stuck.store(false, Ordering::SeqCst);
    drop(other.acquire("k").wait(SOON).run().unwrap());
    eventually("the threads end", || end.strong_count() == 0);
}

#[test]
fn the_threads_end_after_the_operation_timeout_if_a_release_is_not_answered() {
    let store = Faulty::new();
    store.script(|call| is_release(&call).then_some(Fault::Hang));
    let seal = build(&store, Mongoseal::builder().operation_timeout(HASTY));
    let end = end_of(&seal);
    drop((seal.acquire("k").run().unwrap(), seal));
    assert!(end.strong_count() > 0);
    eventually("the threads end", || end.strong_count() == 0);
}

#[test]
fn an_iterator_of_events_keeps_the_threads_of_its_handle() {
    let store = Faulty::new();
    let seal = on(&store);
    let end = end_of(&seal);
    let mut events = seal.watch("k").unwrap();
    drop(seal);
    let other = on(&store);
    let lease = other.acquire("k").run().unwrap();
    assert_eq!(events.next().unwrap().unwrap().into_event().unwrap().token, lease.token());
    drop(events);
    eventually("the threads end", || end.strong_count() == 0);
}

#[test]
fn a_handle_that_could_not_be_made_leaves_no_threads() {
    let store = Arc::new(Faulty::new());
    for _ in 0..20 {
        let made = Mongoseal::builder().ttl(millis(0)).on_store(store.clone());
        assert!(made.is_err());
    }
    eventually("nothing of them is left", || Arc::strong_count(&store) == 1);
}

#[tokio::test]
async fn the_last_handle_and_lease_can_be_dropped_in_asynchronous_code_and_their_release_is_sent() {
    let store = Faulty::new();
    store.script(|call| is_release(&call).then_some(Fault::Delay(millis(100))));
    let seal = on(&store);
    let end = end_of(&seal);
    let lease = seal.acquire("k").ttl(secs(3_600)).run().unwrap();
    drop(seal);
    drop(lease);
    let next = store.seal();
    drop(next.acquire("k").wait(SOON).await.unwrap());
    eventually("the threads end", || end.strong_count() == 0);
}

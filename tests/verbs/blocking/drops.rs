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
fn the_threads_of_a_handle_live_as_long_as_the_last_of_its_clones_siblings_leases_and_iterators() {
    let store = Faulty::new();
    let keep: [fn(Mongoseal, &Faulty); 4] = [
        |seal, _| {
            let clone = seal.clone();
            drop(seal);
            clone.acquire("k").run().unwrap().release().unwrap();
        },
        |seal, store| {
            let sibling = Mongoseal::builder().sibling_of(&seal).unwrap();
            seal.shutdown();
            drop(seal);
            let lease = sibling.acquire("k").refresh_every(millis(100)).run().unwrap();
            until_refreshed(store);
            sibling.shutdown();
            assert!(!lease.is_valid());
            let refused = Mongoseal::builder().sibling_of(&sibling).unwrap_err();
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        },
        |seal, store| {
            let lease = seal.acquire("k").refresh_every(millis(100)).run().unwrap();
            drop(seal);
            until_refreshed(store);
            lease.verify().unwrap();
        },
        |seal, store| {
            let mut events = seal.watch("k").unwrap();
            drop(seal);
            // After the drop of the lease before.
            let lease = on(store).acquire("k").wait(SOON).run().unwrap();
            while events.next().unwrap().unwrap().into_event().unwrap().token != lease.token() {}
        },
    ];
    for use_and_drop in keep {
        let seal = on(&store);
        let end = end_of(&seal);
        use_and_drop(seal, &store);
        eventually("the threads end", || end.strong_count() == 0);
    }
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
fn a_handle_that_could_not_be_made_leaves_no_threads() {
    let store = Arc::new(Faulty::new());
    for _ in 0..20 {
        let made = Mongoseal::builder().ttl(millis(0)).on_store(store.clone());
        assert!(made.is_err());
    }
    eventually("nothing of them is left", || Arc::strong_count(&store) == 1);
}

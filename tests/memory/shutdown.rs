//! A handle that holds many leases is shut down.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mongoseal::{Lease, Mongoseal, record::Request, store::Store};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

async fn leases(seal: &Mongoseal, count: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    for number in 0..count {
        leases.push(seal.acquire(format!("k{number}")).await.unwrap());
    }
    leases
}

/// How many of the keys can be acquired now.
async fn free(store: &Faulty, count: usize) -> usize {
    store.heal();
    let other = store.seal();
    let mut free = 0;
    for number in 0..count {
        free += usize::from(other.acquire(format!("k{number}")).await.is_ok());
    }
    free
}

#[tokio::test(start_paused = true)]
async fn it_releases_all_of_two_thousand_leases_by_a_few_requests() {
    let (store, many) = (Faulty::new(), 2_000);
    let seal = store.seal();
    let held = leases(&seal, many).await;
    let together = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&together);
    store.script(move |call| {
        if let Call::Jointly(_) = call {
            counts.fetch_add(1, Ordering::Relaxed);
        }
        Some(Fault::DelayReply(millis(10)))
    });
    let before = store.requests().len();
    seal.shutdown().await;
    let alone = store.requests()[before..].iter().filter(|request| matches!(request, Request::Release(_))).count();
    let together = together.load(Ordering::Relaxed);
    assert!(together <= 14 && alone <= 4, "{together} requests for many, {alone} for one");
    assert!(held.iter().all(|lease| !lease.is_valid()));
    assert_eq!(free(&store, many).await, many);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_locked_keeps_no_other_lease_from_its_release() {
    let (store, many) = (Faulty::new(), 1_000);
    let seal = store.seal();
    let _held = leases(&seal, many).await;
    store.script(|call| match call {
        Call::Jointly(leases) => leases.iter().any(|(key, _)| key.as_str() == "k77").then_some(Fault::Hang),
        _ => None,
    });
    let began = store.records.clock().now();
    seal.shutdown().await;
    let took = store.records.clock().now().saturating_sub(began);
    // A fifth of the operation timeout, and some.
    assert!(took < millis(2_100), "{took:?}");
    assert_eq!(free(&store, many).await, many, "that one was released by itself");
}

#[tokio::test(start_paused = true)]
async fn with_a_store_that_does_not_answer_it_takes_no_longer_than_the_operation_timeout() {
    let (store, many) = (Faulty::new(), 1_000);
    let seal = store.build(Mongoseal::builder().operation_timeout(secs(3)));
    let _held = leases(&seal, many).await;
    store.always(Fault::Hang);
    let began = store.records.clock().now();
    seal.shutdown().await;
    let took = store.records.clock().now().saturating_sub(began);
    assert!(took <= millis(3_200), "{took:?}");
    assert_eq!(free(&store, many).await, 0);
}

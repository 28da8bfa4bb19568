//! The store's time.

use mongoseal::Error;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn the_time_is_that_on_which_leases_end() {
    let seal = Faulty::new().seal();
    let _lease = seal.acquire("k").without_refresh().await.unwrap();
    let granted = seal.inspect("k").await.unwrap().unwrap().holders[0].since;
    assert_eq!(seal.now().await.unwrap(), granted);
    tokio::time::sleep(secs(7)).await;
    assert_eq!(seal.now().await.unwrap().since(granted), secs(7));
}

#[tokio::test(start_paused = true)]
async fn the_time_is_retried_until_the_operation_timeout_and_refused_after_a_shutdown() {
    let store = Faulty::new();
    let seal = store.seal();
    let mut failures = 3;
    store.script(move |call| {
        failures -= i32::from(matches!(call, Call::Now));
        (matches!(call, Call::Now) && failures >= 0).then_some(Fault::Fail)
    });
    seal.now().await.unwrap();
    let began = tokio::time::Instant::now();
    store.always(Fault::Hang);
    assert!(matches!(seal.now().await, Err(Error::Unavailable { .. })));
    assert!(began.elapsed() >= secs(9) && began.elapsed() <= secs(10), "{:?}", began.elapsed());
    store.always(Fault::Refuse);
    assert!(matches!(seal.now().await, Err(Error::Invalid { .. })));
    store.heal();
    seal.shutdown().await;
    assert!(matches!(seal.now().await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_time_dropped_half_way_changes_nothing() {
    let store = Faulty::new();
    let seal = store.seal();
    store.script(|call| matches!(call, Call::Now).then_some(Fault::Delay(secs(1))));
    assert!(tokio::time::timeout(millis(10), seal.now()).await.is_err());
    tokio::time::sleep(secs(2)).await;
    assert!(store.requests().is_empty() && store.records.is_empty());
}

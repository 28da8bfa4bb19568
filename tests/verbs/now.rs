//! The store's time.

use mongoseal::Error;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn the_time_on_which_leases_end_is_retried_until_the_operation_timeout_and_refused_after_a_shutdown() {
    let (store, seal) = Faulty::open();
    let _lease = seal.acquire("k").without_refresh().await.unwrap();
    let granted = seal.inspect("k").await.unwrap().unwrap().holders[0].since;
    tokio::time::sleep(secs(7)).await;
    assert_eq!(seal.now().await.unwrap().since(granted), secs(7));

    store.first(3, |call| matches!(call, Call::Now), Fault::Fail);
    seal.now().await.unwrap();
    let began = tokio::time::Instant::now();
    store.always(Fault::Hang);
    assert!(tokio::time::timeout(millis(10), seal.now()).await.is_err(), "dropped half-way, it changes nothing");
    assert!(matches!(seal.now().await, Err(Error::Unavailable { .. })));
    assert!(began.elapsed() >= secs(9) && began.elapsed() <= secs(11), "{:?}", began.elapsed());
    store.always(Fault::Refuse);
    assert!(matches!(seal.now().await, Err(Error::Invalid { .. })));
    assert_eq!(store.requests().len(), 1, "the acquire");
    store.heal();
    seal.shutdown().await;
    assert!(matches!(seal.now().await, Err(Error::Invalid { .. })));
}

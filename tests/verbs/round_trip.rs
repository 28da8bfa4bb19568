//! A refresh is sent again while it is not answered, and each attempt counts from its own send.

use std::sync::{Arc, Mutex};

use mongoseal::{Lease, LeaseState, Mongoseal, Result, record::Request, store::MemoryStore};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// When each refresh of a single lease is sent from now on. The first ones meet these faults, and all later ones hang.
fn refreshes<const N: usize>(store: &Faulty, faults: [Option<Fault>; N]) -> Arc<Mutex<Vec<Instant>>> {
    let sent = Arc::<Mutex<Vec<_>>>::default();
    let (noted, mut faults) = (Arc::clone(&sent), faults.into_iter());
    store.script(move |call| {
        if !matches!(call, Call::Apply(Request::Refresh(_))) {
            return None;
        }
        noted.lock().unwrap().push(Instant::now());
        faults.next().unwrap_or(Some(Fault::Hang))
    });
    sent
}

#[tokio::test(start_paused = true)]
async fn a_constant_round_trip_of_two_fifths_of_the_ttl_neither_loses_a_lease_nor_puts_it_at_risk() {
    for (ttl, many) in [(millis(1_500), 1), (millis(2_400), 1), (secs(12), 1), (millis(2_400), 20), (secs(12), 100)] {
        for tenths in [1, 2, 3, 4] {
            let store = MemoryStore::default();
            store.delay_replies(ttl * tenths / 10);
            let seal = Mongoseal::builder().operation_timeout(secs(30)).on_store(Arc::new(store.clone())).unwrap();
            let asking = (0..many).map(|number| seal.acquire(format!("k{number}")).ttl(ttl).into_future());
            let leases: Result<Vec<_>> = asking.collect::<JoinSet<_>>().join_all().await.into_iter().collect();
            let leases = leases.unwrap();
            let end = Instant::now() + 20 * ttl;
            while Instant::now() < end {
                tokio::time::sleep(ttl / 25).await;
                let held = |lease: &Lease| lease.is_valid() && lease.state() == LeaseState::Held;
                assert!(leases.iter().all(held), "{many} of {ttl:?}, {tenths} tenths: {:?}", leases[0].state());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_is_not_answered_is_sent_again_and_no_more_than_five_are_under_way() {
    let store = Faulty::new();
    let began = Instant::now();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    let sent = refreshes(&store, []);
    lease.cancelled().await;
    let sent: Vec<u128> = sent.lock().unwrap().iter().map(|sent| (*sent - began).as_millis()).collect();
    // At a third, a second later, and then after twice as long each time.
    assert_eq!(sent, [10_000, 11_000, 13_000, 17_000, 25_000]);
}

#[tokio::test(start_paused = true)]
async fn the_attempt_that_is_confirmed_first_counts_from_its_own_send_whatever_becomes_of_the_others() {
    // Sent at 10 seconds, and answered at 18; others were sent at 11 and 17.7.
    for (first, later, at, left) in [
        (Fault::DelayReply(secs(8)), Some(Fault::Hang), millis(18_001), secs(21)..secs(22)),
        (Fault::Hang, None, secs(12), secs(28)..secs(30)),
    ] {
        let store = Faulty::new();
        let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
        refreshes(&store, [Some(first), later, later, later]);
        tokio::time::sleep(at).await;
        assert!(left.contains(&lease.remaining()), "{first:?}: {:?}", lease.remaining());
        if later.is_none() {
            // The first one fails at 30 seconds, which is no news.
            tokio::time::sleep(secs(19)).await;
            assert_eq!(lease.state(), LeaseState::Held);
        }
    }
}

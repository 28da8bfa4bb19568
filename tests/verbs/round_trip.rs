//! A refresh is sent again while it is not answered, and each attempt counts from its own send.

use std::sync::{Arc, Mutex};

use mongoseal::{
    Deadline, Lease, LeaseState, Metadata, Mongoseal,
    record::Request,
    store::{MemoryStore, Snapshot, Store},
};
use tokio::time::Instant;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// What happens to the first, second, … refresh of a single lease. All later ones hang.
fn refreshes(
    store: &Faulty,
    faults: impl IntoIterator<Item = Option<Fault>> + Send + 'static,
) -> Arc<Mutex<Vec<Instant>>> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (noted, faults) = (Arc::clone(&sent), Vec::from_iter(faults));
    store.script(move |call| {
        if !matches!(call, Call::Apply(Request::Refresh(_))) {
            return None;
        }
        let mut noted = noted.lock().unwrap();
        noted.push(Instant::now());
        faults.get(noted.len() - 1).copied().unwrap_or(Some(Fault::Hang))
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
            let asking =
                (0..many).map(|number| tokio::spawn(seal.acquire(format!("k{number}")).ttl(ttl).into_future()));
            let mut leases: Vec<Lease> = Vec::new();
            for asked in asking.collect::<Vec<_>>() {
                leases.push(asked.await.unwrap().unwrap());
            }
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
async fn the_attempt_that_is_confirmed_first_counts_from_its_own_send() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    refreshes(&store, [Some(Fault::DelayReply(secs(8)))]);
    // Sent at 10 seconds, answered at 18; others were sent at 11 and 17.7.
    tokio::time::sleep(secs(18) + millis(1)).await;
    let remaining = lease.remaining();
    assert!(remaining > secs(21) && remaining < secs(22), "{remaining:?}");
}

#[tokio::test(start_paused = true)]
async fn a_later_attempt_that_is_confirmed_first_keeps_the_lease_whatever_becomes_of_the_earlier_one() {
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    refreshes(&store, [Some(Fault::Hang), None, None, None]);
    tokio::time::sleep(secs(12)).await;
    assert!(lease.remaining() > secs(28), "{:?}", lease.remaining());
    // The first one fails at 30 seconds, which is no news.
    while lease.remaining() > secs(1) {
        assert_eq!(lease.state(), LeaseState::Held);
        tokio::time::sleep(millis(100)).await;
        if store.requests().len() > 4 {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_metadata_waits_for_attempts_that_could_take_it_back() {
    let words = |text: &str| {
        let mut metadata = Metadata::default();
        metadata.insert("step", text).unwrap();
        metadata
    };
    let store = Faulty::new();
    let lease = store.seal().acquire("k").ttl(secs(30)).await.unwrap();
    lease.update_metadata(words("one")).await.unwrap();
    // The next refresh, which says "one" again, is executed six seconds after it was sent, with others behind it.
    let sent = refreshes(&store, [Some(Fault::Delay(secs(6))), None, None, None, None]);
    tokio::time::sleep(secs(10) + millis(500)).await;
    assert_eq!(sent.lock().unwrap().len(), 1);
    let began = Instant::now();
    lease.update_metadata(words("two")).await.unwrap();
    assert!(began.elapsed() > secs(5), "it waited for the earlier one: {:?}", began.elapsed());
    tokio::time::sleep(secs(1)).await;
    let Ok(Some(Snapshot { record, .. })) =
        store.records.read(lease.key(), Deadline::after(store.records.clock(), secs(1))).await
    else {
        panic!("held")
    };
    assert_eq!(record.holders[0].terms.metadata, words("two"));
}

//! The examples of `docs/testing.md`, as a user writes them.

use std::time::Duration;

use mongoseal::{
    Error, Key, LeaseState, LossCause, Mongoseal, blocking,
    store::MemoryStore,
    testing::{FencedTable, ManualClock},
};
use tokio::time::sleep;

/// Packs an order. The work takes eight seconds.
async fn pack(seal: &Mongoseal, orders: &FencedTable<&'static str>) -> mongoseal::Result<()> {
    let work = seal.acquire("orders/4711").try_with(async |lease| {
        orders.write(lease.token(), "4711", "packing")?;
        sleep(Duration::from_secs(8)).await;
        orders.write(lease.token(), "4711", "packed")
    });
    work.await
}

#[tokio::test(start_paused = true)]
async fn an_order_is_packed_by_one_process_at_a_time() {
    let (store, orders) = (MemoryStore::default(), FencedTable::new());
    let (this, other) = (Mongoseal::in_memory_on(&store), Mongoseal::in_memory_on(&store));
    let (first, second) = tokio::join!(pack(&this, &orders), pack(&other, &orders));
    first.unwrap();
    assert!(matches!(second, Err(Error::Held { .. })));
    assert_eq!(orders.get("4711"), Some("packed"));
}

#[tokio::test(start_paused = true)]
async fn a_packer_that_was_deposed_overwrites_nothing() {
    let (store, orders) = (MemoryStore::default(), FencedTable::new());
    let seal = Mongoseal::in_memory_on(&store);
    let another_process = async {
        sleep(Duration::from_secs(5)).await;
        let token = store.take_over(&Key::try_from("orders/4711").unwrap());
        orders.write(token, "4711", "cancelled").unwrap();
    };
    let (packed, ()) = tokio::join!(pack(&seal, &orders), another_process);
    assert!(matches!(packed, Err(Error::Fenced { .. })));
    assert_eq!(orders.get("4711"), Some("cancelled"));
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_at_the_deadline_if_the_store_cannot_be_reached() {
    let store = MemoryStore::default();
    let lease = Mongoseal::in_memory_on(&store).acquire("orders/4711").await.unwrap();
    store.set_reachable(false);
    let endless = lease.run(std::future::pending::<()>());
    assert!(matches!(endless.await, Err(Error::Lost { cause: LossCause::Expired, .. })));
    // The process that can reach the records waits for the grace, and is granted the key.
    let other = Mongoseal::in_memory_on(&store.link());
    let taken = other.acquire("orders/4711").wait(Duration::from_secs(5)).await;
    assert!(taken.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlasts_an_outage_of_ten_seconds() {
    let store = MemoryStore::default();
    let lease = Mongoseal::in_memory_on(&store).acquire("orders/4711").await.unwrap();
    sleep(Duration::from_secs(8)).await; // its next refresh is due in two seconds
    store.set_reachable(false);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(lease.state(), LeaseState::AtRisk);
    store.set_reachable(true);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(lease.state(), LeaseState::Held);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_confirmed_although_its_reply_is_lost() {
    let store = MemoryStore::default();
    let lease = Mongoseal::in_memory_on(&store).acquire("orders/4711").await.unwrap();
    store.lose_next_reply();
    lease.verify().await.unwrap(); // it sends its request again
}

#[test]
fn a_blocking_worker_sees_that_it_stood_still_for_too_long() {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock);
    let seal = blocking::Mongoseal::in_memory_on(&store).unwrap();
    let lease = seal.acquire("orders/4711").run().unwrap();
    assert!(lease.is_valid());
    clock.advance(Duration::from_secs(31));
    assert!(!lease.is_valid());
}

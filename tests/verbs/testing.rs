//! The faults of a memory store, which `docs/testing.md` offers to users.

use mongoseal::{
    Error, LeaseState, LossCause, Mongoseal,
    inspect::WatchItem,
    store::MemoryStore,
    testing::{FencedTable, ManualClock},
};
use mongoseal_test_support::{millis, secs};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn a_reply_is_delayed_after_its_request_was_applied() {
    let store = MemoryStore::default();
    let (seal, far) = (Mongoseal::in_memory_on(&store), Mongoseal::in_memory_on(&store.link()));
    seal.prepare().await.unwrap();
    store.delay_replies(secs(1));
    let began = Instant::now();
    drop(seal.acquire("slow").await.unwrap());
    assert_eq!(began.elapsed(), secs(1));
    // No attempt waits for so long.
    store.delay_replies(secs(3600));
    let (lost, seen) = tokio::join!(seal.acquire("k").into_future(), async {
        sleep(secs(1)).await;
        far.inspect("k").await.unwrap().unwrap()
    });
    assert!(matches!(lost, Err(Error::Unavailable { .. })));
    assert_eq!(seen.holders.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_over_a_cut_link_reports_that_events_may_be_missing_and_goes_on() {
    let near = MemoryStore::default();
    let seal = Mongoseal::in_memory_on(&near.link());
    let mut events = Mongoseal::in_memory_on(&near).watch("k").await.unwrap();
    near.set_reachable(false);
    sleep(secs(5)).await;
    let lease = seal.acquire("k").await.unwrap();
    near.set_reachable(true);
    assert!(matches!(events.next().await.unwrap().unwrap(), WatchItem::Missed { .. }), "the stream was cut");
    let WatchItem::Event(event) = events.next().await.unwrap().unwrap() else { panic!("it goes on") };
    assert_eq!(event.token, lease.token());
}

#[tokio::test(start_paused = true)]
async fn a_takeover_passes_the_waiters_and_the_holder_learns_of_it_with_its_next_refresh() {
    let store = MemoryStore::default();
    let seal = Mongoseal::in_memory_on(&store);
    let lease = seal.acquire("k").await.unwrap();
    let waiting = tokio::spawn(seal.acquire("k").wait(secs(3600)).into_future());
    sleep(secs(2)).await;
    let token = store.take_over(lease.key());
    assert!(token > lease.token() && lease.is_valid());
    assert_eq!(seal.inspect("k").await.unwrap().unwrap().queue.len(), 1);
    assert_eq!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::TakenOver { token } });
    let began = Instant::now();
    assert!(waiting.await.unwrap().unwrap().token() > token);
    assert!(began.elapsed() > secs(15), "the other lease had its ttl: {:?}", began.elapsed());
}

#[tokio::test]
async fn leases_live_on_a_manual_clock_that_is_moved_by_small_steps() {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock);
    let lease = Mongoseal::in_memory_on(&store).acquire("k").await.unwrap();
    for _ in 0..20 {
        clock.advance(secs(5));
        // A refresh runs in real time.
        let refreshed = async {
            while lease.remaining() < secs(16) {
                sleep(millis(1)).await;
            }
        };
        tokio::time::timeout(secs(5), refreshed).await.unwrap();
    }
    assert_eq!(lease.state(), LeaseState::Held);
    clock.advance(secs(30));
    assert_eq!(lease.state(), LeaseState::Lost { cause: LossCause::Expired });
}

#[test]
fn a_table_keeps_the_largest_token_of_each_row() {
    let table = FencedTable::new();
    let [first, second] = [1, 2].map(|token| mongoseal::FencingToken::new(token).unwrap());
    table.write(first, "a", 1).unwrap();
    table.update(second, "a", |before| before.unwrap() + 1).unwrap();
    assert!(matches!(table.write(first, "a", 9), Err(Error::Fenced { newer }) if newer == second));
    assert!(table.update(first, "a", |_| unreachable!("it is refused before")).is_err());
    table.write(first, "b", 3).unwrap();
    assert_eq!([table.claim(second, "b").unwrap(), table.claim(second, "c").unwrap()], [Some(3), None]);
    assert!(matches!(table.claim(first, "b"), Err(Error::Fenced { newer }) if newer == second));
    assert!(table.write(first, "b", 4).is_err(), "the next holder has claimed the row");
    assert_eq!([table.get("a"), table.get("b"), table.get("c")], [Some(2), Some(3), None]);
}

//! The faults of a memory store, which `docs/testing.md` offers to users.

use std::time::Duration;

use mongoseal::{
    Error, Key, LeaseState, LossCause, Mongoseal,
    inspect::{EventKind, WatchItem},
    store::MemoryStore,
    testing::{FencedTable, ManualClock},
};
use mongoseal_test_support::{millis, secs};
use tokio::time::{Instant, sleep};

fn handle(store: &MemoryStore) -> Mongoseal {
    Mongoseal::in_memory_on(store)
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_delayed_after_its_request_was_applied() {
    let store = MemoryStore::default();
    let seal = handle(&store);
    seal.prepare().await.unwrap();
    store.delay_replies(secs(1));
    let began = Instant::now();
    let lease = seal.acquire("k").await.unwrap();
    assert_eq!((began.elapsed(), lease.remaining() <= secs(29)), (secs(1), true));
    drop(lease);
    sleep(secs(10)).await;

    // No attempt waits for so long.
    store.delay_replies(secs(3600));
    assert!(matches!(handle(&store).acquire("k").await, Err(Error::Unavailable { .. })));
    assert!(handle(&store.link()).acquire("k").await.is_ok(), "the handle has taken it back");
    store.delay_replies(Duration::ZERO);
    let began = Instant::now();
    drop(handle(&store).acquire("other").await.unwrap());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_watch_over_a_cut_link_reports_that_events_may_be_missing_and_goes_on() {
    let near = MemoryStore::default();
    let far = near.link();
    let mut events = handle(&near).watch("k").await.unwrap();
    let seal = handle(&far);
    drop(seal.acquire("k").await.unwrap());
    near.set_reachable(false);
    sleep(secs(5)).await;
    let lease = seal.acquire("k").await.unwrap();
    near.set_reachable(true);
    let seen = async {
        let mut is_missed = false;
        loop {
            match events.next().await.unwrap().unwrap() {
                WatchItem::Event(event) if event.token == lease.token() => return (event.kind, is_missed),
                item => is_missed |= matches!(item, WatchItem::Missed { .. }),
            }
        }
    };
    let (seen, is_missed) = tokio::time::timeout(secs(60), seen).await.unwrap();
    assert!(is_missed, "the stream was cut");
    assert!(matches!(seen, EventKind::Granted { .. } | EventKind::Holds { .. }), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_takeover_passes_the_waiters_and_the_holder_learns_of_it_with_its_next_refresh() {
    let store = MemoryStore::default();
    let seal = handle(&store);
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
    // A key that nothing holds, too.
    assert!(store.take_over(&Key::try_from("free").unwrap()) > token);
}

#[tokio::test]
async fn leases_live_on_a_manual_clock_that_is_moved_by_small_steps() {
    let clock = ManualClock::new();
    let store = MemoryStore::on_clock(clock);
    let lease = handle(&store).acquire("k").await.unwrap();
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

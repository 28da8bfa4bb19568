//! Waits that end without a grant: other waiters are not delayed.

use std::time::Duration;

use mongoseal::{
    Lease,
    store::{Clock, Instant},
};

use crate::{
    crew::Worker,
    eventually,
    fleet::{Fleet, at_once, release},
    millis, secs,
    words::{Ask, Order, Word},
};

/// Long, so that whatever is left to a ttl is noticed.
const TTL: Duration = secs(120);

pub(crate) async fn a_shut_down_handle_s_waiters_and_lease_make_way_at_once() {
    let fleet = Fleet::new("shutdown").await;
    let [mut a, mut b] = fleet.workers().await;
    let first = fleet.hold().await;
    for (count, who) in [0, 0, 1, 0].into_iter().enumerate() {
        let worker = [&mut a, &mut b].into_iter().nth(who).unwrap();
        fleet.queue(worker, Ask::new(u32::try_from(count).unwrap(), TTL).and_holds(), count + 1).await;
    }
    a.order(Order::ShutDown).await;
    fleet.heard.until(at_once(), "the handle is shut down", |word| (*word == Word::ShutDown).then_some(())).await;
    assert_eq!(fleet.owners("queue").await, ["worker-1"], "as soon as the shutdown is over");
    for who in [0, 1, 3] {
        let ended = |word: &Word| match word {
            Word::Failed { waiter, error } if *waiter == who => Some(error.clone()),
            _ => None,
        };
        let error = fleet.heard.until(at_once(), "its waiter is told", ended).await;
        assert!(error.contains("shut down"), "{error}");
    }
    let released = release(first).await;
    let (_, at) = fleet.heard.granted(2, at_once()).await;
    assert!(at - released < at_once(), "{:?}", at - released);

    // And so does what it holds.
    let [mut c] = fleet.workers().await;
    fleet.queue(&mut c, Ask::new(4, TTL), 1).await;
    b.order(Order::ShutDown).await;
    fleet.heard.granted(4, at_once()).await;
    fleet.is_free(at_once()).await;
    let lost = |word: &Word| matches!(word, Word::Lost { waiter: 2, .. }).then_some(());
    fleet.heard.until(at_once(), "its holder is told", lost).await;
    let tokens = fleet.heard.grants();
    assert!(tokens.iter().map(|grant| grant.1).eq([2, 4]), "{tokens:?}");
}

pub(crate) async fn a_wait_that_ends_in_the_instant_of_the_hand_over_leaves_nothing_held() {
    let fleet = Fleet::new("instant").await;
    chase(&fleet, 40, |waiter, wait| Ask { wait, ..Ask::new(waiter, TTL) }).await;
}

pub(crate) async fn a_wait_dropped_in_the_instant_of_the_hand_over_leaves_nothing_held() {
    let fleet = Fleet::new("dropped").await;
    chase(&fleet, 40, |waiter, wait| Ask { drop_after: Some(wait), ..Ask::new(waiter, TTL) }).await;
}

/// Releases the key when a wait is over, a little later after each that was granted and a little
/// earlier after each that was not: so that most rounds are close to the instant where that turns.
async fn chase(fleet: &Fleet, rounds: u32, ask: impl Fn(u32, Duration) -> Ask) {
    const WAIT: Duration = millis(80);
    let [mut worker] = fleet.workers::<1>().await;
    let mut random = fastrand::Rng::with_seed(1);
    let mut after = WAIT;
    let (mut granted, mut ended, mut turns, mut was) = (0, 0, 0, None);
    for round in 0..rounds {
        let first = fleet.hold().await;
        let is_granted = instant(fleet, &mut worker, first, ask(round, WAIT), after).await;
        // By far sooner than any ttl.
        fleet.is_free(secs(1)).await;
        turns += u32::from(was.is_some_and(|was| was != is_granted));
        was = Some(is_granted);
        let by = Duration::from_micros(random.u64(500..4_000));
        if is_granted {
            granted += 1;
            after += by;
        } else {
            ended += 1;
            after = after.saturating_sub(by);
        }
    }
    println!(
        "{granted} were granted the key and {ended} were not, {turns} turns; the last release came after {after:?}"
    );
    assert!(turns >= rounds / 6, "the rounds were close to the instant");
    fleet.heard.check();
}

/// One round; says whether the waiter was granted the key.
async fn instant(fleet: &Fleet, worker: &mut Worker, first: Lease, ask: Ask, after: Duration) -> bool {
    let waiter = ask.waiter;
    worker.ask(ask).await;
    let asks = |word: &Word| match word {
        Word::Asks { waiter: who, at } if *who == waiter => Some(*at),
        _ => None,
    };
    let asked = fleet.heard.until(secs(2), "it asks", asks).await;
    eventually(secs(2), "it is queued", async || fleet.waiting().await == 1).await;
    Clock::Boot.sleep_until(Instant::at(asked + after)).await;
    let end = |word: &Word| match word {
        Word::Released { waiter: who, answer } if *who == waiter => Some((true, answer.clone())),
        Word::Held { waiter: who } | Word::Dropped { waiter: who } if *who == waiter => Some((false, String::new())),
        _ => None,
    };
    let (_, (is_granted, answer)) = tokio::join!(release(first), fleet.heard.until(secs(5), "its wait ends", end));
    assert!(!is_granted || answer == "Ok(Released)", "{answer}");
    is_granted
}

//! SIGSTOP and SIGCONT: a process that is stopped for longer than its lease or its offer lasts.

use mongoseal_test_support::by_length;

use crate::{
    eventually,
    fleet::{Fleet, at_once, release},
    millis, secs,
    words::{Ask, Order, Word},
};

pub(crate) async fn a_waiter_stopped_past_its_offer_does_not_believe_and_waits_on() {
    let ttl = by_length(secs(5), millis(1_200));
    for round in 0..by_length(1, 3) {
        let fleet = Fleet::new("stopped").await;
        let [mut paused, mut other] = fleet.workers().await;
        let first = fleet.hold().await;
        fleet.queue(&mut paused, Ask::new(0, ttl).and_holds(), 1).await;
        fleet.queue(&mut other, Ask::new(1, ttl).and_holds(), 2).await;
        paused.stop();
        release(first).await;
        assert_eq!(fleet.owners("holders").await, ["worker-0"], "the stopped one was handed the key");
        let (token, _) = fleet.heard.granted(1, ttl + at_once()).await;
        // Also while the other holds for a while, and when it has been refreshed.
        tokio::time::sleep(millis(200) * round).await;
        paused.go_on();
        let waits = async || fleet.owners("queue").await == ["worker-0"];
        eventually(at_once(), "the one that was stopped waits again", waits).await;
        // Long enough for a lease that was believed by mistake to be found out, and said.
        tokio::time::sleep(ttl / 2).await;
        assert_eq!(fleet.heard.grants().len(), 1, "{:?}", fleet.heard.words());
        other.order(Order::Release { waiter: 1 }).await;
        let (later, _) = fleet.heard.granted(0, at_once()).await;
        assert!(later > token);
        paused.order(Order::Release { waiter: 0 }).await;
        fleet.heard.until(at_once(), "it is released", |word| released(word, 0)).await;
        fleet.ends_well(at_once()).await;
    }
}

pub(crate) async fn a_key_handed_to_a_stopped_waiter_is_believed_no_longer_than_its_offer() {
    let ttl = by_length(secs(9), secs(3));
    let fleet = Fleet::new("late").await;
    let [mut paused, mut other] = fleet.workers().await;
    let first = fleet.hold().await;
    fleet.queue(&mut paused, Ask::new(0, ttl).and_holds(), 1).await;
    fleet.queue(&mut other, Ask::new(1, ttl).and_holds(), 2).await;
    // Stopped as soon as it has kept its place: what it hears next, when it goes on, is old.
    let asks = async || fleet.record().await.get_array("queue").unwrap()[1].as_document().unwrap().get_i64("refreshes");
    let before = asks().await.unwrap();
    eventually(secs(60), "it has asked again", async || asks().await.unwrap() > before).await;
    // And the answer has come: what is in the record is not yet what the waiter knows.
    tokio::time::sleep(millis(50)).await;
    paused.stop();
    let handed = release(first).await;
    assert_eq!(fleet.owners("holders").await, ["worker-0"], "the stopped one was handed the key");
    // Before it would ask again by itself, so that it is the old event it goes by.
    tokio::time::sleep(millis(700)).await;
    paused.go_on();
    let (token, began) = fleet.heard.granted(0, at_once()).await;
    paused.stop();
    let (next, at) = fleet.heard.granted(1, ttl + at_once()).await;
    println!("believed from {:?} after the hand-over, the next from {:?}", began - handed, at - handed);
    paused.go_on();
    let lost = |word: &Word| match word {
        Word::Lost { waiter: 0, token, last } => Some((*token, *last)),
        _ => None,
    };
    let (old, until) = fleet.heard.until(at_once(), "it is told that it lost the lease", lost).await;
    assert!(old == token && next > token && until < at, "{old} until {until:?}, {next} from {at:?}");
    other.order(Order::Release { waiter: 1 }).await;
    fleet.heard.until(at_once(), "it is released", |word| released(word, 1)).await;
    fleet.ends_well(at_once()).await;
}

fn released(word: &Word, who: u32) -> Option<()> {
    matches!(word, Word::Released { waiter, .. } if *waiter == who).then_some(())
}

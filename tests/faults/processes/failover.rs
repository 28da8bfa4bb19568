//! The primary steps down while the key is handed over between processes.

use std::time::Duration;

use mongoseal_test_support::{ReplicaSet, by_length};

use crate::{
    eventually,
    fleet::Fleet,
    millis, secs,
    words::{Ask, Order, Word, now},
};

/// Above the time without a primary, so that most leases live on over it.
const TTL: Duration = secs(6);

pub(crate) async fn all_are_served_while_the_primary_steps_down_in_the_middle_of_hand_overs() {
    let step_downs = by_length(3, 5);
    let set = ReplicaSet::start(3).await;
    let fleet = Fleet::on(&set, "failover").await;
    let mut workers = fleet.workers::<3>().await;
    let mut random = fastrand::Rng::new();
    for waiter in 0..9 {
        let ask = Ask { hold: Some(millis(random.u64(0..6))), turns: u32::MAX, ..Ask::new(waiter, TTL) };
        workers[waiter as usize % 3].ask(ask).await;
    }
    let served = || fleet.heard.grants().len();
    let mut gaps = Vec::new();
    for _ in 0..step_downs {
        let before = served();
        eventually(secs(30), "the key goes round", async || served() >= before + 20).await;
        tokio::time::sleep(millis(random.u64(0..300))).await;
        set.step_down().await;
        let (down, at) = (served(), now());
        eventually(secs(30), "it goes round again", async || served() > down + 3).await;
        gaps.push(now().saturating_sub(at));
    }
    for worker in &mut workers {
        worker.order(Order::Finish).await;
    }
    let mut done = 0;
    let all_done = |word: &Word| {
        done += u32::from(matches!(word, Word::Done { .. }));
        (done == 9).then_some(())
    };
    fleet.heard.until(secs(30), "all are served", all_done).await;
    let grants = fleet.heard.grants();
    for waiter in 0..9 {
        let turns = grants.iter().filter(|grant| grant.1 == waiter).count();
        assert!(turns * 9 + 100 > grants.len(), "waiter {waiter} had {turns} of {} turns", grants.len());
    }
    fleet.ends_well(TTL + secs(1)).await;
    let lost = fleet.heard.words().iter().filter(|word| matches!(word, Word::Lost { .. })).count();
    println!("{} grants over {step_downs} step-downs, {lost} lost; going round again after {gaps:.1?}", grants.len());
}

//! Waiters are granted the key in the order of their arrival, across processes.

use mongoseal_test_support::by_length;

use crate::{
    fleet::{Fleet, release},
    millis, secs,
    words::{self, Ask, Word, now},
};

/// The default.
const TTL: std::time::Duration = secs(30);

pub(crate) async fn waiters_of_three_processes_are_granted_the_key_in_the_order_they_came() {
    let waiters: u32 = by_length(30, 200);
    let fleet = Fleet::new("order").await;
    let mut workers = fleet.workers::<3>().await;
    let first = fleet.hold().await;
    let mut random = fastrand::Rng::with_seed(1);
    for waiter in 0..waiters {
        fleet.queue(&mut workers[random.usize(..3)], Ask::new(waiter, TTL), waiter as usize + 1).await;
    }
    let began = release(first).await;
    fleet.heard.granted(waiters - 1, secs(60)).await;
    let took = now().saturating_sub(began);
    fleet.ends_well(secs(60)).await;
    let grants = fleet.heard.grants();
    assert!(grants.iter().map(|grant| grant.1).eq(0..waiters), "{grants:?}");
    println!("{waiters} of {waiters} in order, {:.0} grants a second", f64::from(waiters) / took.as_secs_f64());
}

pub(crate) async fn a_thousand_waiters_of_four_processes_are_all_served_in_their_order() {
    const EACH: u32 = 250;
    let fleet = Fleet::new("thousand").await;
    let mut workers = fleet.workers::<4>().await;
    let first = fleet.hold().await;
    let began = now();
    for number in 0..EACH {
        for (worker, base) in workers.iter_mut().zip([0, 1000, 2000, 3000]) {
            worker.ask(Ask { hold: Some(millis(1)), ..Ask::new(base + number, TTL) }).await;
        }
    }
    fleet.queued(1_000).await;
    let queueing = now().saturating_sub(began);
    let bytes = fleet.size().await;
    let record = fleet.record().await;
    // Whose turn is next comes last.
    let queue = record.get_array("queue").unwrap().iter().rev();
    let queue: Vec<_> = queue.map(|entry| words::lease(entry.as_document().unwrap())).collect();

    let began = release(first).await;
    let mut served = 0;
    let count = |word: &Word| {
        served += usize::from(matches!(word, Word::Released { .. }));
        (served == queue.len()).then_some(())
    };
    fleet.heard.until(secs(60), "all are served", count).await;
    let took = now().saturating_sub(began);
    let grants: Vec<_> = fleet.heard.grants().into_iter().map(|(_, _, lease, _)| lease).collect();
    let wrong = grants.iter().zip(&queue).position(|(granted, queued)| granted != queued);
    assert_eq!((grants.len(), wrong), (queue.len(), None), "all, and each in its turn");
    fleet.ends_well(secs(60)).await;
    println!(
        "1000 waiters queued in {queueing:.1?} and served in {took:.1?}, {:.0} grants a second; \
         largest record {bytes} bytes",
        1000.0 / took.as_secs_f64()
    );
}

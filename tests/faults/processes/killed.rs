//! SIGKILL of a waiter or a holder at any point: the other waiters wait until its offer expires, and no longer.

use std::time::Duration;

use mongoseal::Lease;
use mongoseal_test_support::by_length;

use crate::{
    crew::Worker,
    eventually,
    fleet::{Fleet, at_once, release},
    millis, secs,
    words::{Ask, now},
};

fn ttl() -> Duration {
    by_length(secs(4), millis(1_500))
}

/// What a grant may come late. A push judges orders only.
fn slack() -> Duration {
    by_length(secs(60), millis(500))
}

/// Waiters 0 to 2 of three workers are in the queue, in this order, behind the test's own lease.
async fn three_in_the_queue(fleet: &Fleet) -> ([Worker; 3], Lease) {
    let mut workers = fleet.workers().await;
    let first = fleet.hold().await;
    for (waiter, worker) in (0..).zip(&mut workers) {
        fleet.queue(worker, Ask::new(waiter, ttl()), waiter as usize + 1).await;
    }
    (workers, first)
}

pub(crate) async fn a_waiter_killed_at_the_head_of_the_queue_costs_the_next_its_offer_at_most() {
    let fleet = Fleet::new("head").await;
    let ([dead, _b, _c], first) = three_in_the_queue(&fleet).await;
    dead.kill().await;
    let released = release(first).await;
    assert_eq!(fleet.owners("holders").await, ["worker-0"], "the dead one was handed the key");
    let (_, next) = fleet.heard.granted(1, ttl() + slack()).await;
    assert!(next >= released + ttl(), "it could have held until then");
    let (_, last) = fleet.heard.granted(2, at_once()).await;
    println!("the next was granted {:?} after the release, its follower {:?} later", next - released, last - next);
    assert!(next - released < ttl() + slack() && last - next < at_once());
    fleet.ends_well(at_once()).await;
}

pub(crate) async fn a_waiter_killed_in_the_middle_of_the_queue_costs_nobody_more_than_its_offer() {
    // Handed the key when it is dead: the next one waits for the end of its offer.
    let fleet = Fleet::new("middle").await;
    let ([_a, dead, _c], first) = three_in_the_queue(&fleet).await;
    dead.kill().await;
    let released = release(first).await;
    let (_, before) = fleet.heard.granted(0, at_once()).await;
    let (_, next) = fleet.heard.granted(2, ttl() + slack()).await;
    println!("granted {:?} and {:?} after the release", before - released, next - released);
    assert!(before - released < at_once() && next - before < ttl() + slack());
    fleet.ends_well(at_once()).await;

    // Out of the queue before it was its turn: nobody waits for it.
    let fleet = Fleet::new("middle").await;
    let ([_a, dead, _c], first) = three_in_the_queue(&fleet).await;
    dead.kill().await;
    let left = async || fleet.owners("queue").await == ["worker-0", "worker-2"];
    eventually(ttl() + slack() + ttl() / 3, "the dead one is out of the queue", left).await;
    let released = release(first).await;
    let (_, next) = fleet.heard.granted(2, at_once()).await;
    assert!(next - released < at_once(), "{:?}", next - released);
    fleet.ends_well(at_once()).await;
}

pub(crate) async fn a_waiter_killed_when_it_was_just_granted_costs_the_next_a_ttl_and_the_grace() {
    const GRACE: Duration = millis(500);
    let fleet = Fleet::new("granted").await.with_grace(GRACE);
    let [mut dead, mut b, mut c] = fleet.workers().await;
    let first = fleet.hold().await;
    fleet.queue(&mut dead, Ask::new(0, ttl()).and_holds(), 1).await;
    fleet.queue(&mut b, Ask::new(1, ttl()), 2).await;
    fleet.queue(&mut c, Ask::new(2, ttl()), 3).await;
    release(first).await;
    let (token, granted) = fleet.heard.granted(0, at_once()).await;
    dead.kill().await;
    let killed = now();
    let (next_token, next) = fleet.heard.granted(1, ttl() + GRACE + slack()).await;
    println!("granted {:?} after the one before was killed, of {:?} and a grace of {GRACE:?}", next - killed, ttl());
    assert!(next_token > token);
    assert!(next - granted >= ttl(), "it could have believed until then: {:?}", next - granted);
    assert!(next - killed < ttl() + GRACE + slack(), "{:?}", next - killed);
    fleet.heard.granted(2, at_once()).await;
    fleet.ends_well(at_once()).await;
}

pub(crate) async fn a_killed_holder_s_key_goes_down_the_queue_when_its_time_is_over() {
    let ttl = 2 * ttl();
    // The one behind it asks when it was just refreshed, and well after: its own rhythm, a third of
    // the ttl, is then not that of the holder's time, which is what it has to look at.
    for pause in [millis(0), millis(700)] {
        let fleet = Fleet::new("holder").await;
        let [mut dead, mut b, mut c] = fleet.workers().await;
        dead.ask(Ask::new(0, ttl).and_holds()).await;
        let (token, _) = fleet.heard.granted(0, at_once()).await;
        tokio::time::sleep(pause).await;
        fleet.queue(&mut b, Ask::new(1, ttl), 1).await;
        fleet.queue(&mut c, Ask::new(2, ttl), 2).await;
        dead.kill().await;
        let killed = now();
        let remaining = fleet.remaining().await;
        let (next_token, next) = fleet.heard.granted(1, ttl + slack()).await;
        assert!(next_token > token);
        let (_, last) = fleet.heard.granted(2, at_once()).await;
        println!("granted {:?} after the holder was killed, of {remaining:?} it had left", next - killed);
        assert!(remaining <= ttl && next - killed < remaining + slack() && last - next < at_once());
        fleet.ends_well(at_once()).await;
    }
}

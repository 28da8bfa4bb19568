//! Acquires of one lease id under different acquire ids, which no client of this crate sends.

use super::*;

/// The acquire with this lease id, from another call: with other terms.
fn from_another_call(number: u8, limit: u32, wait: Option<WaitSpec>) -> Request {
    let Request::Acquire(mut acquire) = acquire(number, limit, wait) else { unreachable!() };
    acquire.terms.acquire_id = acquire_id(100);
    acquire.terms.ttl = 30_000;
    Request::Acquire(acquire)
}

const WAIT: Option<WaitSpec> = Some(WaitSpec { ttl: 30_000, queue_limit: 4 });

/// A key that 1 holds, for which 2 waits.
fn waited_for(limit: u32) -> Bench {
    let mut bench = Bench::new();
    granted(&bench.send(once(1, limit)));
    let Request::Acquire(mut waiter) = wait(2, 0) else { unreachable!() };
    waiter.terms.hold.max = Some(3_000);
    bench.send(Request::Acquire(waiter));
    bench
}

/// The record keeps the maximum hold of the first call. The second one would compute its deadline from its own request.
#[test]
fn an_acquire_of_another_call_does_not_take_a_queue_place_up_without_its_maximum_hold() {
    let mut bench = waited_for(0);
    let before = bench.record().clone();
    assert!(!matches!(bench.send(from_another_call(2, 0, WAIT)), Outcome::Queued { .. } | Outcome::Granted { .. }));
    assert_eq!(*bench.record(), before);
}

/// The call ends in `Unavailable`, and its caller retries it with the same lease id and other options.
#[test]
fn a_late_acquire_of_another_call_does_not_replace_the_terms_of_a_waiter() {
    let mut bench = waited_for(9);
    for late in [from_another_call(2, 9, WAIT), from_another_call(2, 9, None)] {
        let before = bench.record().clone();
        assert!(!matches!(bench.send(late), Outcome::Queued { .. } | Outcome::Granted { .. }));
        assert_eq!(*bench.record(), before);
    }
    bench.send(release(1));
    let holder = &bench.record().holders[0];
    assert_eq!(
        (holder.terms.sharing, holder.terms.ttl, holder.terms.acquire_id),
        (Sharing::Exclusive, 1_000, acquire_id(2))
    );
}

/// Both calls chose the same lease id.
#[test]
fn a_late_acquire_of_another_call_and_its_take_back_leave_a_holder_as_it_is() {
    let mut bench = Bench::new();
    granted(&bench.send(once(2, 0)));
    let before = bench.record().clone();
    for late in [from_another_call(2, 0, None), from_another_call(2, 0, WAIT)] {
        assert!(matches!(bench.send(late), Outcome::Refused { .. }));
    }
    let late = Request::Leave(Leave { lease: lease(2), acquire_id: acquire_id(100) });
    assert_eq!(bench.send(late), Outcome::Absent);
    assert_eq!(*bench.record(), before);
    assert_eq!(bench.send(release(2)), Outcome::Released);
}

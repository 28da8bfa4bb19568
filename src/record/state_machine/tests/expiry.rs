//! When a record stops mattering.

use super::*;

#[test]
fn the_record_s_expiry_never_goes_back_and_waits_for_the_hybrid_clock() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    let end = bench.record().expires_at;
    bench.send(release(1));
    assert_eq!(bench.record().expires_at, end);
    bench.pass(-3_600_000);
    granted(&bench.send(once(2, 0)));
    assert_eq!(bench.record().expires_at, end, "not even if the store's wall clock does");
    let ahead = StoreClock { now: bench.now(), hlc: HybridTime { seconds: 1_800_000_000, ordinal: 0 } };
    let (record, _) = apply(bench.record.as_ref(), ahead, &release(2));
    assert_eq!(record.unwrap().expires_at.millis(), 1_800_000_000_000);
}

#[test]
fn of_three_refreshes_two_leave_the_record_s_expiry_where_it_is() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    let moved = |bench: &mut Bench| {
        let before = bench.record().expires_at;
        bench.pass(334);
        bench.send(refresh(1));
        bench.record().expires_at != before
    };
    let writes: Vec<bool> = (0..6).map(|_| moved(&mut bench)).collect();
    assert_eq!(writes, [false, false, true, false, false, true]);
}

#[test]
fn the_record_of_a_lease_without_expiry_ends_at_most_the_longest_ttl_after_it() {
    let mut bench = Bench::new();
    let Request::Acquire(mut acquire) = once(1, 0) else { unreachable!("it is an acquire") };
    acquire.terms.ttl = Ttl::FOREVER.millis();
    granted(&bench.send(Request::Acquire(acquire)));
    assert_eq!(bench.record().expires_at, bench.record().holders[0].expires_at.after(Ttl::MAX.millis()));
}

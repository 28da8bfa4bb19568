use super::*;
use crate::record::Transfer;

/// Holds of so many milliseconds. 0: none.
fn limits(min: u64, max: u64) -> HoldLimits {
    let [min, max] = [min, max].map(|limit| Some(limit).filter(|limit| *limit > 0));
    HoldLimits { min, max }
}

fn held(number: u8, min: u64, max: u64, wait: Option<WaitSpec>) -> Request {
    let Request::Acquire(Acquire { terms, .. }) = acquire(number, 0, wait) else { unreachable!() };
    let terms = LeaseSpec { grace: 100, hold: limits(min, max), ..terms };
    Request::Acquire(Acquire { terms, wait })
}

fn released(number: u8, token: FencingToken) -> Request {
    Request::Release(Release { lease: lease(number), token })
}

#[test]
fn a_release_before_the_end_of_the_minimum_hold_keeps_the_key_unavailable_until_then() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(held(1, 900, 0, None)));
    let since = bench.now();
    bench.pass(100);
    assert_eq!(bench.send(released(1, token)), Outcome::Released);
    let entry = bench.record().holders[0].clone();
    assert_eq!((entry.terms.lease, entry.released_at), (LeaseId::NONE, Some(bench.now())));
    assert_eq!((entry.expires_at, entry.not_after), (since.after(900), Some(since.after(900))));
    let before = bench.record().clone();
    assert_eq!(bench.send(released(1, token)), Outcome::Absent, "a second release finds no lease");
    assert_eq!(bench.send(refresh(1)), Outcome::Absent);
    assert!(matches!(bench.send(held(1, 900, 0, None)), Outcome::Refused { .. }), "no acquire takes it up again");
    assert_eq!(bench.record(), &before);
    bench.pass(799);
    assert!(matches!(bench.send(once(2, 0)), Outcome::Refused { .. }));
    bench.pass(1);
    assert!(granted(&bench.send(once(2, 0))) > token);
}

#[test]
fn a_release_after_the_minimum_hold_hands_the_key_over() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(held(1, 600, 0, None)));
    bench.send(wait(2, 0));
    bench.pass(600);
    bench.send(wait(2, 0));
    assert_eq!(bench.send(released(1, token)), Outcome::Released);
    assert_eq!(bench.holders(), [2]);
}

#[test]
fn a_batch_finds_no_released_lease_and_a_revocation_ends_its_minimum_hold() {
    let mut bench = Bench::new();
    let tokens = [granted(&bench.send(held(1, 900, 0, None)))];
    assert!(bench.apply_batch(&tokens, &BatchRequest::Release));
    assert_eq!(bench.holders(), [0]);
    assert!(!bench.apply_batch(&tokens, &BatchRequest::Release));
    assert!(!bench.apply_batch(&tokens, &BatchRequest::Keep { ttl: 1_000 }));
    assert!(!bench.apply_batch(&tokens, &BatchRequest::Keep { ttl: 1_000 }));
    assert!(bench.apply_batch(&tokens, &BatchRequest::Revoke { by: "ops".into(), reason: "drill".into() }));
    assert_eq!(bench.holders(), [0_u8; 0]);
}

#[test]
fn a_lease_that_expires_has_no_minimum_hold() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(held(1, 5_000, 0, None)));
    bench.pass(1_100);
    assert_eq!(bench.send(released(1, token)), Outcome::Absent, "an expired lease cannot be released");
    granted(&bench.send(once(2, 0)));
}

#[test]
fn a_lease_without_a_minimum_hold_leaves_no_entry_even_if_the_clock_was_set_back() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.pass(-500);
    assert_eq!(bench.send(released(1, token)), Outcome::Released);
    assert_eq!(bench.holders(), [0_u8; 0]);
}

#[test]
fn no_request_extends_a_lease_past_its_maximum_hold() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(held(1, 0, 1_500, None)));
    let end = bench.now().after(1_600);
    assert_eq!(bench.record().holders[0].not_after, Some(end), "the grace comes on top");
    bench.pass(800);
    bench.send(refresh(1));
    assert_eq!(bench.record().holders[0].expires_at, end);
    assert!(bench.apply_batch(&[token], &BatchRequest::Keep { ttl: 9_000 }));
    assert_eq!(granted(&bench.send(held(1, 0, 9_000, None))), token, "sent again");
    bench.send(Request::Transfer(Transfer { lease: lease(1), token, to: lease(2) }));
    let holder = &bench.record().holders[0];
    assert_eq!((holder.terms.lease, holder.expires_at, holder.not_after), (lease(2), end, Some(end)));
    bench.pass(800);
    granted(&bench.send(once(3, 0)));
}

#[test]
fn a_ttl_longer_than_the_maximum_hold_is_cut() {
    let mut bench = Bench::new();
    let outcome = bench.send(held(1, 0, 400, None));
    let end = bench.now().after(500);
    assert!(matches!(outcome, Outcome::Granted { not_after, .. } if not_after == Some(end)));
    assert_eq!(bench.record().holders[0].expires_at, end);
}

#[test]
fn the_maximum_hold_of_a_waiter_counts_from_its_grant() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    let spec = Some(WaitSpec { ttl: 500, queue_limit: 4 });
    bench.send(held(2, 0, 300, spec));
    bench.send(held(2, 0, 300, spec));
    bench.pass(200);
    bench.send(released(1, token));
    let end = bench.now().after(400);
    assert_eq!((bench.record().holders[0].not_after, bench.record().holders[0].expires_at), (Some(end), end));
}

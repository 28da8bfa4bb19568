use super::*;

/// The release reads the clock before it stalls. A waiter that sends its acquire meanwhile counts its offer from a
/// later time.
#[test]
fn an_offer_counts_from_the_waiter_s_last_acquire_though_the_release_was_parsed_before() {
    let mut bench = Bench::new();
    bench.send(wait(1, 0));
    for pass in [0, 400, -1] {
        bench.pass(pass);
        bench.send(wait(2, 0));
    }
    bench.pass(-298);
    bench.send(release(1));
    assert_eq!(bench.record().holders[0].expires_at, bench.now().after(299 + 500));
}

#[test]
fn a_waiter_that_expires_now_has_left_the_queue() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    bench.send(wait(2, 0));
    bench.pass(499);
    bench.send(refresh(1));
    assert_eq!(bench.queue(), [2]);
    bench.pass(1);
    bench.send(refresh(1));
    assert!(bench.queue().is_empty());
}

#[test]
fn a_leave_ends_what_waits_and_a_release_what_holds() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(wait(2, 0));
    let by_token = |number| Request::Release(Release { lease: lease(number), token });
    assert_eq!(bench.send(by_token(2)), Outcome::Absent);
    assert_eq!(bench.queue(), [2]);
    assert_eq!(bench.send(release(2)), Outcome::Released);
    assert!(bench.queue().is_empty());
    bench.pass(1000);
    assert_eq!(bench.send(by_token(1)), Outcome::Absent, "it has expired");
}

/// A take-back by lease id alone would end the lease of the next process that has the same id.
#[test]
fn a_leave_ends_nothing_under_another_acquire_id() {
    let mut bench = Bench::new();
    bench.send(wait(1, 0));
    bench.send(wait(2, 0));
    let before = bench.record().clone();
    let other = |number| Request::Leave(Leave { lease: lease(number), acquire_id: acquire_id(number + 10) });
    assert_eq!([bench.send(other(1)), bench.send(other(2))], [Outcome::Absent, Outcome::Absent]);
    assert_eq!(bench.record(), &before);
    assert_eq!([bench.send(release(2)), bench.send(release(1))], [Outcome::Released, Outcome::Released]);
    assert!(bench.record().holders.is_empty() && bench.record().queue.is_empty());
}

#[test]
fn a_revocation_ends_the_live_leases_up_to_its_token() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 9)));
    let second = granted(&bench.send(once(2, 9)));
    let upto = |upto| Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto });
    let taken = |outcome| match outcome {
        Outcome::Revoked { holders } => holders.iter().map(|holder| holder.version).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(taken(bench.send(upto(first))), [first]);
    assert_eq!(bench.holders(), [2]);
    bench.pass(1000);
    assert_eq!(taken(bench.send(upto(second))), []);
}

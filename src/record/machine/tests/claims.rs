use super::*;

#[test]
fn a_claim_lasts_as_long_as_its_waiter_counts_though_the_release_was_parsed_before_it_asked() {
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
fn a_waiter_whose_time_ends_at_this_moment_has_left_the_queue() {
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
fn a_release_by_id_alone_ends_what_waits_and_one_with_a_token_what_holds() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(wait(2, 0));
    let by = |number, token| Request::Release(Release { lease: lease(number), token });
    assert_eq!(bench.send(by(2, Some(token))), Outcome::Absent);
    assert_eq!(bench.queue(), [2]);
    assert_eq!(bench.send(by(2, None)), Outcome::Released);
    assert!(bench.queue().is_empty());
    bench.pass(1000);
    assert_eq!(bench.send(by(1, Some(token))), Outcome::Absent, "its time is over at this moment");
}

#[test]
fn a_revocation_takes_from_those_who_were_there_up_to_its_token_and_whose_time_is_not_over() {
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

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

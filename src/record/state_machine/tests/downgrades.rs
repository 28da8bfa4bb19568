use super::*;

fn downgrade(number: u8, token: FencingToken, limit: u32) -> Request {
    Request::Downgrade(Downgrade { lease: lease(number), token, sharing: Sharing::from_limit(limit) })
}

#[test]
fn a_downgrade_keeps_lease_token_and_expiry_and_grants_to_sharers_up_to_the_first_that_excludes() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    for (number, limit) in [(2, 9), (3, 9), (4, 0), (5, 9)] {
        bench.send(acquire(number, limit, Some(WaitSpec { ttl: 500, queue_limit: 9 })));
    }
    bench.pass(10);
    let before = bench.record().holders[0].clone();
    assert_eq!(bench.send(downgrade(1, token, 4)), Outcome::Downgraded);
    assert_eq!((bench.holders(), bench.queue()), (vec![1, 2, 3], vec![4, 5]));
    let mut expected = before.clone();
    (expected.terms.sharing, expected.refreshes, expected.last_seen) =
        (Sharing::UpTo(4), before.refreshes + 1, bench.now());
    assert_eq!(bench.record().holders[0], expected);
    let told: Vec<_> = bench.record().handover.iter().map(|(acquire_id, _)| *acquire_id).collect();
    assert_eq!(told, [2, 3].map(acquire_id));
    assert!(bench.record().holders.windows(2).all(|pair| pair[0].version < pair[1].version));
}

#[test]
fn its_limit_counts_the_holder_itself() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    for number in 2..=4 {
        bench.send(wait(number, 9));
    }
    bench.send(downgrade(1, token, 3));
    assert_eq!((bench.holders(), bench.queue()), (vec![1, 2, 3], vec![4]));
}

#[test]
fn a_downgrade_can_be_sent_twice_and_each_answer_comes_from_a_write() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 1)));
    assert_eq!(bench.send(downgrade(1, token, 2)), Outcome::Downgraded, "one holder at most excludes others, too");
    let before = bench.record().clone();
    assert_eq!(bench.send(downgrade(1, token, 2)), Outcome::Downgraded);
    let mut expected = before;
    expected.holders[0].refreshes += 1;
    assert_eq!(*bench.record(), expected, "in the same millisecond");
}

#[test]
fn a_holder_that_shares_keeps_its_limit() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(downgrade(1, token, 3));
    let before = bench.record().clone();
    for limit in [0, 1, 2, 4] {
        assert!(
            matches!(bench.send(downgrade(1, token, limit)), Outcome::Refused { holder } if holder.version == token)
        );
        assert_eq!(*bench.record(), before);
    }
}

#[test]
fn only_the_lease_that_is_named_by_its_id_and_its_token_is_downgraded() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(downgrade(1, FencingToken::MIN, 2)), Outcome::Absent);
    assert_eq!(bench.record, None);
    let first = granted(&bench.send(once(1, 0)));
    bench.send(release(1));
    let second = granted(&bench.send(once(1, 0)));
    bench.send(wait(2, 9));
    let before = bench.record().clone();
    for (number, token) in [(1, first), (2, second), (3, second)] {
        assert_eq!(bench.send(downgrade(number, token, 2)), Outcome::Absent);
        assert_eq!(*bench.record(), before, "a delayed downgrade does not change a later grant of the same lease id");
    }
    bench.pass(1_000);
    assert_eq!(bench.send(downgrade(1, second, 2)), Outcome::Absent, "an expired lease is gone");
}

#[test]
fn no_later_request_of_the_lease_takes_a_downgrade_back() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(downgrade(1, token, 2));
    bench.send(refresh(1));
    assert_eq!(granted(&bench.send(once(1, 0))), token, "a late copy of its acquire");
    assert_eq!(bench.record().holders[0].terms.sharing, Sharing::UpTo(2));
    granted(&bench.send(once(2, 2)));
    assert!(matches!(bench.send(once(3, 9)), Outcome::Refused { .. }));
}

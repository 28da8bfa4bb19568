use super::*;

fn transfer(from: u8, token: FencingToken, to: u8) -> Request {
    Request::Transfer(Transfer { lease: lease(from), token, to: lease(to) })
}

#[test]
fn only_the_lease_with_this_id_and_this_token_is_transferred() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 9)));
    let other = granted(&bench.send(once(2, 9)));
    let before = bench.record().clone();
    for wrong in [transfer(1, other, 3), transfer(2, first, 3), transfer(4, first, 3)] {
        assert_eq!(bench.send(wrong), Outcome::Absent);
        assert_eq!(bench.record(), &before);
    }
    assert!(matches!(bench.send(transfer(2, other, 1)), Outcome::Refused { holder } if holder.version == first));
    assert!(matches!(bench.send(transfer(1, first, 3)), Outcome::Transferred { token } if token > other));
    assert!(matches!(bench.send(transfer(1, first, 3)), Outcome::Transferred { .. }), "again");
}

fn upgrade(from: u8, token: FencingToken, to: u8) -> Request {
    Request::Upgrade(Transfer { lease: lease(from), token, to: lease(to) })
}

#[test]
fn a_sharer_that_is_alone_is_upgraded_once_and_waiters_keep_their_places() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 9)));
    bench.send(wait(2, 0));
    bench.send(wait(3, 9));
    bench.pass(10);
    let before = bench.record().holders[0].clone();
    let Outcome::Transferred { token: next } = bench.send(upgrade(1, token, 4)) else { panic!("it is alone") };
    let after = bench.record().holders[0].clone();
    assert!(next > token && after.version == next);
    assert_eq!((bench.holders(), bench.queue()), (vec![4], vec![2, 3]));
    let terms = LeaseSpec { lease: lease(4), sharing: Sharing::Exclusive, ..before.terms };
    assert_eq!((after.terms, after.since, after.expires_at), (terms, bench.now(), before.expires_at.after(10)));
    assert_eq!(bench.send(upgrade(1, token, 4)), Outcome::Transferred { token: next }, "again");
    assert_eq!(bench.send(upgrade(1, token, 5)), Outcome::Absent, "a later one of a lease that is gone");
}

#[test]
fn a_sharer_beside_another_is_not_upgraded() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 9)));
    let second = granted(&bench.send(once(2, 9)));
    let before = bench.record().clone();
    for (number, token, other) in [(1, first, second), (2, second, first)] {
        assert!(
            matches!(bench.send(upgrade(number, token, 3)), Outcome::Refused { holder } if holder.version == other)
        );
        assert_eq!(*bench.record(), before);
    }
    bench.send(release(1));
    assert!(matches!(bench.send(upgrade(2, second, 3)), Outcome::Transferred { token } if token > second));
    assert_eq!(bench.holders(), [3]);
}

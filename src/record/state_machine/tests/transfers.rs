use super::*;

#[test]
fn a_waiter_with_the_receiving_lease_id_is_notified_and_another_waiter_stays() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(wait(2, 0));
    bench.send(wait(3, 0));
    bench.send(Request::Transfer(Transfer { lease: lease(1), token, to: lease(2) }));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![3]));
    assert_eq!(bench.record().handover, [(caller(2), None)]);
}

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

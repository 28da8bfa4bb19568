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

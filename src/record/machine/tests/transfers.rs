use super::*;

#[test]
fn who_waits_under_the_id_that_is_given_a_lease_is_told_and_who_waits_under_another_stays() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(wait(2, 0));
    bench.send(wait(3, 0));
    bench.send(Request::Transfer(Transfer { lease: lease(1), token, to: lease(2) }));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![3]));
    assert_eq!(bench.record().handed, [(caller(2), None)]);
}

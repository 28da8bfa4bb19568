use super::*;

impl Bench {
    pub(super) fn apply_batch(&mut self, tokens: &[FencingToken], batch: &BatchRequest) -> bool {
        self.ordinal += 1;
        let seconds = u64::try_from(self.millis / 1000).unwrap();
        let at = StoreClock { now: self.now(), hlc: HybridTime { seconds, ordinal: self.ordinal } };
        let after = apply_batch(self.record(), at, tokens, batch);
        let done = after.is_some();
        self.record = after.or(self.record.take());
        done
    }
}

#[test]
fn a_batch_request_applies_to_all_named_leases_or_to_none() {
    let mut bench = Bench::new();
    let tokens: Vec<_> = (1..=3).map(|number| granted(&bench.send(once(number, 5)))).collect();
    let refresh = BatchRequest::Keep { ttl: 5_000 };
    bench.pass(999);
    assert!(bench.apply_batch(&tokens[..2], &refresh), "each has 1 ms left");
    bench.pass(1);
    assert!(!bench.apply_batch(&tokens, &refresh), "one has expired");
    assert!(!bench.apply_batch(&tokens[2..], &BatchRequest::Release));
    bench.send(wait(4, 0));
    assert!(bench.apply_batch(&tokens[..1], &BatchRequest::Revoke { by: "ops".into(), reason: "drill".into() }));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![4]), "a change removes what has expired");
    assert_eq!(bench.record().history[0].tokens, tokens[..1]);
    assert!(bench.apply_batch(&tokens[1..2], &BatchRequest::Release));
    assert_eq!((bench.holders(), bench.queue()), (vec![4], vec![]));
    assert!(!bench.apply_batch(&tokens[1..2], &BatchRequest::Release), "the lease was released before");
}

#[test]
fn a_batch_refresh_neither_prunes_nor_grants() {
    let mut bench = Bench::new();
    let tokens: Vec<_> = (1..=2).map(|number| granted(&bench.send(once(number, 2)))).collect();
    bench.pass(600);
    bench.send(wait(3, 2));
    assert!(bench.apply_batch(&tokens[..1], &BatchRequest::Keep { ttl: 1_000 }));
    bench.pass(401);
    assert!(bench.apply_batch(&tokens[..1], &BatchRequest::Keep { ttl: 1_000 }));
    assert_eq!((bench.holders(), bench.queue()), (vec![1, 2], vec![3]), "the second has expired and stays");
    assert!(!bench.apply_batch(&tokens[1..], &BatchRequest::Keep { ttl: 1_000 }), "an expired lease is not refreshed");
    bench.send(Request::Prune);
    assert_eq!((bench.holders(), bench.queue()), (vec![1, 3], vec![]));
}

use super::*;

impl Bench {
    fn jointly(&mut self, tokens: &[FencingToken], joint: &BatchRequest) -> bool {
        self.ordinal += 1;
        let seconds = u64::try_from(self.millis / 1000).unwrap();
        let at = StoreClock { now: self.now(), tick: HybridTime { seconds, ordinal: self.ordinal } };
        let after = apply_batch(self.record(), at, tokens, joint);
        let done = after.is_some();
        self.record = after.or(self.record.take());
        done
    }
}

#[test]
fn what_is_done_jointly_is_done_to_all_that_are_named_or_to_none() {
    let mut bench = Bench::new();
    let tokens: Vec<_> = (1..=3).map(|number| granted(&bench.send(once(number, 5)))).collect();
    let refresh = |least| BatchRequest::Refresh { ttl: 5_000, least };
    bench.pass(600);
    assert!(!bench.jointly(&tokens, &refresh(401)), "each has 400 ms left");
    assert!(bench.jointly(&tokens[..2], &refresh(400)));
    bench.pass(400);
    assert!(!bench.jointly(&tokens, &refresh(0)), "one is over");
    assert!(!bench.jointly(&tokens[2..], &BatchRequest::Release));
    bench.send(wait(4, 0));
    assert!(bench.jointly(&tokens[..1], &BatchRequest::Revoke { by: "ops".into(), reason: "drill".into() }));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![4]), "what is over goes with any change");
    assert_eq!(bench.record().history[0].tokens, tokens[..1]);
    assert!(bench.jointly(&tokens[1..2], &BatchRequest::Release));
    assert_eq!((bench.holders(), bench.queue()), (vec![4], vec![]));
    assert!(!bench.jointly(&tokens[1..2], &BatchRequest::Release), "the second time nothing is left of it");
}

#[test]
fn whoever_is_kept_alive_jointly_drops_and_lets_in_nobody() {
    let mut bench = Bench::new();
    let tokens: Vec<_> = (1..=2).map(|number| granted(&bench.send(once(number, 2)))).collect();
    bench.pass(600);
    bench.send(wait(3, 2));
    assert!(bench.jointly(&tokens[..1], &BatchRequest::Keep { ttl: 1_000 }));
    bench.pass(401);
    assert!(bench.jointly(&tokens[..1], &BatchRequest::Keep { ttl: 1_000 }));
    assert_eq!((bench.holders(), bench.queue()), (vec![1, 2], vec![3]), "the second is over");
    assert!(!bench.jointly(&tokens[1..], &BatchRequest::Keep { ttl: 1_000 }), "what is over is not kept alive");
    bench.send(Request::Prune);
    assert_eq!((bench.holders(), bench.queue()), (vec![1, 3], vec![]));
}

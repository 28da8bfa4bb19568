use super::*;
use crate::record::Raise;

fn raise(to: FencingToken) -> Request {
    Request::Raise(Raise { to })
}

/// A token that stands for a time two hours ahead.
fn ahead(bench: &Bench) -> FencingToken {
    let seconds = u64::try_from(bench.millis / 1000).unwrap() + 7_200;
    FencingToken::following(None, HybridTime { seconds, ordinal: 7 }, 0)
}

#[test]
fn a_raise_lifts_the_version_keeps_holders_and_queue_and_can_be_sent_twice() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(wait(1, 0)));
    bench.send(wait(2, 0));
    let (before, to) = (bench.record().clone(), ahead(&bench));
    bench.pass(10);
    assert_eq!(bench.send(raise(to)), Outcome::Raised { version: to });
    let raised = bench.record().clone();
    assert_eq!((&raised.holders, &raised.queue), (&before.holders, &before.queue));
    assert_eq!((raised.version, raised.last_seen), (to, bench.now()));
    assert!(raised.handover.is_empty(), "nothing is notified");
    bench.pass(10);
    for smaller in [to, token, FencingToken::MIN] {
        assert_eq!(bench.send(raise(smaller)), Outcome::Raised { version: to });
        assert_eq!(bench.record(), &raised, "nothing changes");
    }
    assert_eq!(bench.send(refresh(1)), Outcome::Refreshed { token });
    bench.send(release(1));
    assert_eq!(bench.holders(), [2]);
    assert_eq!(bench.record().version.get(), to.get() + 1);
}

#[test]
fn a_raise_makes_a_record_that_is_kept_until_the_end_of_the_token_s_second() {
    let mut bench = Bench::new();
    let to = ahead(&bench);
    assert_eq!(bench.send(raise(to)), Outcome::Raised { version: to });
    assert!(bench.holders().is_empty());
    let end = StoreTime::from_millis(bench.millis + 7_200_000 + 1_000);
    assert_eq!(bench.record().expires_at, end);
    assert!(granted(&bench.send(once(1, 0))) > to);
    bench.send(release(1));
    assert_eq!(bench.record().expires_at, end, "no later change shortens it");
    // If the record is deleted then, the clock alone numbers larger tokens.
    bench.pass(end.millis() - bench.millis);
    bench.record = None;
    assert!(granted(&bench.send(once(1, 0))) > to);
}

#[test]
fn a_raise_prunes_and_grants_as_each_verb_does_with_tokens_above_it() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    bench.pass(900);
    for number in 2..=4 {
        bench.send(wait(number, 3));
    }
    bench.pass(100);
    let to = ahead(&bench);
    let Outcome::Raised { version } = bench.send(raise(to)) else { panic!("the version must be raised") };
    assert_eq!((bench.holders(), bench.record().handover.len()), (vec![2, 3, 4], 3));
    let tokens: Vec<u64> = bench.record().holders.iter().map(|holder| holder.version.get()).collect();
    assert_eq!(tokens, [1, 2, 3].map(|more| to.get() + more));
    assert_eq!(version.get(), to.get() + 3, "the version after it");
}

use super::*;
use crate::{
    record::{Acquire, Complete, HoldLimits, LeaseSpec, Leave, Release, Revoke},
    types::{lease_id::LeaseId, sharing::Sharing, token::HybridTime},
};

mod acquire_ids;
mod batch;
mod completions;
mod downgrades;
mod expiry;
mod holds;
mod in_turn;
mod offers;
mod raises;
mod tokens;
mod transfers;
mod values;

/// A record and the clocks of its store.
struct Bench {
    record: Option<Record>,
    millis: i64,
    ordinal: u64,
}

impl Bench {
    fn new() -> Self {
        Self { record: None, millis: 1_700_000_000_000, ordinal: 0 }
    }

    fn pass(&mut self, millis: i64) {
        self.millis += millis;
    }

    fn now(&self) -> StoreTime {
        StoreTime::from_millis(self.millis)
    }

    #[allow(clippy::needless_pass_by_value, reason = "a test sends what it has just made")]
    fn send(&mut self, request: Request) -> Outcome {
        self.ordinal += 1;
        let seconds = u64::try_from(self.millis / 1000).unwrap();
        let at = StoreClock { now: self.now(), hlc: HybridTime { seconds, ordinal: self.ordinal } };
        let (record, outcome) = apply(self.record.as_ref(), at, &request);
        self.record = record;
        outcome
    }

    fn record(&self) -> &Record {
        self.record.as_ref().unwrap()
    }

    fn holders(&self) -> Vec<u8> {
        self.record().holders.iter().map(|holder| holder.terms.lease.to_bytes()[0]).collect()
    }

    fn queue(&self) -> Vec<u8> {
        self.record().queue.iter().map(|waiter| waiter.terms.lease.to_bytes()[0]).collect()
    }
}

fn lease(number: u8) -> LeaseId {
    LeaseId::from_bytes([number; 16])
}

fn acquire_id(number: u8) -> AcquireId {
    format!("{number:016x}/{number}").parse().unwrap()
}

fn once(number: u8, limit: u32) -> Request {
    acquire(number, limit, None)
}

fn wait(number: u8, limit: u32) -> Request {
    acquire(number, limit, Some(WaitSpec { ttl: 500, queue_limit: 4 }))
}

fn acquire(number: u8, limit: u32, wait: Option<WaitSpec>) -> Request {
    let terms = LeaseSpec::of_number(number, Sharing::from_limit(limit), 1_000);
    Request::Acquire(Acquire { terms, wait })
}

fn refresh(number: u8) -> Request {
    Request::Refresh(Refresh { lease: lease(number), ttl: 1000, grace: 0, metadata: None, acquire_id: None })
}

fn release(number: u8) -> Request {
    Request::Leave(Leave { lease: lease(number), acquire_id: acquire_id(number) })
}

fn revoke() -> Request {
    Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX })
}

fn granted(outcome: &Outcome) -> FencingToken {
    match outcome {
        Outcome::Granted { token, .. } => *token,
        other => panic!("{other:?}"),
    }
}

fn queued(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Queued { position, .. } => *position,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_key_is_granted_with_the_clock_s_token() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    assert_eq!(token, FencingToken::following(None, HybridTime { seconds: 1_700_000_000, ordinal: 1 }, 0));
    assert_eq!(bench.record().version, token);
    assert_eq!(bench.record().expires_at, bench.now().after(2 * 1000), "twice as far as it must be");
}

#[test]
fn a_held_key_is_refused_and_its_record_does_not_change() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    let before = bench.record().clone();
    bench.pass(10);
    match bench.send(once(2, 0)) {
        Outcome::Refused { holder } => assert_eq!(holder.version, token),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.record(), &before);
}

#[test]
fn a_hand_over_notifies_the_waiter_that_is_granted_the_key_and_no_other() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    for number in [2, 3] {
        bench.send(wait(number, 0));
    }
    bench.send(Request::Release(Release { lease: lease(1), token }));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![3]));
    assert_eq!(bench.record().handover, [(acquire_id(2), Some(bench.record().version))]);
}

#[test]
fn the_same_request_again_keeps_its_token_and_changes_the_record() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    let before = bench.record().clone();
    assert_eq!(granted(&bench.send(once(1, 0))), token);
    assert_ne!(bench.record(), &before, "even in the same millisecond");
    assert_eq!(bench.send(refresh(1)), Outcome::Refreshed { token });
    assert_eq!(bench.record().holders[0].refreshes, 2);
}

#[test]
fn an_expired_lease_is_gone_at_the_millisecond_and_not_before() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 0)));
    bench.pass(999);
    assert!(matches!(bench.send(once(2, 0)), Outcome::Refused { .. }));
    bench.pass(1);
    assert_eq!(bench.send(refresh(1)), Outcome::Absent, "a refresh never creates again");
    assert!(granted(&bench.send(once(2, 0))) > first);
}

#[test]
fn a_leave_at_the_end_of_a_lease_finds_it_gone() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    bench.pass(1_000);
    assert_eq!(bench.send(release(1)), Outcome::Absent);
}

#[test]
fn a_refresh_never_pulls_the_end_in() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    let end = bench.record().holders[0].expires_at;
    bench.send(Request::Refresh(Refresh { lease: lease(1), ttl: 10, grace: 0, metadata: None, acquire_id: None }));
    assert_eq!(bench.record().holders[0].expires_at, end);
}

#[test]
fn the_grace_keeps_the_key_and_a_release_ends_it() {
    let mut bench = Bench::new();
    let mut request = once(1, 0);
    if let Request::Acquire(acquire) = &mut request {
        acquire.terms.grace = 500;
    }
    bench.send(request);
    bench.pass(1499);
    assert!(matches!(bench.send(once(2, 0)), Outcome::Refused { .. }));
    assert_eq!(bench.send(release(1)), Outcome::Released);
    granted(&bench.send(once(2, 0)));
}

#[test]
fn a_release_keeps_the_record_and_can_be_sent_twice() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    assert_eq!(bench.send(release(1)), Outcome::Released);
    assert_eq!(bench.send(release(1)), Outcome::Absent);
    assert_eq!(bench.record().version, token);
    assert!(granted(&bench.send(once(2, 0))) > token);
}

#[test]
fn a_release_that_was_delayed_does_not_touch_a_later_grant_of_its_id() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 0)));
    bench.send(release(1));
    let second = granted(&bench.send(once(1, 0)));
    let delayed = |token| Request::Release(Release { lease: lease(1), token });
    assert_eq!(bench.send(delayed(first)), Outcome::Absent);
    assert_eq!(bench.holders(), [1]);
    assert_eq!(queued(&bench.send(wait(2, 0))), 0);
    let waiting = Request::Release(Release { lease: lease(2), token: second });
    assert_eq!(bench.send(waiting), Outcome::Absent);
    assert_eq!(bench.queue(), [2]);
    assert_eq!(bench.send(delayed(second)), Outcome::Released);
}

#[test]
fn a_release_or_refresh_of_another_lease_id_changes_nothing() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    let before = bench.record().clone();
    assert_eq!(bench.send(release(2)), Outcome::Absent);
    assert_eq!(bench.send(refresh(2)), Outcome::Absent);
    assert_eq!(bench.record(), &before);
}

#[test]
fn waiters_are_served_in_order_and_a_handed_over_key_is_taken_or_passed_on() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(wait(1, 0)));
    assert_eq!(queued(&bench.send(wait(2, 0))), 0);
    assert_eq!(queued(&bench.send(wait(3, 0))), 1);
    assert_eq!(queued(&bench.send(wait(2, 0))), 0, "a repeated acquire keeps its place");
    bench.send(release(1));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![3]));
    assert!(bench.record().version > first);
    let offer = bench.record().holders[0].expires_at;
    assert_eq!(offer, bench.now().after(500), "a waiter that may have died gets its wait ttl");
    let second = granted(&bench.send(wait(2, 0)));
    assert_eq!(bench.record().holders[0].expires_at, bench.now().after(1000), "its ttl after its next acquire");
    assert_eq!(second, bench.record().version);
    assert!(bench.record().handover.is_empty(), "the next change has no hand-over");
    bench.pass(400);
    bench.send(wait(3, 0));
    bench.pass(600);
    bench.send(refresh(9));
    assert!(bench.holders().is_empty(), "3 had not repeated its acquire for longer than its wait ttl");
}

#[test]
fn a_repeated_acquire_is_granted_the_ttl_with_which_it_was_queued() {
    let mut bench = Bench::new();
    bench.send(wait(1, 0));
    let with_ttl = |ttl| match wait(2, 0) {
        Request::Acquire(mut acquire) => {
            acquire.terms.ttl = ttl;
            acquire.wait = Some(WaitSpec { ttl, queue_limit: 4 });
            Request::Acquire(acquire)
        }
        other => other,
    };
    bench.send(with_ttl(100));
    let before = bench.record().clone();
    bench.send(with_ttl(100));
    assert_ne!(bench.record(), &before, "each answer comes from a write");
    bench.send(with_ttl(60_000));
    bench.send(release(1));
    assert_eq!(bench.record().holders[0].expires_at, bench.now().after(100));
}

#[test]
fn an_acquire_that_does_not_wait_leaves_the_queue() {
    let mut bench = Bench::new();
    bench.send(wait(1, 0));
    bench.send(wait(2, 0));
    assert!(matches!(bench.send(once(2, 0)), Outcome::Refused { .. }));
    assert!(bench.queue().is_empty());
}

#[test]
fn a_queue_has_a_limit_and_a_full_one_still_serves_its_waiters() {
    let mut bench = Bench::new();
    for number in 1..=5 {
        bench.send(wait(number, 0));
    }
    let full = bench.record().clone();
    assert_eq!(bench.send(wait(6, 0)), Outcome::Full { length: 4 });
    assert_eq!(bench.record(), &full);
    assert_eq!(queued(&bench.send(wait(5, 0))), 3, "a repeated acquire needs no room");
    assert!(
        matches!(bench.send(once(6, 0)), Outcome::Refused { .. }),
        "an acquire that does not wait needs none either"
    );
    bench.send(release(1));
    assert_eq!(queued(&bench.send(wait(6, 0))), 3);
}

#[test]
fn sharers_are_as_many_as_all_of_them_allow() {
    let mut bench = Bench::new();
    let tokens = [1, 2].map(|number| granted(&bench.send(once(number, 3))));
    assert!(tokens[0] < tokens[1]);
    assert!(matches!(bench.send(once(3, 0)), Outcome::Refused { .. }), "exclusive");
    assert!(matches!(bench.send(once(3, 2)), Outcome::Refused { .. }), "its own limit");
    granted(&bench.send(once(3, 5)));
    assert!(matches!(bench.send(once(4, 5)), Outcome::Refused { .. }), "the others' limit");
    bench.send(release(1));
    granted(&bench.send(once(4, 5)));
    assert_eq!(bench.holders(), [2, 3, 4]);
}

#[test]
fn a_writer_is_not_starved_by_readers() {
    let mut bench = Bench::new();
    bench.send(wait(1, 9));
    bench.send(wait(2, 0));
    assert_eq!(queued(&bench.send(wait(3, 9))), 1);
    assert!(matches!(bench.send(once(4, 9)), Outcome::Refused { .. }));
    bench.send(release(1));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![3]));
}

#[test]
fn several_are_granted_at_once_with_tokens_that_grow() {
    let mut bench = Bench::new();
    bench.send(wait(1, 0));
    for number in 2..=4 {
        bench.send(wait(number, 3));
    }
    bench.send(wait(5, 0));
    bench.send(release(1));
    assert_eq!((bench.holders(), bench.queue()), (vec![2, 3, 4], vec![5]));
    let notified: Vec<_> = bench.record().handover.iter().map(|(acquire_id, _)| *acquire_id).collect();
    assert_eq!(notified, [2, 3, 4].map(acquire_id), "each is notified");
    let tokens: Vec<_> = bench.record().holders.iter().map(|holder| holder.version).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(tokens[2], bench.record().version);
}

#[test]
fn a_revocation_takes_the_key_from_all_holders_and_records_operator_and_reason() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(revoke()), Outcome::Absent);
    assert_eq!(bench.record, None);
    bench.send(wait(1, 2));
    bench.send(wait(2, 2));
    bench.send(wait(3, 0));
    let tokens: Vec<_> = bench.record().holders.iter().map(|holder| holder.version).collect();
    match bench.send(revoke()) {
        Outcome::Revoked { holders } => assert_eq!(holders.len(), 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.holders(), [3], "the next waiter");
    let revoked = bench.record().history.last().unwrap().clone();
    assert_eq!((revoked.by.as_str(), revoked.tokens), ("ops", tokens));
    assert_eq!(bench.send(refresh(1)), Outcome::Absent);
}

#[test]
fn a_key_without_a_record_stays_so_unless_it_is_granted() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(refresh(1)), Outcome::Absent);
    assert_eq!(bench.send(release(1)), Outcome::Absent);
    assert_eq!(bench.record, None);
}

#[test]
fn a_prune_removes_and_returns_expired_holders_and_hands_the_key_over() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(Request::Prune), Outcome::Absent);
    assert_eq!(bench.record, None, "no record is made for it");
    bench.send(once(1, 0));
    bench.pass(900);
    bench.send(wait(2, 0));
    let before = bench.record().clone();
    assert_eq!(bench.send(Request::Prune), Outcome::Pruned { holders: vec![] });
    assert_eq!(*bench.record(), before, "nothing has expired");
    let holder = before.holders[0].clone();
    bench.millis = holder.expires_at.millis();
    assert_eq!(bench.send(Request::Prune), Outcome::Pruned { holders: vec![holder] });
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![]));
}

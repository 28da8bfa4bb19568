use fastrand::Rng;

use super::*;
use crate::{
    record::{PutValue, RunReport},
    types::json::Json,
};

/// A random request of one of a few leases. A release, a transfer and the like name the token of a holder.
pub(super) fn request(rng: &mut Rng, record: Option<&Record>) -> KeyRequest {
    let (number, limit) = (rng.u8(1..9), if rng.u8(..3) == 0 { 9 } else { 0 });
    let holder = record.and_then(|record| rng.choice(&record.holders));
    let (lease, token) =
        holder.map_or((lease(number), FencingToken::MAX), |holder| (holder.terms.lease, holder.version));
    KeyRequest::Single(match rng.u8(..21) {
        0..8 => wait(number, limit),
        8..10 => once(number, limit),
        10..12 => super::release(number),
        12 => refresh(number),
        13 => Request::Release(Release { lease, token }),
        14 => revoke(),
        15 => {
            let transfer = Transfer { lease, token, to: LeaseId::from_bytes([rng.u8(1..9); 16]) };
            if rng.bool() { Request::Transfer(transfer) } else { Request::Upgrade(transfer) }
        }
        16 => Request::Downgrade(Downgrade { lease, token, sharing: Sharing::UpTo(9) }),
        17 => Request::Complete(Complete {
            lease,
            token,
            tick: 1,
            by: "test".into(),
            keep: 0,
            report: RunReport::default(),
        }),
        18 => {
            let (ids, releases) = ((rng.u64(0..3), rng.u64(1..3)), rng.bool());
            let content = Some(Json::of(&ids.1).unwrap());
            Request::PutValue(PutValue { lease, token, after: ids.0, write: ids.1, content, keep: 0, releases })
        }
        19 => return KeyRequest::Batch(vec![token], BatchRequest::Keep { ttl: 1_000 }),
        _ => return KeyRequest::Batch(vec![token], BatchRequest::Release),
    })
}

/// The record and the outcomes without tokens, which a write may take from another reserve.
fn shape(record: Option<&Record>) -> Option<(Vec<LeaseId>, Vec<LeaseId>, Vec<AcquireId>)> {
    let record = record?;
    let leases = |terms: &LeaseSpec| terms.lease;
    let holders = record.holders.iter().map(|holder| leases(&holder.terms)).collect();
    let queue = record.queue.iter().map(|waiter| leases(&waiter.terms)).collect();
    Some((holders, queue, record.handover.iter().map(|(acquire_id, _)| *acquire_id).collect()))
}

#[test]
fn requests_that_are_applied_in_turn_have_the_outcomes_that_each_would_have_alone() {
    let (mut together, mut apart) = (0, 0);
    for seed in 0..3_000 {
        let mut rng = Rng::with_seed(seed);
        let mut record: Option<Record> = None;
        for ordinal in 1..rng.u64(2..12) {
            let now = StoreTime::from_millis(1_700_000_000_000 + i64::try_from(ordinal).unwrap() * 200);
            let at = StoreClock { now, hlc: HybridTime { seconds: 1_700_000_000, ordinal: ordinal * 100 } };
            let requests: Vec<_> = (0..rng.usize(1..8)).map(|_| request(&mut rng, record.as_ref())).collect();
            let (after, outcomes) = apply_in_turn(record.as_ref(), at, &requests);
            together += usize::from(outcomes.len() > 1);
            apart += usize::from(outcomes.len() < requests.len());
            let (mut one, mut handover) = (record.clone(), Vec::new());
            for (request, outcome) in requests.iter().zip(&outcomes) {
                let before = one.clone();
                let expected = match request {
                    KeyRequest::Single(request) => {
                        let (after, outcome) = apply(one.as_ref(), at, request);
                        one = after;
                        std::mem::discriminant(&outcome)
                    }
                    KeyRequest::Batch(tokens, batch) => {
                        // Named by the tokens of the record, so of both.
                        let after = one.as_ref().and_then(|one| apply_batch(one, at, tokens, batch));
                        one = after.clone().or(one);
                        let kept = Outcome::Refreshed { token: FencingToken::MIN };
                        let done = if matches!(batch, BatchRequest::Keep { .. }) { kept } else { Outcome::Released };
                        std::mem::discriminant(&after.map_or(Outcome::Absent, |_| done))
                    }
                };
                assert_eq!(std::mem::discriminant(outcome), expected, "seed {seed}: {request:?} {outcome:?}");
                if one != before {
                    handover.extend(one.iter().flat_map(|one| one.handover.clone()));
                }
            }
            let mut expected = shape(one.as_ref());
            // A waiter that came and left within the write leaves the record as it was.
            if let (Some((_, _, all)), true) = (&mut expected, after != record) {
                *all = handover.into_iter().map(|(acquire_id, _)| acquire_id).collect();
            } else {
                expected = shape(record.as_ref());
            }
            assert_eq!(shape(after.as_ref()), expected, "seed {seed}: {requests:?}");
            record = after;
        }
    }
    assert!(together > 1_000 && apart > 1_000, "{together} {apart}");
}

#[test]
fn a_crowd_behind_an_exclusive_holder_is_queued_by_one_write_and_sharers_by_one_each() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    let at = StoreClock { now: bench.now(), hlc: HybridTime { seconds: 1_700_000_000, ordinal: 9 } };
    let crowd = |limit: u32| (2..=5).map(move |number| KeyRequest::Single(wait(number, limit))).collect::<Vec<_>>();
    let (queue, outcomes) = apply_in_turn(bench.record.as_ref(), at, &crowd(0));
    assert_eq!((queue.unwrap().queue.len(), outcomes.len()), (4, 4));
    let (queue, outcomes) = apply_in_turn(bench.record.as_ref(), at, &crowd(9));
    assert_eq!((queue.unwrap().queue.len(), outcomes.len()), (1, 1));
    // Those that wait already have moved the clock on.
    for request in crowd(9) {
        let KeyRequest::Single(request) = request else { continue };
        bench.send(request);
    }
    assert_eq!(apply_in_turn(bench.record.as_ref(), at, &crowd(9)).1.len(), 4);
    bench.send(super::release(5));
    let a_new_one_first = [wait(6, 9), wait(2, 9), wait(7, 9)].map(KeyRequest::Single);
    assert_eq!(apply_in_turn(bench.record.as_ref(), at, &a_new_one_first).1.len(), 2);
}

#[test]
fn leaves_of_one_command_end_each_of_their_waits() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    for number in 2..=4 {
        bench.send(wait(number, 0));
    }
    let at = StoreClock { now: bench.now(), hlc: HybridTime { seconds: 1_700_000_000, ordinal: 9 } };
    let (after, outcomes) = apply_together(bench.record.as_ref(), at, &[super::release(2), super::release(4)]);
    bench.record = after;
    assert_eq!((bench.queue(), outcomes), (vec![3], vec![Outcome::Released; 2]));
}

#[test]
fn a_release_and_the_crowd_after_it_are_one_write_and_the_waiter_is_notified() {
    let mut bench = Bench::new();
    bench.send(once(1, 0));
    bench.send(wait(2, 0));
    let at = StoreClock { now: bench.now(), hlc: HybridTime { seconds: 1_700_000_000, ordinal: 9 } };
    let requests = [super::release(1), wait(3, 0), refresh(2), wait(3, 0), super::release(2), wait(4, 0)];
    let (after, outcomes) = apply_in_turn(bench.record.as_ref(), at, &requests.map(KeyRequest::Single));
    assert_eq!(outcomes.len(), 4, "the second release would issue another token: {outcomes:?}");
    let after = after.unwrap();
    assert_eq!(after.handover, [(acquire_id(2), Some(after.version))]);
    assert!(matches!(outcomes[..], [Outcome::Released, Outcome::Queued { .. }, Outcome::Refreshed { .. }, _]));
}

//! Requirements on the minimum hold and the maximum hold of a lease. [`Fixture::send`] compares each request with the state
//! machine.

use super::{
    fixture::{Fixture, LONG, leave, once, refresh, release, terms, wait},
    waiting::{next, queue_and_watch},
};
use mongoseal::{
    FencingToken, LeaseId,
    record::{BatchRequest, HoldLimits, LeaseRefs, LeaseSpec, Outcome, Request, Revoke, Transfer},
    store::Notification,
};

/// A minimum or a maximum hold that a few requests to a busy store do not outlast, in milliseconds.
const HOLD: u64 = 4_000;

fn held(min: Option<u64>, max: Option<u64>) -> LeaseSpec {
    LeaseSpec { hold: HoldLimits { min, max }, ..terms() }
}

/// A batch that names one lease.
fn named(fixture: &Fixture, token: FencingToken) -> LeaseRefs {
    vec![(fixture.key.clone(), vec![token])]
}

pub(super) async fn a_release_keeps_the_key_unavailable_until_the_minimum_hold_ends(fixture: Fixture) {
    let early = held(Some(fixture.millis(HOLD)), None);
    let token = fixture.granted(once(&early)).await;
    let end = fixture.holders()[0].since.after(fixture.millis(HOLD));
    for request in [release(&early, token), release(&early, token), refresh(&early), once(&early), once(&terms())] {
        fixture.send(request).await;
    }
    assert!(fixture.holders()[0].released_at.is_some_and(|at| at < end), "it must be released before the end");
    fixture.pass(end).await;
    fixture.granted(once(&terms())).await;
}

pub(super) async fn a_waiter_is_granted_the_key_when_the_minimum_hold_has_ended(fixture: Fixture) {
    let early = held(Some(fixture.millis(HOLD)), None);
    let token = fixture.granted(once(&early)).await;
    let waiter = terms();
    fixture.send(wait(&waiter)).await;
    fixture.send(release(&early, token)).await;
    assert_eq!(fixture.record().queue.len(), 1, "the waiter must wait for the end of the minimum hold");
    fixture.pass(fixture.holders()[0].since.after(fixture.millis(HOLD))).await;
    fixture.granted(wait(&waiter)).await;
}

pub(super) async fn the_first_waiter_learns_when_a_minimum_hold_ends_whoever_that_is(fixture: Fixture) {
    let early = held(Some(LONG), None);
    let token = fixture.granted(once(&early)).await;
    let (waiters, mut notifications) = queue_and_watch(&fixture, 3).await;
    fixture.send(release(&early, token)).await;
    assert_eq!(
        next(&fixture, &mut notifications).await,
        Notification::Recheck { number: 7 },
        "a release during the minimum hold must notify the first waiter"
    );
    let end = fixture.holders()[0].expires_at;
    match fixture.send(wait(&waiters[0])).await {
        Outcome::Queued { position: 0, holder, .. } => {
            assert_eq!(holder.expires_at, end, "the answer must have the end");
        }
        other => panic!("the waiter must wait for the end of the minimum hold, not {other:?}"),
    }
    fixture.send(leave(&waiters[0])).await;
    assert_eq!(
        next(&fixture, &mut notifications).await,
        Notification::Recheck { number: 8 },
        "if the first waiter leaves, the change must notify the next one"
    );
    fixture.send(once(&waiters[1])).await;
    assert_eq!(
        next(&fixture, &mut notifications).await,
        Notification::Recheck { number: 9 },
        "if the last attempt of the first waiter ends its place, the change must notify the next one"
    );
}

pub(super) async fn a_batch_finds_no_released_lease_and_a_revocation_ends_its_minimum_hold(fixture: Fixture) {
    let token = fixture.granted(once(&held(Some(LONG), None))).await;
    let lease = named(&fixture, token);
    assert!(fixture.apply_batch(&lease, BatchRequest::Release).await, "the batch must release the lease");
    for batch in [BatchRequest::Keep { ttl: LONG }, BatchRequest::Release] {
        assert!(!fixture.apply_batch(&lease, batch.clone()).await, "{batch:?} must not find a released lease");
    }
    fixture.send(Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: token })).await;
    fixture.granted(once(&terms())).await;
}

pub(super) async fn no_request_extends_a_lease_past_its_maximum_hold(fixture: Fixture) {
    let capped = LeaseSpec { grace: fixture.short(), ..held(None, Some(fixture.millis(HOLD))) };
    let token = fixture.granted(once(&capped)).await;
    let end = fixture.holders()[0].since.after(fixture.millis(HOLD) + capped.grace);
    fixture.send(refresh(&capped)).await;
    let keep = BatchRequest::Keep { ttl: LONG };
    assert!(fixture.apply_batch(&named(&fixture, token), keep).await, "the batch must refresh the lease");
    fixture.granted(once(&LeaseSpec { hold: HoldLimits { min: None, max: Some(LONG) }, ..capped.clone() })).await;
    fixture.send(Request::Transfer(Transfer { lease: capped.lease, token, to: LeaseId::random() })).await;
    fixture.pass(end).await;
    fixture.granted(once(&terms())).await;
}

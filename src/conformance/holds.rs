//! Requirements on the minimum hold and the maximum hold of a lease.

use super::{
    fixture::{Fixture, LONG, SHORT, leave, once, refresh, release, terms, wait},
    waiting::{next, queue_and_watch},
};
use crate::{
    record::{BatchRequest, HoldLimits, LeaseRefs, LeaseSpec, Outcome, Request, Revoke, Transfer},
    store::answers::Notification,
    types::{lease_id::LeaseId, token::FencingToken},
};

/// A minimum or a maximum hold that a few requests to a busy store do not outlast, in milliseconds.
const HOLD: u64 = 2_000;

fn held(min: Option<u64>, max: Option<u64>) -> LeaseSpec {
    LeaseSpec { hold: HoldLimits { min, max }, ..terms() }
}

/// A batch that names one lease.
fn named(fixture: &Fixture, token: FencingToken) -> LeaseRefs {
    vec![(fixture.key.clone(), vec![token])]
}

pub(super) async fn a_release_keeps_the_key_unavailable_until_the_minimum_hold_ends(fixture: Fixture) {
    let early = held(Some(HOLD), None);
    let token = fixture.granted(once(&early)).await;
    let end = fixture.holders().await[0].since.after(HOLD);
    assert_eq!(fixture.send(release(&early, token)).await, Outcome::Released);
    let entry = fixture.holders().await.remove(0);
    assert_eq!(
        (entry.terms.lease, entry.version, entry.expires_at, entry.not_after),
        (LeaseId::NONE, token, end, Some(end)),
        "the entry must stay until the minimum hold ends, under a lease id that no process has"
    );
    assert!(entry.released_at.is_some_and(|at| at < end), "the entry must have the time of the release");
    let before = fixture.record().await;
    assert_eq!(fixture.send(release(&early, token)).await, Outcome::Absent, "a second release must find no lease");
    assert_eq!(fixture.send(refresh(&early)).await, Outcome::Absent, "a released lease must not be refreshed");
    for acquire in [&early, &terms()] {
        let outcome = fixture.send(once(acquire)).await;
        assert!(matches!(outcome, Outcome::Refused { .. }), "no acquire may be granted the key: {outcome:?}");
    }
    assert_eq!(fixture.record().await, before, "the entry must stay as it is");
    fixture.pass(end).await;
    assert!(fixture.granted(once(&terms())).await > token, "the key must be available after the minimum hold");
}

pub(super) async fn a_waiter_is_granted_the_key_when_the_minimum_hold_has_ended(fixture: Fixture) {
    let early = held(Some(HOLD), None);
    let token = fixture.granted(once(&early)).await;
    let end = fixture.holders().await[0].since.after(HOLD);
    let waiter = terms();
    fixture.send(wait(&waiter)).await;
    fixture.send(release(&early, token)).await;
    assert_eq!(fixture.record().await.queue.len(), 1, "the waiter must wait for the end of the minimum hold");
    fixture.pass(end).await;
    match fixture.send(wait(&waiter)).await {
        Outcome::Granted { token: later, .. } => assert!(later > token, "the token must grow"),
        other => panic!("the waiter must be granted the key after the minimum hold, not {other:?}"),
    }
}

pub(super) async fn the_first_waiter_learns_when_a_minimum_hold_ends_whoever_that_is(fixture: Fixture) {
    let early = held(Some(HOLD), None);
    let token = fixture.granted(once(&early)).await;
    let (waiters, mut notifications) = queue_and_watch(&fixture, 3).await;
    fixture.send(release(&early, token)).await;
    assert_eq!(
        next(&mut notifications).await,
        Notification::Recheck { number: 7 },
        "a release during the minimum hold must notify the first waiter"
    );
    let end = fixture.holders().await[0].expires_at;
    match fixture.send(wait(&waiters[0])).await {
        Outcome::Queued { position: 0, holder, .. } => {
            assert_eq!(holder.expires_at, end, "the answer must have the end");
        }
        other => panic!("the waiter must wait for the end of the minimum hold, not {other:?}"),
    }
    fixture.send(leave(&waiters[0])).await;
    assert_eq!(
        next(&mut notifications).await,
        Notification::Recheck { number: 8 },
        "if the first waiter leaves, the change must notify the next one"
    );
    fixture.send(once(&waiters[1])).await;
    assert_eq!(
        next(&mut notifications).await,
        Notification::Recheck { number: 9 },
        "if the last attempt of the first waiter ends its place, the change must notify the next one"
    );
}

pub(super) async fn a_batch_finds_no_released_lease_and_a_revocation_ends_its_minimum_hold(fixture: Fixture) {
    let early = held(Some(LONG), None);
    let token = fixture.granted(once(&early)).await;
    assert!(
        fixture.apply_batch(&named(&fixture, token), BatchRequest::Release).await,
        "the batch must release the lease"
    );
    let before = fixture.record().await;
    assert_eq!(before.holders[0].terms.lease, LeaseId::NONE, "the minimum hold must outlast a batch release");
    for batch in [BatchRequest::Keep { ttl: LONG }, BatchRequest::Release] {
        assert!(
            !fixture.apply_batch(&named(&fixture, token), batch.clone()).await,
            "{batch:?} must not find a released lease"
        );
    }
    assert_eq!(fixture.record().await, before, "a batch must not change the entry of a released lease");
    let revoke = Revoke { by: "ops".into(), reason: "drill".into(), upto: token };
    match fixture.send(Request::Revoke(revoke)).await {
        Outcome::Revoked { holders } => assert_eq!(holders.len(), 1, "the revocation must end the minimum hold"),
        other => panic!("{other:?}"),
    }
    fixture.granted(once(&terms())).await;
}

pub(super) async fn no_request_extends_a_lease_past_its_maximum_hold(fixture: Fixture) {
    let capped = LeaseSpec { grace: SHORT, ..held(None, Some(HOLD)) };
    let Outcome::Granted { token, not_after } = fixture.send(once(&capped)).await else {
        panic!("a free key must be granted")
    };
    let holder = fixture.holders().await.remove(0);
    let end = holder.since.after(HOLD + SHORT);
    assert_eq!(
        (not_after, holder.not_after, holder.expires_at),
        (Some(end), Some(end), end),
        "the maximum hold must count from the grant, and the grace must follow it"
    );
    assert_eq!(fixture.send(refresh(&capped)).await, Outcome::Refreshed { token });
    assert!(
        fixture.apply_batch(&named(&fixture, token), BatchRequest::Keep { ttl: LONG }).await,
        "the batch must refresh the lease"
    );
    let again = LeaseSpec { hold: HoldLimits { min: None, max: Some(LONG) }, ..capped.clone() };
    assert_eq!(fixture.granted(once(&again)).await, token, "the same acquire must keep its token");
    let to = LeaseId::random();
    let transferred = fixture.send(Request::Transfer(Transfer { lease: capped.lease, token, to })).await;
    assert!(matches!(transferred, Outcome::Transferred { .. }), "{transferred:?}");
    let holder = fixture.holders().await.remove(0);
    assert_eq!(
        (holder.terms.lease, holder.not_after, holder.expires_at),
        (to, Some(end), end),
        "no request may extend the lease past its maximum hold"
    );
    fixture.pass(end).await;
    fixture.granted(once(&terms())).await;
}

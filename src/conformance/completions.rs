//! Requirements on the completed ticks of a schedule.

use super::fixture::{Fixture, SHORT, once, release, terms, wait};
use crate::{
    record::{Complete, Completion, LeaseSpec, Outcome, Record, Request, Reset, Revoke},
    store::answers::Applied,
    types::token::FencingToken,
};

/// How long a completed tick is kept beyond the retention, in milliseconds.
const KEEP: u64 = 3_600_000;

fn complete(terms: &LeaseSpec, token: FencingToken, tick: u64) -> Request {
    Request::Complete(Complete { lease: terms.lease, token, tick, by: "$$ROOT".into(), keep: KEEP })
}

fn reset(tick: u64) -> Request {
    Request::Reset(Reset { tick, upto: FencingToken::MAX, by: "$ops".into() })
}

impl Fixture {
    /// Acquires the key for a moment, completes a tick, and returns the token.
    async fn completed(&self, tick: u64) -> FencingToken {
        let runner = terms();
        let token = self.granted(once(&runner)).await;
        assert_eq!(self.send(complete(&runner, token, tick)).await, Outcome::Completed, "the tick must be completed");
        token
    }

    /// The last completed tick and the token of its lease.
    async fn done(&self) -> Option<(u64, FencingToken)> {
        self.record().await.done.map(|done| (done.tick, done.token))
    }
}

pub(super) async fn a_completion_records_the_tick_and_hands_the_key_over_in_one_write(fixture: Fixture) {
    let (runner, waiter) = (terms(), terms());
    let token = fixture.granted(once(&runner)).await;
    assert_eq!(fixture.record().await.done, None, "a grant must complete no tick");
    fixture.send(wait(&waiter)).await;
    let applied = fixture.applied(complete(&runner, token, 5)).await;
    assert!(
        matches!(applied, Applied { outcome: Outcome::Completed, changed: true, .. }),
        "a completion must be marked as a change: {applied:?}"
    );
    let record = fixture.record().await;
    let at = applied.at.expect("there must be a record").now;
    assert_eq!(
        record.done,
        Some(Completion { tick: 5, token, by: "$$ROOT".into(), at }),
        "the record must have the tick, the token, the owner as it was sent, and the time"
    );
    assert!(
        record.holders.iter().map(|holder| holder.terms.lease).eq([waiter.lease]),
        "the completion must grant the key to the waiter"
    );
}

pub(super) async fn a_completed_tick_is_kept_beyond_the_retention_for_as_long_as_its_completion_says(fixture: Fixture) {
    fixture.completed(5).await;
    let at = fixture.record().await.done.expect("the tick must be completed").at;
    let enough = |record: Record| record.expires_at >= at.after(KEEP);
    assert!(enough(fixture.record().await), "the record must matter until the time that the completion names");
    let (holder, version) = (terms(), fixture.record().await.version);
    let token = fixture.granted(once(&holder)).await;
    fixture.send(release(&holder, token)).await;
    assert!(token > version && enough(fixture.record().await), "no later change may end that sooner");
}

pub(super) async fn a_second_completion_is_answered_as_the_first_and_changes_nothing(fixture: Fixture) {
    let runner = terms();
    let token = fixture.granted(once(&runner)).await;
    fixture.send(complete(&runner, token, 5)).await;
    fixture.granted(once(&terms())).await;
    let before = fixture.record().await;
    let again = fixture.applied(complete(&runner, token, 5)).await;
    assert_eq!(again.outcome, Outcome::Completed, "a completion that is sent twice must be answered twice");
    assert!(!again.changed, "the second must not be marked as a change");
    assert_eq!(fixture.record().await, before, "the second must change nothing");
}

pub(super) async fn an_expired_lease_completes_its_tick_until_the_key_is_granted_again(fixture: Fixture) {
    let short = || LeaseSpec { ttl: SHORT, ..terms() };
    let first = short();
    let token = fixture.granted(once(&first)).await;
    let end = fixture.holders().await[0].expires_at;
    fixture.pass(end).await;
    assert_eq!(
        fixture.send(complete(&first, token, 5)).await,
        Outcome::Completed,
        "the key was not granted since, so the tick must be completed"
    );
    let second = short();
    let late = fixture.granted(once(&second)).await;
    let end = fixture.holders().await[0].expires_at;
    fixture.pass(end).await;
    let third = fixture.granted(once(&terms())).await;
    assert_eq!(
        fixture.send(complete(&second, late, 6)).await,
        Outcome::Absent,
        "the key was granted since, so the tick must not be completed"
    );
    assert_eq!(fixture.done().await, Some((5, token)), "the last completed tick must stay");
    assert_eq!(fixture.holders().await[0].version, third, "a late completion must end no other lease");
}

pub(super) async fn a_revoked_lease_completes_nothing(fixture: Fixture) {
    let runner = terms();
    let token = fixture.granted(once(&runner)).await;
    fixture.send(Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: token })).await;
    assert_eq!(
        fixture.send(complete(&runner, token, 5)).await,
        Outcome::Absent,
        "a revoked lease must complete nothing, although the key was not granted since"
    );
    let held = fixture.granted(once(&runner)).await;
    assert_eq!(fixture.send(complete(&runner, token, 5)).await, Outcome::Absent, "the token must be that of the lease");
    assert_eq!(
        fixture.holders().await[0].version,
        held,
        "a completion must not end a later grant of the same lease id"
    );
    assert_eq!(fixture.record().await.done, None, "no tick must be completed");
}

pub(super) async fn a_completion_never_lowers_the_last_completed_tick(fixture: Fixture) {
    let first = fixture.completed(5).await;
    for tick in [4, 5] {
        let runner = terms();
        let token = fixture.granted(once(&runner)).await;
        assert_eq!(fixture.send(complete(&runner, token, tick)).await, Outcome::Absent, "{tick} must not be completed");
        assert_eq!(fixture.done().await, Some((5, first)), "the last completed tick must stay");
        assert!(fixture.holders().await.is_empty(), "the lease must be released all the same");
    }
    let later = fixture.completed(6).await;
    assert_eq!(fixture.done().await, Some((6, later)));
}

pub(super) async fn a_reset_lowers_the_last_completed_tick_and_never_raises_it(fixture: Fixture) {
    assert_eq!(fixture.send(reset(4)).await, Outcome::Absent, "a reset must create no record");
    assert_eq!(fixture.seen().await.0, None);
    let runner = terms();
    let token = fixture.granted(once(&runner)).await;
    fixture.send(complete(&runner, token, 5)).await;
    let before = fixture.record().await;
    for later in [5, 6] {
        let outcome = fixture.send(reset(later)).await;
        assert!(
            matches!(&outcome, Outcome::Reset { done: Some(done) } if done.tick == 5),
            "a reset must return the last completed tick: {outcome:?}"
        );
    }
    assert_eq!(fixture.record().await, before, "a reset must never raise the last completed tick");
    let applied = fixture.applied(reset(4)).await;
    let at = applied.at.expect("there must be a record").now;
    let lowered = Completion { tick: 4, token, by: "$ops".into(), at };
    assert_eq!(applied.outcome, Outcome::Reset { done: Some(lowered.clone()) });
    fixture.send(complete(&runner, token, 5)).await;
    assert_eq!(fixture.record().await.done, Some(lowered), "a delayed completion must not undo the reset");
    fixture.completed(5).await;
}

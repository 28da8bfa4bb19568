//! Requirements on the completed ticks of a schedule. [`Fixture::send`] compares each request with the state machine.

use super::fixture::{Fixture, once, release, terms, wait};
use mongoseal::{
    FencingToken,
    record::{Complete, LeaseSpec, Record, Request, Reset, Revoke, RunReport},
};

/// How long a completed tick is kept beyond the retention, in milliseconds.
const KEEP: u64 = 3_600_000;

fn complete(terms: &LeaseSpec, token: FencingToken, tick: u64) -> Request {
    let report = RunReport { took: 1_500, is_failed: false, note: "$$NOW".into(), period: Some(60_000) };
    Request::Complete(Complete { lease: terms.lease, token, tick, by: "$$ROOT".into(), keep: KEEP, report })
}

fn reset(tick: u64) -> Request {
    Request::Reset(Reset { tick, upto: FencingToken::MAX, by: "$ops".into() })
}

impl Fixture {
    /// Acquires the key, and completes a tick. Returns the lease and its token.
    async fn completed(&self, tick: u64) -> (LeaseSpec, FencingToken) {
        let runner = terms();
        let token = self.granted(once(&runner)).await;
        self.send(complete(&runner, token, tick)).await;
        (runner, token)
    }

    /// Acquires the key for a short time, and lets the lease expire. Returns the lease and its token.
    async fn expired(&self) -> (LeaseSpec, FencingToken) {
        let short = LeaseSpec { ttl: self.short(), ..terms() };
        let token = self.granted(once(&short)).await;
        self.pass(self.holders()[0].expires_at).await;
        (short, token)
    }
}

pub(super) async fn a_completion_records_the_tick_and_hands_the_key_over_in_one_write(fixture: Fixture) {
    let runner = terms();
    let token = fixture.granted(once(&runner)).await;
    fixture.send(wait(&terms())).await;
    let applied = fixture.applied(complete(&runner, token, 5)).await;
    assert!(applied.changed, "a completion must be marked as a change: {applied:?}");
}

pub(super) async fn a_completed_tick_is_kept_beyond_the_retention_for_as_long_as_its_completion_says(fixture: Fixture) {
    fixture.completed(5).await;
    let at = fixture.record().done.expect("the tick must be completed").at;
    let enough = |record: Record| record.expires_at >= at.after(KEEP);
    assert!(enough(fixture.record()), "the record must matter until the time that the completion names");
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    fixture.send(release(&holder, token)).await;
    assert!(enough(fixture.record()), "no later change may end that sooner");
}

pub(super) async fn a_second_completion_is_answered_as_the_first_and_changes_nothing(fixture: Fixture) {
    let (runner, token) = fixture.completed(5).await;
    fixture.granted(once(&terms())).await;
    fixture.send(complete(&runner, token, 5)).await;
}

pub(super) async fn an_expired_lease_completes_its_tick_until_the_key_is_granted_again(fixture: Fixture) {
    let (first, token) = fixture.expired().await;
    fixture.send(complete(&first, token, 5)).await;
    let (second, late) = fixture.expired().await;
    fixture.granted(once(&terms())).await;
    fixture.send(complete(&second, late, 6)).await;
}

pub(super) async fn a_revoked_lease_completes_nothing(fixture: Fixture) {
    let runner = terms();
    let token = fixture.granted(once(&runner)).await;
    fixture.send(Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: token })).await;
    fixture.send(complete(&runner, token, 5)).await;
    // The token must be that of the lease.
    fixture.granted(once(&runner)).await;
    fixture.send(complete(&runner, token, 5)).await;
}

pub(super) async fn a_completion_never_lowers_the_last_completed_tick(fixture: Fixture) {
    for tick in [5, 4, 5, 6] {
        fixture.completed(tick).await;
    }
}

pub(super) async fn the_history_of_a_schedule_has_its_last_32_completed_runs(fixture: Fixture) {
    for tick in 1..=33 {
        fixture.completed(tick).await;
    }
    let ticks: Vec<u64> = fixture.record().runs.iter().map(|run| run.tick).collect();
    assert_eq!(ticks, (2..=33).collect::<Vec<_>>(), "the oldest run must be forgotten, and no other");
}

pub(super) async fn a_reset_lowers_the_last_completed_tick_and_never_raises_it(fixture: Fixture) {
    fixture.send(reset(4)).await;
    let (runner, token) = fixture.completed(5).await;
    for tick in [5, 6, 4] {
        fixture.send(reset(tick)).await;
    }
    // It is delayed, and must not undo the reset.
    fixture.send(complete(&runner, token, 5)).await;
    fixture.completed(5).await;
}

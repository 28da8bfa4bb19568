//! Requirements on the value of a key. [`Fixture::send`] compares each request with the state machine.

use serde_json::json;

use super::fixture::{Fixture, once, release, terms, wait};
use mongoseal::{
    FencingToken, Json, Sharing,
    record::{Downgrade, LeaseSpec, Outcome, PutValue, Record, Request},
};

/// How long a value is kept beyond the retention, in milliseconds.
const KEEP: u64 = 3_600_000;

fn write(terms: &LeaseSpec, token: FencingToken, (after, write): (u64, u64), content: Option<Json>) -> PutValue {
    PutValue { lease: terms.lease, token, after, write, content, keep: KEEP, releases: false }
}

pub(super) fn put(terms: &LeaseSpec, token: FencingToken, ids: (u64, u64)) -> Request {
    Request::PutValue(write(terms, token, ids, Some(json_of(&json!({ "page": ids.1 })))))
}

fn json_of(content: &serde_json::Value) -> Json {
    Json::of(content).expect("the content is small")
}

pub(super) async fn a_value_outlives_its_lease_and_the_next_grant_has_it(fixture: Fixture) {
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    let applied = fixture.applied(put(&holder, token, (0, 7))).await;
    assert!(applied.changed, "a write of a value must be marked as a change: {applied:?}");
    fixture.send(release(&holder, token)).await;
    let outcome = fixture.send(once(&terms())).await;
    assert!(
        matches!(&outcome, Outcome::Granted { value: Some(value), .. } if value.token == token),
        "the grant must have the value: {outcome:?}"
    );
}

pub(super) async fn a_value_is_returned_unchanged(fixture: Fixture) {
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    let numbers =
        json!([0, -1, i64::MAX, i64::MIN, 2_147_483_648_i64, 0.1, 1.0, -0.0, 1e300, 5e-324, 123_456_789.123_456_78]);
    let deep = (0..60).fold(json!({}), |inner, _| json!([inner]));
    let contents = [
        json!({ "$set": { "a.b": "$$ROOT", "": null, "$ref": 1 }, "é\u{1}\"": [true, "\u{0}\u{10ffff}"] }),
        json!({ "numbers": numbers, "deep": deep }),
        json!(null),
        json!("x".repeat(Json::MAX_BYTES - 2)),
    ];
    for (id, content) in (1..).zip(contents) {
        fixture.send(Request::PutValue(write(&holder, token, (id - 1, id), Some(json_of(&content))))).await;
        let stored = fixture.record().value.and_then(|value| value.content).expect("the value must be stored");
        assert_eq!(stored.to_string(), content.to_string(), "the value must be read as it was written");
    }
}

pub(super) async fn a_delayed_or_repeated_write_changes_no_value(fixture: Fixture) {
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    for ids in [(0, 7), (0, 7), (7, 8), (0, 7), (0, 9)] {
        fixture.send(put(&holder, token, ids)).await;
    }
    fixture.send(Request::PutValue(write(&holder, token, (8, 9), None))).await;
    fixture.send(put(&holder, token, (7, 8))).await;
    let value = fixture.record().value.expect("a clear must keep its id");
    assert_eq!((value.write, value.content), (9, None), "the value must stay cleared");
}

pub(super) async fn only_the_lease_that_excludes_all_others_writes_the_value(fixture: Fixture) {
    let (first, second) = (terms(), terms());
    let early = fixture.granted(once(&first)).await;
    fixture.send(put(&first, early, (0, 7))).await;
    fixture.send(release(&first, early)).await;
    let token = fixture.granted(once(&second)).await;
    for (lease, token, after) in [(&first, early, 7), (&first, token, 0), (&second, early, 7), (&second, token, 7)] {
        fixture.send(put(lease, token, (after, 8))).await;
    }
    fixture.send(Request::Downgrade(Downgrade { lease: second.lease, token, sharing: Sharing::from_limit(9) })).await;
    fixture.send(put(&second, token, (0, 8))).await;
    let value = fixture.record().value.expect("the value must stay");
    assert_eq!((value.write, value.token), (7, early), "no other lease may write it");
}

pub(super) async fn a_release_with_a_value_is_one_write_and_the_value_is_kept_beyond_the_retention(fixture: Fixture) {
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    fixture.send(wait(&terms())).await;
    for after in [6, 0, 0] {
        let content = Some(json_of(&json!({})));
        fixture
            .send(Request::PutValue(PutValue { releases: true, ..write(&holder, token, (after, 7), content) }))
            .await;
    }
    let Record { value, expires_at, holders, .. } = fixture.record();
    let at = value.expect("the value must be stored").at;
    assert!(expires_at >= at.after(KEEP), "the record must matter until the time that the write names");
    assert!(holders.iter().all(|holder| holder.since == at), "the same write must hand the key over");
}

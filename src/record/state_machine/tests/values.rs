use super::*;
use crate::{
    record::{Downgrade, PutValue},
    types::json::Json,
};

/// A write of this number, with the number of the write as its id.
pub(super) fn put(number: u8, token: FencingToken, (after, write): (u64, u64), releases: bool) -> Request {
    let content = Some(Json::of(&write).unwrap());
    Request::PutValue(PutValue { lease: lease(number), token, after, write, content, keep: 0, releases })
}

/// The content, and the token of its lease.
fn value(bench: &Bench) -> Option<(u64, FencingToken)> {
    let value = bench.record().value.as_ref()?;
    Some((value.content.as_ref()?.parse().unwrap(), value.token))
}

#[test]
fn a_value_is_put_under_its_lease_and_a_later_grant_has_it() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    assert_eq!(bench.send(put(1, token, (0, 7), false)), Outcome::ValuePut);
    bench.pass(1_000);
    match bench.send(once(2, 0)) {
        Outcome::Granted { value: Some(value), .. } => assert_eq!((value.write, value.token), (7, token)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_delayed_or_repeated_write_changes_no_value() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(put(1, token, (0, 7), false));
    let before = bench.record().clone();
    assert_eq!(bench.send(put(1, token, (0, 7), false)), Outcome::ValuePut);
    assert_ne!(bench.record(), &before, "each answer comes from a write that changed the record");
    assert_eq!(bench.record().value, before.value);
    bench.send(put(1, token, (7, 8), false));
    assert_eq!(bench.send(put(1, token, (0, 7), false)), Outcome::ValueOutdated { write: 8 });
    assert_eq!(bench.send(put(1, token, (0, 9), false)), Outcome::ValueOutdated { write: 8 });
    assert_eq!(value(&bench), Some((8, token)));
}

#[test]
fn only_the_lease_that_holds_the_key_alone_writes_under_its_token() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 0)));
    bench.send(put(1, first, (0, 7), false));
    bench.pass(1_000);
    assert_eq!(bench.send(put(1, first, (7, 8), false)), Outcome::Absent, "expired");
    let second = granted(&bench.send(once(2, 0)));
    assert_eq!(bench.send(put(1, second, (0, 8), false)), Outcome::Absent, "another lease id");
    assert_eq!(bench.send(put(2, first, (7, 8), false)), Outcome::Absent, "an earlier token");
    bench.send(Request::Downgrade(Downgrade { lease: lease(2), token: second, sharing: Sharing::UpTo(9) }));
    assert!(matches!(bench.send(put(2, second, (0, 8), false)), Outcome::Refused { .. }), "it shares the key");
    bench.send(revoke());
    assert_eq!(bench.send(put(2, second, (0, 8), false)), Outcome::Absent, "revoked");
    assert_eq!(value(&bench), Some((7, first)));
}

#[test]
fn a_write_that_releases_hands_the_key_over_with_the_value_and_an_outdated_one_does_not() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(wait(2, 0));
    bench.send(put(1, token, (0, 7), false));
    assert_eq!(bench.send(put(1, token, (0, 8), true)), Outcome::ValueOutdated { write: 7 });
    assert_eq!(bench.holders(), [1]);
    assert_eq!(bench.send(put(1, token, (7, 9), true)), Outcome::ValuePut);
    assert_eq!((bench.holders(), value(&bench)), (vec![2], Some((9, token))));
    assert_eq!(bench.send(put(1, token, (7, 9), true)), Outcome::ValuePut, "the answer to the same again");
    assert_eq!(bench.holders(), [2]);
}

#[test]
fn a_cleared_value_stays_cleared_for_a_delayed_write() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(put(1, token, (0, 7), false));
    let Request::PutValue(clear) = put(1, token, (7, 8), false) else { unreachable!() };
    bench.send(Request::PutValue(PutValue { content: None, ..clear }));
    assert_eq!(value(&bench), None);
    bench.send(put(1, token, (0, 7), false));
    assert_eq!(value(&bench), None);
    assert_eq!(bench.send(put(1, token, (8, 9), false)), Outcome::ValuePut);
}

#[test]
fn a_record_matters_for_as_long_as_its_value_is_kept() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    let Request::PutValue(write) = put(1, token, (0, 7), true) else { unreachable!() };
    bench.send(Request::PutValue(PutValue { keep: 9_000_000, ..write }));
    let end = bench.now().after(9_000_000);
    granted(&bench.send(once(2, 0)));
    bench.send(release(2));
    assert_eq!(bench.record().expires_at, end);
}

#[test]
fn a_null_is_a_value() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    let Request::PutValue(write) = put(1, token, (0, 7), false) else { unreachable!() };
    bench.send(Request::PutValue(PutValue { content: Some(Json::of(&()).unwrap()), ..write }));
    let stored = serde_json::to_string(bench.record()).unwrap();
    assert_eq!(&serde_json::from_str::<Record>(&stored).unwrap(), bench.record());
    assert!(bench.record().value.as_ref().unwrap().content.is_some());
}

use super::*;
use crate::{
    record::HolderInfo,
    types::{metadata::Metadata, sharing::Sharing},
};

const SINCE: StoreTime = StoreTime::from_millis(1_000);
const LEFT: Duration = Duration::from_millis(50);

fn lease() -> ListedLease {
    let holder = HolderInfo {
        grace: Duration::ZERO,
        owner: "alice".parse().unwrap(),
        token: FencingToken::new(7).unwrap(),
        sharing: Sharing::Exclusive,
        since: SINCE,
        last_seen: SINCE,
        free_in: LEFT,
        held_until: None,
        not_after: None,
        released_at: None,
        group: Some("night".parse().unwrap()),
        metadata: Metadata::default(),
    };
    ListedLease { key: "reports/1".parse().unwrap(), holder, waiting: 0, value: None, read_at: SINCE }
}

fn admitted(narrow: impl FnOnce(&mut Filter)) -> bool {
    let mut filter = Filter::default();
    narrow(&mut filter);
    filter.admits(&lease())
}

#[test]
fn a_lease_is_wanted_if_all_conditions_hold() {
    let millisecond = Duration::from_millis(1);
    let admitted = [
        admitted(|_| ()),
        admitted(|all| all.key = Some("reports/1".parse().unwrap())),
        admitted(|all| all.prefix = "reports/".into()),
        admitted(|all| all.owner = Some("alice".parse().unwrap())),
        admitted(|all| all.group = Some("night".parse().unwrap())),
        admitted(|all| all.sharing = Some(SharingFilter::Exclusive)),
        admitted(|all| all.since_after = Some(StoreTime::from_millis(999))),
        admitted(|all| all.since_before = Some(SINCE.after(1))),
        admitted(|all| all.free_in_at_least = Some(LEFT)),
        admitted(|all| all.free_in_less_than = Some(LEFT + millisecond)),
    ];
    assert_eq!(admitted, [true; 10]);
}

#[test]
fn one_condition_that_does_not_hold_is_enough() {
    let admitted = [
        admitted(|all| all.key = Some("reports/2".parse().unwrap())),
        admitted(|all| all.prefix = "reports/2".into()),
        admitted(|all| all.owner = Some("bob".parse().unwrap())),
        admitted(|all| all.group = Some("day".parse().unwrap())),
        admitted(|all| all.sharing = Some(SharingFilter::Shared)),
        admitted(|all| all.since_after = Some(SINCE)),
        admitted(|all| all.since_before = Some(SINCE)),
        admitted(|all| all.free_in_at_least = Some(LEFT + Duration::from_millis(1))),
        admitted(|all| all.free_in_less_than = Some(LEFT)),
    ];
    assert_eq!(admitted, [false; 9]);
}

#[test]
fn times_are_met_on_both_sides_of_their_bounds() {
    assert!(admitted(|all| all.since_before = Some(SINCE.after(1_000))));
    assert!(!admitted(|all| all.since_before = Some(StoreTime::from_millis(1))));
    assert!(!admitted(|all| all.since_after = Some(SINCE.after(1))));
    assert!(admitted(|all| all.since_after = Some(StoreTime::from_millis(1))));
    assert!(!admitted(|all| all.free_in_less_than = Some(Duration::ZERO)));
    assert!(admitted(|all| all.free_in_less_than = Some(Duration::MAX)));
}

#[test]
fn a_lease_without_expiry_always_has_enough_left_and_an_expired_one_must_be_asked_for() {
    let (mut endless, mut over) = (lease(), lease());
    endless.holder.free_in = Duration::MAX;
    over.holder.free_in = Duration::ZERO;
    let least = Filter { free_in_at_least: Some(Duration::MAX), ..Filter::default() };
    let most = Filter { free_in_less_than: Some(Duration::MAX), ..Filter::default() };
    assert_eq!((least.admits(&endless), most.admits(&endless)), (true, false));
    let all = Filter { with_expired: true, ..Filter::default() };
    assert_eq!((Filter::default().admits(&over), all.admits(&over), all.admits(&lease())), (false, true, true));
}

#[test]
fn a_position_precedes_larger_keys_and_of_its_own_key_the_larger_tokens() {
    let place = |token, key: &str| Position { token: FencingToken::new(token).unwrap(), key: key.into() };
    let precedes = |token, key| place(token, key).precedes(&lease());
    assert_eq!(
        [precedes(8, "a"), precedes(6, "reports/1"), precedes(7, "reports/1"), precedes(6, "z")],
        [true, true, false, false]
    );
    assert_eq!(Position::behind(&lease()), place(7, "reports/1"));
}

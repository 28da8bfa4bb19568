use super::*;

fn record() -> Record {
    let now = StoreTime::from_millis(1_000);
    let holder = |number: u8, limit: u32, ttl: u64| Holder {
        terms: LeaseSpec::of_number(number, Sharing::from_limit(limit), ttl),
        version: FencingToken::new(number.into()).unwrap(),
        refreshes: 0,
        since: now,
        last_seen: now,
        expires_at: now.after(ttl),
        not_after: None,
        released_at: None,
    };
    Record {
        version: FencingToken::new(3).unwrap(),
        holders: vec![holder(1, 0, 100), holder(2, 4, 200), holder(3, 4, Ttl::FOREVER.millis())],
        queue: vec![],
        handover: vec![],
        last_seen: now,
        expires_at: now.after(Ttl::FOREVER.millis()),
        history: vec![],
        runs: vec![],
        done: None,
        value: None,
    }
}

#[test]
fn a_holder_is_found_by_its_lease_and_lives_until_its_expiry() {
    let (record, id) = (record(), LeaseId::from_bytes([2; 16]));
    let live = |millis| record.live_holder(id, StoreTime::from_millis(millis)).map(|holder| holder.version.get());
    assert_eq!(record.holder(id).map(|holder| holder.version.get()), Some(2));
    assert_eq!(record.holder(LeaseId::from_bytes([9; 16])), None);
    assert_eq!((live(1_000), live(1_199), live(1_200), live(1_201)), (Some(2), Some(2), None, None));
}

#[test]
fn a_waiter_counts_until_its_expiry() {
    let mut record = record();
    let (terms, now) = (record.holders[0].terms.clone(), StoreTime::from_millis(1_000));
    let expires_at = now.after(500);
    record.queue.push(Waiter { terms, wait_ttl: 500, refreshes: 0, since: now, last_seen: now, expires_at });
    let waiting = |millis| record.count_waiters(StoreTime::from_millis(millis));
    assert_eq!((waiting(1_499), waiting(1_500)), (1, 0));
}

#[test]
fn a_key_is_free_in_no_time_after_the_expiry_and_never_without_one() {
    let left = |holder: usize, millis| record().holders[holder].free_in(StoreTime::from_millis(millis));
    assert_eq!(left(0, 1_000), Duration::from_millis(100));
    assert_eq!(left(0, 1_101), Duration::ZERO);
    assert_eq!(left(2, 1_000), Duration::MAX);
    let longest = StoreTime::from_millis(0).after(Ttl::MAX.millis());
    assert_eq!(time_until(longest, StoreTime::from_millis(0)), Ttl::MAX.duration());
    assert_eq!(time_until(longest.after(1), StoreTime::from_millis(0)), Duration::MAX);
}

#[test]
fn a_version_leaves_room_for_a_million_grants() {
    assert_eq!(Record::MAX_VERSION, FencingToken::MAX.get() - 1_048_576);
}

#[test]
fn an_inspection_shows_exclusive_and_expired_holders() {
    let seen = Inspection::of("k".parse().unwrap(), record(), StoreTime::from_millis(1_100));
    let of_each = |what: fn(&HolderInfo) -> bool| seen.holders.iter().map(what).collect::<Vec<_>>();
    assert_eq!(of_each(HolderInfo::is_expired), [true, false, false]);
    assert_eq!(of_each(HolderInfo::is_exclusive), [true, false, false]);
    assert_eq!(seen.holders[1].sharing, Sharing::UpTo(4));
}

#[test]
fn lease_refs_are_grouped_by_key_in_the_order_of_the_keys() {
    let lease = |key: &str, token| (key.parse::<crate::Key>().unwrap(), FencingToken::new(token).unwrap());
    let refs = lease_refs([lease("b", 1), lease("a", 2), lease("b", 3)]);
    let refs: Vec<_> = refs.iter().map(|(key, tokens)| (key.as_str(), tokens.len())).collect();
    assert_eq!(refs, [("b", 2), ("a", 1)]);
}

/// A store on a compare-and-swap backend keeps records in this form.
#[test]
fn the_limits_of_a_hold_and_the_acquire_id_keep_their_stored_names() {
    let mut terms = record().holders.remove(0).terms;
    for (min, max, stored) in
        [(None, None, [0, 0]), (Some(5), None, [5, 0]), (None, Some(7), [0, 7]), (Some(5), Some(7), [5, 7])]
    {
        terms.hold = HoldLimits { min, max };
        let value = serde_json::to_value(&terms).unwrap();
        assert_eq!(value["hold"], serde_json::json!({ "at_least": stored[0], "at_most": stored[1] }));
        assert_eq!(value["caller"], serde_json::to_value(terms.acquire_id).unwrap());
        assert_eq!(serde_json::from_value::<LeaseSpec>(value).unwrap(), terms);
    }
}

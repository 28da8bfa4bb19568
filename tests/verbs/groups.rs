//! Leases of a group, released and refreshed at once.

use std::future::IntoFuture;

use mongoseal::{
    Deadline, Error, Lease, ListedLease, LossCause, Mongoseal, ReleaseOutcome,
    record::Request,
    store::{Snapshot, Store},
};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

async fn member(seal: &Mongoseal, key: &str) -> Lease {
    seal.acquire(key).group("g").ttl(secs(30)).without_refresh().await.unwrap()
}

fn keys(leases: &[ListedLease]) -> Vec<&str> {
    leases.iter().map(|lease| lease.key.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_group_is_released_from_any_process_newest_first_and_nothing_else_is() {
    let store = Faulty::new();
    let (one, two, other) = (store.seal(), store.seal(), store.seal());
    let (c, a) = (member(&one, "c").await, member(&two, "a").await);
    let b = one.acquire("b").group("g").shared().metadata("why", "test").await.unwrap();
    let beside = one.acquire("b").group("h").shared().await.unwrap();
    let alone = one.acquire("alone").await.unwrap();
    tokio::time::sleep(secs(2)).await;

    let released = other.release_group("g").await.unwrap();
    assert_eq!(keys(&released), ["b", "a", "c"], "the newest first");
    assert_eq!(released[0].holder.metadata.get("why"), Some("test"));
    assert!(released.iter().map(|lease| lease.holder.token).eq([b.token(), a.token(), c.token()]));
    for lease in [a, b, c] {
        match lease.verify().await {
            Err(Error::Lost { cause: LossCause::Revoked { by, reason }, .. }) => {
                assert_eq!((by.as_str(), reason.as_str()), (other.owner().as_str(), "its group g was released"));
            }
            other => panic!("{other:?}"),
        }
    }
    for lease in [beside, alone] {
        lease.verify().await.unwrap();
    }
    assert_eq!(other.release_group("g").await.unwrap(), [], "it can be asked for twice");
}

#[tokio::test(start_paused = true)]
async fn holders_elsewhere_are_told_at_once_and_who_waits_is_next() {
    let store = Faulty::new();
    let held = store.seal().acquire("k").group("g").ttl(secs(600)).await.unwrap();
    let waiting = tokio::spawn(store.seal().acquire("k").group("g").wait(secs(60)).into_future());
    tokio::time::sleep(secs(5)).await;
    assert_eq!(store.seal().release_group("g").await.unwrap().len(), 1);
    tokio::time::sleep(millis(5)).await;
    assert!(!held.is_valid());
    let next = waiting.await.unwrap().unwrap();
    next.verify().await.unwrap();
    assert!(next.token() > held.token(), "who waited in the group holds now");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_group_is_an_empty_answer_and_a_store_that_is_away_an_error() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = seal.acquire("k").group("g").ttl(secs(600)).without_refresh().await.unwrap();
    assert_eq!(seal.release_group("h").await.unwrap(), []);
    assert_eq!(seal.refresh_group("h", secs(60)).await.unwrap(), mongoseal::RefreshedGroup::default());
    for text in ["", "a\0"] {
        assert!(matches!(seal.release_group(text).await, Err(Error::Invalid { .. })));
        assert!(matches!(seal.refresh_group(text, secs(60)).await, Err(Error::Invalid { .. })));
        assert!(matches!(seal.acquire("l").group(text).await, Err(Error::Invalid { .. })));
    }
    for fault in [Fault::Fail, Fault::Hang] {
        store.always(fault);
        let began = tokio::time::Instant::now();
        assert!(matches!(seal.release_group("g").await, Err(Error::Unavailable { .. })));
        assert!(matches!(seal.refresh_group("g", secs(60)).await, Err(Error::Unavailable { .. })));
        assert!(began.elapsed() < millis(20_500), "{:?}", began.elapsed());
    }
    assert!(lease.is_valid(), "nobody could be asked");
}

#[tokio::test(start_paused = true)]
async fn the_holders_of_this_handle_stop_before_the_store_is_asked() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = member(&seal, "k").await;
    let asked = store.requests().len();
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Fail));
    assert!(matches!(seal.release_group("g").await, Err(Error::Unavailable { .. })));
    assert!(!lease.is_valid());
    assert!(matches!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyLost { cause: LossCause::Revoked { .. } }));
    let own: Vec<_> = store.requests().split_off(asked);
    assert!(matches!(own.as_slice(), [Request::Release(_)]), "what came to nothing is done by itself: {own:?}");
    assert_eq!(seal.inspect("k").await.unwrap().unwrap().holders, []);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_still_tells_what_was_released() {
    let store = Faulty::new();
    let seal = store.seal();
    for key in ["a", "b"] {
        member(&seal, key).await.orphan();
    }
    seal.acquire("short").group("g").ttl(millis(100)).without_refresh().await.unwrap().orphan();
    store.first(1, |call| matches!(call, Call::Jointly(_)), Fault::DelayReply(secs(60)));
    let released = seal.release_group("g").await.unwrap();
    assert_eq!(keys(&released), ["b", "a"], "what may have expired meanwhile is not told as released");
}

#[tokio::test(start_paused = true)]
async fn where_one_was_given_back_meanwhile_the_others_are_released_all_the_same() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let (one, two) = (other.acquire("k").shared().group("g").await.unwrap(), member(&other, "l").await);
    let three = other.acquire("k").shared().group("g").await.unwrap();
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(millis(100))));
    let releasing = tokio::spawn(async move { seal.release_group("g").await });
    tokio::time::sleep(millis(50)).await;
    one.release().await.unwrap();
    assert_eq!(keys(&releasing.await.unwrap().unwrap()), ["k", "l", "k"]);
    for lease in [two, three] {
        lease.verify().await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_refreshed_to_a_new_ttl_and_the_deadlines_here_move_on() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let (here, there) = (member(&seal, "a").await, member(&other, "b").await);
    let forever = seal.acquire("c").group("g").without_expiry().await.unwrap();
    tokio::time::sleep(secs(20)).await;
    let refreshed = seal.refresh_group("g", secs(60)).await.unwrap().refreshed;
    assert_eq!(keys(&refreshed), ["a", "b", "c"]);
    let remaining: Vec<_> = refreshed.iter().map(|lease| lease.holder.remaining).collect();
    let refreshed_to = Some(secs(60) + GRACE);
    assert_eq!(remaining, [refreshed_to, refreshed_to, None], "as the store keeps them now, with the grace");
    for ListedLease { key, holder, read_at, .. } in &refreshed {
        let record = seal.inspect(key).await.unwrap().unwrap();
        let now = &record.holders[0];
        assert!(holder.last_seen <= now.last_seen && now.last_seen.since(*read_at) < millis(10));
        assert_eq!((&holder.owner, holder.token), (&now.owner, now.token));
    }
    assert!(here.remaining() > secs(59), "{:?}", here.remaining());
    assert_eq!(forever.remaining(), std::time::Duration::MAX);
    for key in ["a", "b"] {
        assert_eq!(seal.inspect(key).await.unwrap().unwrap().holders[0].remaining, Some(secs(60) + GRACE));
    }
    assert_eq!(seal.inspect("c").await.unwrap().unwrap().holders[0].remaining, None);
    // Past the end that it began with, on a task that slept until then.
    tokio::time::sleep(secs(30)).await;
    assert!(here.is_valid() && !there.is_valid());
    here.verify().await.unwrap();
    tokio::time::sleep(secs(30) + GRACE).await;
    assert!(!here.is_valid(), "and not for ever");
    let group = seal.refresh_group("g", secs(2)).await.unwrap();
    assert_eq!((keys(&group.refreshed), keys(&group.gone)), (vec!["c"], vec!["a", "b"]));
    assert_eq!(keys(&seal.release_group("g").await.unwrap()), ["c"], "and what was over is cleared away");
    let shorter = seal.acquire("d").group("g").ttl(secs(60)).without_refresh().await.unwrap();
    let kept = seal.refresh_group("g", secs(2)).await.unwrap().refreshed;
    assert!(kept[0].holder.remaining > Some(secs(59)), "{kept:?}");
    assert!(shorter.remaining() > secs(59), "it never ends sooner than it would have");
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_group_that_has_expired_is_gone_and_the_others_are_refreshed() {
    let store = Faulty::new();
    let seal = store.seal();
    member(&seal, "a").await.orphan();
    seal.acquire("b").group("g").ttl(secs(3)).without_refresh().await.unwrap().orphan();
    let left = || async { seal.inspect("a").await.unwrap().unwrap().holders[0].remaining.unwrap() };
    tokio::time::sleep(secs(4)).await;
    let group = seal.refresh_group("g", secs(60)).await.unwrap();
    assert_eq!((keys(&group.refreshed), keys(&group.gone)), (vec!["a"], vec!["b"]));
    assert_eq!(group.gone[0].holder.remaining, Some(secs(0)));
    assert_eq!(left().await, secs(60) + GRACE);
    seal.purge().await.unwrap();
    let group = seal.refresh_group("g", secs(90)).await.unwrap();
    assert_eq!((keys(&group.refreshed), keys(&group.gone)), (vec!["a"], vec![]), "no entry of it is left");
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_group_that_ends_while_it_is_refreshed_is_gone_and_costs_no_other_of_its_key() {
    let store = Faulty::new();
    let seal = store.seal();
    let sharer = || async { seal.acquire("k").shared().group("g").ttl(secs(30)).without_refresh().await.unwrap() };
    let (first, second, third) = (sharer().await, sharer().await, member(&seal, "l").await);
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(millis(100))));
    let refreshing = seal.clone();
    let refreshing = tokio::spawn(async move { refreshing.refresh_group("g", secs(60)).await });
    tokio::time::sleep(millis(50)).await;
    first.release().await.unwrap();
    let group = refreshing.await.unwrap().unwrap();
    assert_eq!((keys(&group.refreshed), keys(&group.gone)), (vec!["k", "l"], vec!["k"]));
    assert_eq!(group.refreshed[0].holder.token, second.token());
    assert!(second.remaining() > secs(59) && third.remaining() > secs(59));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_of_a_group_that_is_dropped_half_way_leaves_the_leases_as_good_as_they_were() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = member(&seal, "a").await;
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::DelayReply(secs(1))));
    let dropped = tokio::time::timeout(millis(500), seal.refresh_group("g", secs(60))).await;
    assert!(dropped.is_err());
    assert!(lease.is_valid() && lease.remaining() < secs(30));
    lease.verify().await.unwrap();
    let dropped = tokio::time::timeout(millis(500), seal.release_group("g")).await;
    assert!(dropped.is_err() && !lease.is_valid());
    assert!(seal.leases().await.unwrap().next().await.is_none(), "it was released all the same");
}

#[tokio::test(start_paused = true)]
async fn a_transfer_and_a_resume_keep_the_group() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = member(&seal, "k").await;
    let to = mongoseal::LeaseId::random();
    let token = lease.transfer(to).await.unwrap();
    let group = || async { seal.inspect("k").await.unwrap().unwrap().holders[0].group.clone() };
    assert_eq!(group().await.unwrap().as_str(), "g");
    let resumed = store.seal().resume("k", to, token).await.unwrap();
    assert_eq!(group().await.unwrap().as_str(), "g");
    assert_eq!((seal_list(store.seal(), "g").await, resumed.is_valid()), (1, true));
}

async fn seal_list(seal: Mongoseal, group: &str) -> usize {
    let mut leases = seal.leases().group(group).await.unwrap();
    let mut count = 0;
    while let Some(lease) = leases.next().await {
        assert_eq!(lease.unwrap().holder.group.unwrap().as_str(), group);
        count += 1;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn a_set_can_be_a_group() {
    let store = Faulty::new();
    let set = store.seal().acquire_all(["a", "b"]).group("g").await.unwrap();
    assert!(matches!(store.seal().acquire_all(["c"]).group("").await, Err(Error::Invalid { .. })));
    assert_eq!(keys(&store.seal().release_group("g").await.unwrap()), ["b", "a"]);
    assert!(store.requests().iter().all(|request| !matches!(request, Request::Revoke(_))));
    drop(set);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_before_the_group_is_released_holds_nothing_up() {
    let store = Faulty::new();
    let seal = store.seal();
    // On one key, so that the one that goes on is asked for together with the one that is over.
    let short = seal.acquire("k").shared().group("g").ttl(millis(100)).without_refresh().await.unwrap();
    let long = seal.acquire("k").shared().group("g").ttl(secs(60)).without_refresh().await.unwrap();
    short.orphan();
    let token = long.token();
    let mut asked = 0;
    store.script(move |call| match call {
        Call::Jointly(_) => {
            asked += 1;
            assert!(asked < 100, "it does not ask all the time");
            (asked == 1).then_some(Fault::Delay(millis(200)))
        }
        _ => None,
    });
    let began = tokio::time::Instant::now();
    let released = seal.release_group("g").await.unwrap();
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    assert!(released.iter().map(|lease| lease.holder.token).eq([token]), "what has expired is not told as released");
    assert!(seal.leases().with_expired().await.unwrap().next().await.is_none(), "and cleared away");
}

#[tokio::test(start_paused = true)]
async fn a_refresh_of_a_group_leaves_each_lease_its_own_grace() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let lease = seal.acquire("k").group("g").grace(secs(5)).ttl(secs(30)).without_refresh().await.unwrap();
    other.refresh_group("g", secs(60)).await.unwrap();
    assert_eq!(other.inspect("k").await.unwrap().unwrap().holders[0].remaining, Some(secs(65)));
    seal.refresh_group("g", secs(90)).await.unwrap();
    let left = seal.inspect("k").await.unwrap().unwrap().holders[0].remaining.unwrap();
    assert!(left >= lease.remaining() + secs(5), "it has stopped that long before: {left:?}");
}

/// A refresh of the group cannot know which of them have one by default.
#[tokio::test(start_paused = true)]
async fn a_refresh_of_a_group_leaves_room_for_default_graces_within_the_retention() {
    let seal = Mongoseal::builder().retention(secs(60)).in_memory().unwrap();
    let _lease = member(&seal, "a").await;
    seal.refresh_group("g", millis(59_500)).await.unwrap();
    assert_eq!(seal.inspect("a").await.unwrap().unwrap().holders[0].remaining, Some(secs(60)));
    assert!(matches!(seal.refresh_group("g", secs(60)).await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn deadlines_here_are_counted_from_before_the_group_was_asked_for() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = member(&seal, "a").await;
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::DelayReply(secs(3))));
    seal.refresh_group("g", secs(60)).await.unwrap();
    let left = seal.inspect("a").await.unwrap().unwrap().holders[0].remaining.unwrap();
    assert!(lease.remaining() < left && left == secs(57) + GRACE, "{:?} and {left:?}", lease.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_lease_here_with_the_token_of_another_key_in_the_group_is_not_meant() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = seal.acquire("a").await.unwrap();
    // As concurrent grants on a real server can have it.
    let Some(Snapshot { record: mut twin, .. }) =
        store.records.read(lease.key(), Deadline::after(store.records.clock(), secs(1))).await.unwrap()
    else {
        panic!()
    };
    twin.holders[0].terms.group = Some("g".parse().unwrap());
    store.records.restore("b".parse().unwrap(), *twin);
    let released = seal.release_group("g").await.unwrap();
    assert_eq!((keys(&released), released[0].holder.token), (vec!["b"], lease.token()));
    assert!(lease.is_valid());
    lease.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_group_of_more_than_is_listed_at_once_is_released_and_refreshed_whole() {
    const MANY: usize = 2_001;
    let store = Faulty::new();
    let seal = store.seal();
    for number in 0..MANY {
        member(&seal, &number.to_string()).await.orphan();
    }
    assert_eq!(seal.refresh_group("g", secs(60)).await.unwrap().refreshed.len(), MANY);
    assert_eq!(seal.release_group("g").await.unwrap().len(), MANY);
    assert!(seal.leases().await.unwrap().next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_group_ends_with_the_operation_timeout_whatever_it_has_to_read() {
    let store = Faulty::new();
    let (seal, elsewhere) = (store.seal(), store.seal());
    let _a = member(&seal, "a").await;
    let b = member(&elsewhere, "b").await;
    store.script(|call| match call {
        Call::Jointly(_) => Some(Fault::Delay(secs(4))),
        Call::Read => Some(Fault::Hang),
        _ => None,
    });
    let began = tokio::time::Instant::now();
    let releasing = seal.clone();
    let releasing = tokio::spawn(async move { releasing.release_group("g").await });
    tokio::time::sleep(millis(50)).await;
    b.release().await.unwrap();
    drop(releasing.await.unwrap());
    assert!(began.elapsed() <= secs(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_waits_for_the_release_of_the_group_of_a_lease_of_its_own_handle() {
    let store = Faulty::new();
    let seal = store.seal();
    let lease = member(&seal, "a").await;
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(millis(500))));
    let release = tokio::spawn({
        let seal = seal.clone();
        async move { seal.release_group("g").await }
    });
    lease.cancelled().await;
    let began = store.records.clock().now();
    let next = seal.acquire("a").await.unwrap();
    assert_eq!(store.records.clock().now().since(began), millis(500));
    assert!(next.token() > lease.token());
    assert_eq!(release.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_group_that_is_dropped_half_way_releases_each_lease_here_by_itself() {
    let store = Faulty::new();
    let seal = store.seal();
    let held = [member(&seal, "a").await, member(&seal, "b").await];
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Hang));
    let release = tokio::time::timeout(millis(100), seal.release_group("g"));
    assert!(release.await.is_err());
    for lease in &held {
        assert!(!lease.is_valid());
        store.seal().acquire(lease.key().as_str()).wait(secs(1)).await.unwrap().release().await.unwrap();
    }
}

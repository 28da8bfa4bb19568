//! Leases of a group, released and refreshed at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    Error, Lease, LossCause, Mongoseal, ReleaseOutcome,
    action::RefreshedGroup,
    inspect::ListedLease,
    record::Request,
    store::{Deadline, Snapshot, Store},
};
use tokio::time::{Instant, timeout};

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

async fn free_in(seal: &Mongoseal, key: &str) -> Duration {
    seal.inspect(key).await.unwrap().unwrap().holders[0].free_in
}

#[tokio::test(start_paused = true)]
async fn an_unknown_group_is_an_empty_answer_and_a_store_that_is_away_an_error() {
    let (store, seal) = Faulty::open();
    let lease = member(&seal, "k").await;
    assert_eq!(seal.release_group("h").await.unwrap(), []);
    assert_eq!(seal.refresh_group("h", secs(60)).await.unwrap(), RefreshedGroup::default());
    store.always(Fault::Fail);
    assert!(matches!(seal.release_group("g").await, Err(Error::Unavailable { .. })));
    assert!(matches!(seal.refresh_group("g", secs(60)).await, Err(Error::Unavailable { .. })));
    assert!(lease.is_valid(), "nobody could be asked");
}

#[tokio::test(start_paused = true)]
async fn the_holders_of_this_handle_stop_before_the_store_is_asked() {
    let (store, seal) = Faulty::open();
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
    let (store, seal) = Faulty::open();
    for key in ["a", "b"] {
        member(&seal, key).await.orphan();
    }
    seal.acquire("short").group("g").ttl(millis(100)).without_refresh().await.unwrap().orphan();
    store.first(1, |call| matches!(call, Call::Jointly(_)), Fault::DelayReply(secs(60)));
    let released = seal.release_group("g").await.unwrap();
    assert_eq!(keys(&released), ["b", "a"], "what may have expired meanwhile is not told as released");
}

/// A handle that acts at the deadline with which it began misses what another handle extended.
#[tokio::test(start_paused = true)]
async fn a_group_is_refreshed_to_a_new_ttl_and_the_deadlines_here_move_on() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let (here, there) = (member(&seal, "a").await, member(&other, "b").await);
    let forever = seal.acquire("c").group("g").without_expiry().await.unwrap();
    tokio::time::sleep(secs(20)).await;
    let refreshed = seal.refresh_group("g", secs(60)).await.unwrap().refreshed;
    assert_eq!(keys(&refreshed), ["a", "b", "c"]);
    let refreshed_to = secs(60) + GRACE;
    let told: Vec<_> = refreshed.iter().map(|lease| lease.holder.free_in).collect();
    assert_eq!(told, [refreshed_to, refreshed_to, Duration::MAX], "as the store keeps them now, with the grace");
    for ListedLease { key, holder, read_at, .. } in &refreshed {
        let record = seal.inspect(key).await.unwrap().unwrap();
        let now = &record.holders[0];
        assert!(holder.last_seen <= now.last_seen && now.last_seen.since(*read_at) < millis(10));
        assert_eq!((&holder.owner, holder.token, holder.free_in), (&now.owner, now.token, now.free_in), "{key}");
    }
    assert!(here.remaining() > secs(59), "{:?}", here.remaining());
    assert_eq!(forever.remaining(), Duration::MAX);
    // Past the end that it began with, on a task that slept until then.
    tokio::time::sleep(secs(30)).await;
    assert!(here.is_valid() && !there.is_valid());
    here.verify().await.unwrap();
    tokio::time::sleep(secs(30) + GRACE).await;
    assert!(!here.is_valid(), "and not for ever");
    let group = seal.refresh_group("g", secs(2)).await.unwrap();
    assert_eq!((keys(&group.refreshed), keys(&group.gone)), (vec!["c"], vec!["a", "b"]));
    assert_eq!(group.gone[0].holder.free_in, secs(0));
    seal.purge().await.unwrap();
    let group = seal.refresh_group("g", secs(2)).await.unwrap();
    assert_eq!((keys(&group.refreshed), keys(&group.gone)), (vec!["c"], vec![]), "no entry of them is left");
    forever.release().await.unwrap();
    let shorter = seal.acquire("d").group("g").ttl(secs(60)).without_refresh().await.unwrap();
    let kept = seal.refresh_group("g", secs(2)).await.unwrap().refreshed;
    assert!(kept[0].holder.free_in > secs(59), "{kept:?}");
    assert!(shorter.remaining() > secs(59), "it never ends sooner than it would have");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_while_its_group_is_refreshed_or_released_costs_no_other_of_its_key() {
    for by_release in [false, true] {
        let (store, seal) = Faulty::open();
        let sharer = async || seal.acquire("k").shared().group("g").ttl(secs(30)).without_refresh().await.unwrap();
        let (first, second, third) = (sharer().await, sharer().await, member(&seal, "l").await);
        store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(millis(100))));
        let end_first = async {
            tokio::time::sleep(millis(50)).await;
            first.release().await.unwrap();
        };
        if by_release {
            let (released, ()) = tokio::join!(async { store.seal().release_group("g").await }, end_first);
            assert_eq!(keys(&released.unwrap()), ["l", "k", "k"]);
            for lease in [second, third] {
                lease.verify().await.unwrap_err();
            }
        } else {
            let (group, ()) = tokio::join!(seal.refresh_group("g", secs(60)), end_first);
            let group = group.unwrap();
            assert_eq!((keys(&group.refreshed), keys(&group.gone)), (vec!["k", "l"], vec!["k"]));
            assert_eq!(group.refreshed[0].holder.token, second.token());
            assert!(second.remaining() > secs(59) && third.remaining() > secs(59));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_of_a_group_that_is_dropped_half_way_leaves_its_leases_and_a_release_releases_those_of_its_handle() {
    let (store, seal) = Faulty::open();
    let held = [member(&seal, "a").await, member(&seal, "b").await];
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::DelayReply(secs(1))));
    assert!(timeout(millis(500), seal.refresh_group("g", secs(60))).await.is_err());
    for lease in &held {
        assert!(lease.is_valid() && lease.remaining() < secs(30));
        lease.verify().await.unwrap();
    }
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Hang));
    assert!(timeout(millis(100), seal.release_group("g")).await.is_err());
    for lease in &held {
        assert!(!lease.is_valid());
        store.seal().acquire(lease.key().as_str()).wait(secs(1)).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expires_before_the_group_is_released_holds_nothing_up() {
    let (store, seal) = Faulty::open();
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
    let began = Instant::now();
    let released = seal.release_group("g").await.unwrap();
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    assert!(released.iter().map(|lease| lease.holder.token).eq([token]), "what has expired is not told as released");
    assert!(seal.leases().with_expired().await.unwrap().next().await.is_none(), "and cleared away");
}

#[tokio::test(start_paused = true)]
async fn a_refresh_of_a_group_leaves_each_lease_its_own_grace_and_its_deadline_counts_from_before_the_send() {
    let store = Faulty::new();
    let (seal, other) = (store.seal(), store.seal());
    let lease = seal.acquire("k").group("g").grace(secs(5)).ttl(secs(30)).without_refresh().await.unwrap();
    other.refresh_group("g", secs(60)).await.unwrap();
    assert_eq!(free_in(&seal, "k").await, secs(65));
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::DelayReply(secs(3))));
    seal.refresh_group("g", secs(90)).await.unwrap();
    assert_eq!(free_in(&seal, "k").await, secs(87 + 5));
    let left = lease.remaining();
    assert!(left > secs(86) && left <= secs(87), "{left:?}");
}

/// A refresh of the group cannot know which of them have one by default.
#[tokio::test(start_paused = true)]
async fn a_refresh_of_a_group_leaves_room_for_default_graces_within_the_retention() {
    let seal = Mongoseal::builder().retention(secs(60)).in_memory().unwrap();
    let _lease = member(&seal, "a").await;
    seal.refresh_group("g", millis(59_500)).await.unwrap();
    assert_eq!(free_in(&seal, "a").await, secs(60));
    assert!(matches!(seal.refresh_group("g", secs(60)).await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_lease_here_with_the_token_of_another_key_in_the_group_is_not_meant() {
    let (store, seal) = Faulty::open();
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
async fn a_group_of_more_than_is_listed_at_once_is_released_and_refreshed_whole_and_listed_by_few_pages() {
    const MANY: usize = 2_001;
    let (store, seal) = Faulty::open();
    for number in 0..MANY {
        member(&seal, &number.to_string()).await.orphan();
    }
    let pages = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pages);
    store.script(move |call| {
        count.fetch_add(usize::from(matches!(call, Call::List)), Ordering::Relaxed);
        None
    });
    let listed = seal.leases().await.unwrap().collect().await.unwrap();
    assert_eq!((listed.len(), pages.swap(0, Ordering::Relaxed)), (MANY, 2), "500 leases, and up to 2,000");
    assert_eq!(seal.refresh_group("g", secs(60)).await.unwrap().refreshed.len(), MANY);
    assert_eq!(pages.swap(0, Ordering::Relaxed), 2, "2,000 leases, and one");
    assert_eq!(seal.release_group("g").await.unwrap().len(), MANY);
    assert!(seal.leases().await.unwrap().next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_waits_for_the_release_of_the_group_of_a_lease_of_its_own_handle() {
    let (store, seal) = Faulty::open();
    let lease = member(&seal, "a").await;
    store.script(|call| matches!(call, Call::Jointly(_)).then_some(Fault::Delay(millis(500))));
    let releasing = seal.clone();
    let release = tokio::spawn(async move { releasing.release_group("g").await });
    lease.cancelled().await;
    let began = Instant::now();
    let next = seal.acquire("a").await.unwrap();
    assert_eq!(began.elapsed(), millis(500));
    assert!(next.token() > lease.token());
    assert_eq!(release.await.unwrap().unwrap().len(), 1);
}

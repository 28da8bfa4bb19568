//! Leases that another process ends: by a revocation, by the release of their group, by a purge.

use std::{
    collections::HashSet,
    mem::forget,
    sync::atomic::{AtomicBool, Ordering},
};

use mongoseal::{LeaseState, LossCause, ReleaseOutcome};
use mongoseal_test_support::{millis, secs};

use crate::world::{World, soon, wait};

fn revoked(by: &str, reason: &str) -> LeaseState {
    LeaseState::Lost { cause: LossCause::Revoked { by: by.into(), reason: reason.into() } }
}

pub(crate) async fn a_holder_learns_of_its_revocation_and_who_waits_is_next(world: &World) {
    // Its next refresh is minutes away.
    let lease = world.seal().acquire("k").ttl(secs(1_200)).await.unwrap();
    let waiting = wait(&world.seal());
    world.queued(1).await;
    let ended = world.seal().revoke("k").by("alice").reason("drill").await.unwrap();
    assert_eq!(ended.len(), 1);
    assert_eq!((&ended[0].owner, ended[0].token), (lease.owner(), lease.token()));
    assert_eq!(world.end_of(&lease).await, revoked("alice", "drill"));
    assert!(soon(waiting).await.unwrap().unwrap().token() > lease.token());
    let seen = world.seal().inspect("k").await.unwrap().unwrap();
    assert_eq!((seen.history[0].by.as_str(), seen.history[0].reason.as_str()), ("alice", "drill"));
}

/// The record must name the acquire of this process: the change stream notifies the handle that it names.
pub(crate) async fn a_resumed_lease_hears_of_its_revocation(world: &World) {
    for is_refreshed in [false, true] {
        let first = world.seal();
        let lease = first.acquire("k").ttl(secs(1_200)).await.unwrap();
        let (id, token) = (lease.id(), lease.token());
        lease.orphan();
        first.shutdown().await;
        let lease = world.seal().resume("k", id, token).await.unwrap();
        if is_refreshed {
            lease.refresh().await.unwrap();
        }
        world.seal().revoke("k").by("olga").reason("drill").await.unwrap();
        assert_eq!(world.end_of(&lease).await, revoked("olga", "drill"), "refreshed: {is_refreshed}");
    }
}

/// Also of leases without expiry, which nothing else ends if their holders have died.
pub(crate) async fn a_revocation_with_a_bound_leaves_later_leases_and_the_record_keeps_the_last_eight(world: &World) {
    let seal = world.seal();
    for number in 0..10 {
        let old = seal.acquire("k").shared().without_expiry().await.unwrap();
        let seen = seal.inspect("k").await.unwrap().unwrap().version;
        let new = seal.acquire("k").shared().ttl(secs(1_200)).await.unwrap();
        let revoke = || seal.revoke("k").up_to(seen).reason(number.to_string());
        assert!(revoke().await.unwrap().iter().map(|lease| lease.token).eq([old.token()]), "round {number}");
        assert_eq!(revoke().await.unwrap(), [], "a repeated one ends no other lease");
        new.refresh().await.unwrap();
        new.release().await.unwrap();
    }
    let history = seal.inspect("k").await.unwrap().unwrap().history;
    assert!(
        history.iter().map(|past| past.reason.as_str()).eq(["2", "3", "4", "5", "6", "7", "8", "9"]),
        "{history:?}"
    );
}

pub(crate) async fn a_revocation_of_one_token_ends_its_lease_and_no_other_sharer(world: &World) {
    let seal = world.seal();
    let acquire = async || seal.acquire("k").shared().ttl(secs(1_200)).await.unwrap();
    let (one, two, three) = (acquire().await, acquire().await, acquire().await);
    let ended = world.seal().revoke("k").token(two.token()).by("alice").reason("stuck").await.unwrap();
    assert_eq!(ended.iter().map(|lease| lease.token).collect::<Vec<_>>(), [two.token()]);
    assert_eq!(world.end_of(&two).await, revoked("alice", "stuck"));
    for lease in [&one, &three] {
        lease.refresh().await.unwrap();
    }
    assert!(seal.revoke("k").token(two.token()).await.unwrap().is_empty(), "it has ended");
    assert!(seal.revoke("k").token(three.token()).up_to(two.token()).await.unwrap().is_empty(), "it is above");
    three.refresh().await.unwrap();
}

pub(crate) async fn a_group_is_refreshed_and_released_by_another_process_and_its_holders_and_waiters_are_told(
    world: &World,
) {
    let (seal, other) = (world.seal(), world.seal());
    let acquire = |key: &str| seal.acquire(key).group("g").ttl(secs(600));
    let (k, l) = (acquire("k").await.unwrap(), acquire("l").await.unwrap());
    let waiting = tokio::spawn(acquire("k").wait(secs(3_600)).into_future());
    world.queued(1).await;
    let beside = seal.acquire("beside").group("h").ttl(secs(600)).await.unwrap();
    let refreshed = other.refresh_group("g", secs(1_200)).await.unwrap().refreshed;
    assert_eq!(refreshed.iter().map(|lease| lease.key.as_str()).collect::<Vec<_>>(), ["k", "l"]);
    assert!(refreshed.iter().all(|lease| lease.holder.free_in > secs(1_000)));
    let released = other.release_group("g").await.unwrap();
    assert!(released.iter().map(|lease| lease.holder.token).eq([l.token(), k.token()]), "the newest first");
    for lease in [&k, &l] {
        assert_eq!(world.end_of(lease).await, revoked(other.owner().as_str(), "its group g was released"));
    }
    beside.refresh().await.unwrap();
    assert_eq!(other.release_group("none").await.unwrap(), []);
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > k.token());
    next.refresh().await.unwrap();
    drop(other.acquire("l").await.unwrap());
}

pub(crate) async fn a_purge_never_touches_a_live_lease(world: &World) {
    let (seal, ended) = (world.seal(), AtomicBool::new(false));
    let live = async |number: usize| {
        let (seal, key) = (world.seal(), format!("live-{number}"));
        while !ended.load(Ordering::Relaxed) {
            let lease = seal.acquire(key.as_str()).ttl(secs(60)).without_refresh().await.unwrap();
            lease.refresh().await.unwrap();
            assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
            tokio::time::sleep(millis(10)).await;
        }
    };
    let purge = async {
        let mut purged = Vec::new();
        for round in 0..3 {
            forget(seal.acquire(format!("short-{round}")).ttl(secs(2)).without_refresh().await.unwrap());
            while purged.len() == round {
                purged.extend(seal.purge().await.unwrap());
                tokio::time::sleep(millis(5)).await;
            }
        }
        ended.store(true, Ordering::Relaxed);
        purged
    };
    let (purged, ..) = soon(async { tokio::join!(purge, live(0), live(1)) }).await;
    assert!(purged.iter().all(|lease| lease.holder.is_expired() && lease.key.as_str().starts_with("short-")));
    let told: HashSet<_> = purged.iter().map(|lease| lease.holder.token).collect();
    assert_eq!((told.len(), purged.len()), (3, 3), "each once");
}

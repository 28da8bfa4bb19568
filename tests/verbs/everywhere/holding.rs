//! The life of a lease, from its grant to its end.

use std::time::Duration;

use mongoseal::{EndReason, Error, LeaseState, LossCause, ReleaseOutcome};
use mongoseal_test_support::{eventually, millis, secs};

use crate::world::{PATIENCE, World, soon};

pub(crate) async fn a_key_that_looks_like_an_operator_is_a_key_like_any_other(world: &World) {
    let seal = world.seal();
    let mut leases = Vec::new();
    for key in ["$where", "a.b", "$$NOW", "{\"$gt\":\"\"}", "a b", "ключ", "\u{200b}"] {
        leases.push(seal.acquire(key).await.unwrap());
        assert!(matches!(seal.acquire(key).await, Err(Error::Held { .. })));
        assert_eq!(seal.inspect(key).await.unwrap().unwrap().holders.len(), 1);
    }
    for lease in leases {
        assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    }
}

pub(crate) async fn a_dropped_lease_is_released_and_so_is_one_whose_acquire_was_dropped(world: &World) {
    let (seal, other) = (world.seal(), world.seal());
    let is_free = async || other.acquire("k").await.is_ok();
    drop(seal.acquire("k").ttl(secs(600)).await.unwrap());
    eventually(PATIENCE, "the dropped lease is released", is_free).await;
    for delay in [0, 1, 2, 3] {
        drop(tokio::time::timeout(millis(delay), seal.acquire("k").ttl(secs(600))).await);
        eventually(PATIENCE, "a dropped acquire leaves nothing held", is_free).await;
    }
}

pub(crate) async fn a_lease_whose_record_was_removed_is_lost_with_its_next_refresh_and_never_created_again(
    world: &World,
) {
    let seal = world.seal();
    let lease = seal.acquire("k").ttl(secs(60)).refresh_every(secs(1)).await.unwrap();
    world.remove("k").await;
    assert_eq!(soon(lease.cancelled()).await, LeaseState::Lost { cause: LossCause::Removed });
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyLost { cause: LossCause::Removed });
    assert_eq!(seal.inspect("k").await.unwrap(), None);
}

pub(crate) async fn a_refresh_and_a_verify_by_hand_find_a_removal_or_a_takeover_and_say_to_whom(world: &World) {
    for (by_verify, is_taken) in [(false, false), (false, true), (true, false), (true, true)] {
        let lease = world.seal().acquire("k").ttl(secs(600)).await.unwrap();
        world.remove("k").await;
        let mut next = None;
        if is_taken {
            next = Some(world.seal().acquire("k").await.unwrap());
        }
        assert!(lease.is_valid(), "what is believed is not proof");
        let cause = next.as_ref().map_or(LossCause::Removed, |next| LossCause::TakenOver { token: next.token() });
        // A verify is a read.
        let can_verify = by_verify && world.abilities.has_current_reads;
        let error = if can_verify { lease.verify().await } else { lease.refresh().await }.unwrap_err();
        assert!(matches!(&error, Error::Lost { cause: found, .. } if *found == cause), "{error}");
        assert_eq!(lease.state(), LeaseState::Lost { cause });
        let lost = lease.token();
        drop(lease);
        if let Some(next) = next {
            assert!(next.token() > lost);
            assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
        }
    }
}

pub(crate) async fn a_refreshed_lease_outlasts_its_ttl_and_that_of_a_dead_process_is_granted_again(world: &World) {
    let (seal, other) = (world.seal(), world.seal());
    let lease = seal.acquire("k").ttl(secs(4)).await.unwrap();
    let since = seal.now().await.unwrap();
    let over = async || seal.now().await.unwrap().since(since) > secs(5);
    eventually(PATIENCE, "its ttl is over", over).await;
    assert!(lease.is_valid());
    let refused = other.acquire("k").await.unwrap_err();
    assert!(matches!(refused, Error::Held { token, .. } if token == lease.token()), "{refused:?}");
    let token = lease.token();
    lease.orphan();
    assert!(other.acquire("k").wait(secs(3_600)).await.unwrap().token() > token);
}

pub(crate) async fn a_lease_without_expiry_lasts_until_it_is_released(world: &World) {
    let lease = world.seal().acquire("k").without_expiry().await.unwrap();
    let refused = world.seal().acquire("k").await.unwrap_err();
    assert!(matches!(refused, Error::Held { free_in: Duration::MAX, .. }), "{refused:?}");
    lease.refresh().await.unwrap();
    assert_eq!(lease.remaining(), Duration::MAX);
    let token = lease.token();
    lease.release().await.unwrap();
    assert!(world.seal().acquire("k").await.unwrap().token() > token);
}

pub(crate) async fn a_shutdown_releases_the_leases_of_its_handle_and_of_no_other(world: &World) {
    let (seal, other) = (world.seal(), world.seal());
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    let beside = other.acquire("beside").ttl(secs(600)).await.unwrap();
    seal.shutdown().await;
    assert_eq!(lease.state(), LeaseState::Ended { reason: EndReason::ShutDown });
    drop(other.acquire("k").await.unwrap());
    beside.refresh().await.unwrap();
    assert!(matches!(seal.acquire("k").await, Err(Error::Invalid { .. })));
}

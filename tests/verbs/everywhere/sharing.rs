//! Keys that several hold at once.

use mongoseal::{EndReason, Error, Lease, LeaseState, Sharing};
use mongoseal_test_support::secs;
use tokio::task::JoinSet;

use crate::world::{World, soon};

pub(crate) async fn a_downgrade_lets_waiting_sharers_in_up_to_its_limit(world: &World) {
    let writer = world.seal().acquire("k").ttl(secs(600)).await.unwrap();
    // It asks by itself after 200 seconds, a third of its ttl.
    let waits = tokio::spawn(world.seal().acquire("k").shared().ttl(secs(600)).wait(secs(3_600)).into_future());
    world.queued(1).await;
    let (id, token, remaining) = (writer.id(), writer.token(), writer.remaining());
    writer.downgrade(Sharing::UpTo(2)).await.unwrap();
    let reader = soon(waits).await.unwrap().unwrap();
    assert!(reader.token() > token);
    assert_eq!((writer.id(), writer.token(), writer.state()), (id, token, LeaseState::Held));
    assert!(writer.remaining() <= remaining, "the expiry stays");
    assert!(matches!(world.seal().acquire("k").shared().await, Err(Error::Held { .. })), "two hold it");
    let seen = world.seal().inspect("k").await.unwrap().unwrap();
    assert_eq!((seen.holders[0].sharing, seen.holders[0].token), (Sharing::UpTo(2), token));
    writer.downgrade(Sharing::UpTo(2)).await.unwrap();
    let refused = writer.downgrade(Sharing::UpTo(3)).await.unwrap_err();
    let says = refused.to_string().contains("with up to 2 holders already");
    assert!(matches!(refused, Error::Invalid { .. }) && says, "{refused}");
    writer.refresh().await.unwrap();
    reader.refresh().await.unwrap();
}

pub(crate) async fn a_sharer_that_is_alone_becomes_exclusive_with_a_larger_token(world: &World) {
    let sharer = world.seal().acquire("k").shared().ttl(secs(600)).await.unwrap();
    let other = world.seal().acquire("k").shared().await.unwrap();
    assert!(matches!(sharer.upgrade().await, Err(Error::Held { token, .. }) if token == other.token()));
    sharer.refresh().await.unwrap();
    let late = other.token();
    other.release().await.unwrap();
    let holder = sharer.upgrade().await.unwrap();
    assert!(holder.token() > late);
    assert_eq!(sharer.state(), LeaseState::Ended { reason: EndReason::Transferred });
    holder.refresh().await.unwrap();
    assert!(matches!(world.seal().acquire("k").shared().await, Err(Error::Held { .. })));
    holder.downgrade(Sharing::Shared).await.unwrap();
    let mut sharers = Vec::new();
    for _ in 0..3 {
        sharers.push(world.seal().acquire("k").shared().await.unwrap());
    }
    assert!(matches!(world.seal().acquire("k").await, Err(Error::Held { .. })));
    holder.downgrade(Sharing::Shared).await.unwrap();
}

pub(crate) async fn of_a_crowd_that_shares_a_free_key_each_is_granted_it_with_a_token_of_its_own(world: &World) {
    let seal = world.seal();
    let acquire = || seal.acquire("k").shared_up_to(20).ttl(secs(600)).wait(secs(3_600));
    let mut asking: JoinSet<_> = (0..30).map(|_| acquire().into_future()).collect();
    let mut leases = Vec::new();
    for _ in 0..20 {
        leases.push(soon(asking.join_next()).await.unwrap().unwrap().unwrap());
    }
    world.queued(10).await;
    let mut tokens: Vec<_> = leases.iter().map(Lease::token).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 20);
    drop(leases);
    for _ in 0..10 {
        assert!(soon(asking.join_next()).await.unwrap().unwrap().unwrap().token() > tokens[19]);
    }
}

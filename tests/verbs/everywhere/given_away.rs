//! Leases that go on in another process.

use mongoseal::{EndReason, Error, LeaseId, LeaseState, LossCause, Mongoseal, ReleaseOutcome};
use mongoseal_test_support::{millis, secs};

use crate::world::{World, soon, wait};

pub(crate) async fn a_lease_is_given_to_another_process_with_a_larger_token_and_nobody_comes_between(world: &World) {
    let giver = world.seal().acquire("k").group("g").ttl(secs(600)).await.unwrap();
    let (token, state) = (giver.token(), giver.watch_state());
    let waiting = wait(&world.seal());
    world.queued(1).await;
    let id = LeaseId::random();
    let larger = giver.transfer(id).await.unwrap();
    assert!(larger > token);
    assert_eq!(state.get(), LeaseState::Ended { reason: EndReason::Transferred });
    let lease = world.seal().resume("k", id, larger).await.unwrap();
    lease.refresh().await.unwrap();
    let holder = world.seal().inspect("k").await.unwrap().unwrap().holders.remove(0);
    assert_eq!(holder.group.unwrap().as_str(), "g");
    assert!(!waiting.is_finished());
    lease.release().await.unwrap();
    assert!(soon(waiting).await.unwrap().unwrap().token() > larger);
}

pub(crate) async fn a_lease_goes_on_in_another_process_as_it_was(world: &World) {
    let first = world.build(Mongoseal::builder().owner("first"));
    let acquire = first.acquire("k").ttl(secs(600)).grace(secs(3)).group("g").metadata("build", "$1").shared_up_to(2);
    let lease = acquire.await.unwrap();
    let (id, token) = (lease.id(), lease.token());
    let before = first.inspect("k").await.unwrap().unwrap().holders.remove(0);
    lease.orphan();
    first.shutdown().await;

    let second = world.build(Mongoseal::builder().owner("second"));
    let lease = second.resume("k", id, token).ttl(millis(900)).await.unwrap();
    assert!(lease.remaining() > secs(300), "it never ends sooner than before: {:?}", lease.remaining());
    assert_eq!(lease.owner(), first.owner());
    let after = second.inspect("k").await.unwrap().unwrap().holders.remove(0);
    assert_eq!((&after.owner, after.token, after.sharing), (&before.owner, token, before.sharing));
    assert_eq!((&after.group, &after.metadata, after.since), (&before.group, &before.metadata, before.since));
    assert_eq!(after.grace, secs(3));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    let lost = second.resume("k", id, token).await;
    assert!(matches!(lost, Err(Error::Lost { cause: LossCause::Expired, .. })), "{lost:?}");
}

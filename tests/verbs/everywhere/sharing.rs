//! Keys that several hold at once.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
};

use mongoseal::{EndReason, Error, FencingToken, Lease, LeaseState, Sharing};
use mongoseal_test_support::{by_length, millis, secs};
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

pub(crate) async fn a_downgrade_for_all_lets_any_number_of_sharers_in_and_no_exclusive_holder(world: &World) {
    let seal = world.seal();
    let writer = seal.acquire("k").await.unwrap();
    writer.downgrade(Sharing::Shared).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..5 {
        readers.push(seal.acquire("k").shared().await.unwrap());
    }
    assert!(matches!(seal.acquire("k").await, Err(Error::Held { .. })));
    writer.downgrade(Sharing::Shared).await.unwrap();
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
    holder.release().await.unwrap();
    drop(world.seal().acquire("k").await.unwrap());
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

/// A resource that fails if a writer uses it beside others, or if more than three readers use it.
#[derive(Default)]
struct LimitedResource {
    /// The number of readers, or minus one while a writer is there.
    users: AtomicI64,
}

impl LimitedResource {
    async fn read(&self) {
        let others = self.users.fetch_add(1, Ordering::SeqCst);
        assert!((0..3).contains(&others), "a reader beside {others}");
        tokio::time::sleep(millis(fastrand::u64(1..8))).await;
        self.users.fetch_sub(1, Ordering::SeqCst);
    }

    async fn write(&self) {
        assert_eq!(self.users.swap(-1, Ordering::SeqCst), 0, "a writer beside others");
        tokio::time::sleep(millis(fastrand::u64(1..8))).await;
        assert_eq!(self.users.swap(0, Ordering::SeqCst), -1, "a reader came while a writer was there");
    }
}

pub(crate) async fn writers_and_up_to_three_readers_mixed_never_overlap_and_all_get_on(world: &World) {
    let resource = Arc::new(LimitedResource::default());
    let handles = [world.seal(), world.seal(), world.seal()];
    let mut tasks = JoinSet::new();
    for number in 0..9 {
        let (seal, resource) = (handles[number % 3].clone(), Arc::clone(&resource));
        tasks.spawn(async move {
            let mut last = None;
            for round in 0..by_length(6, 40) {
                let acquire = seal.acquire("k").ttl(secs(60)).wait(secs(3_600));
                let writes = (round + number) % 4 == 0;
                let lease = if writes { acquire.await } else { acquire.shared_up_to(3).await }.unwrap();
                assert!(last < Some(lease.token()), "tokens grow");
                last = Some(lease.token());
                if writes {
                    resource.write().await;
                } else {
                    resource.read().await;
                }
                lease.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

/// Whether a task uses a key now, and the last token under which a task used it.
type Use = (bool, Option<FencingToken>);

pub(crate) async fn tasks_over_random_sets_of_keys_never_block_each_other_for_ever(world: &World) {
    let uses: Arc<Mutex<HashMap<String, Use>>> = Arc::default();
    let handles = [world.seal(), world.seal(), world.seal()];
    let mut tasks = JoinSet::new();
    for number in 0..6 {
        let (seal, uses) = (handles[number % 3].clone(), Arc::clone(&uses));
        tasks.spawn(async move {
            for _ in 0..by_length(5, 40) {
                let mut keys = ["a", "b", "c", "d", "e", "f"];
                fastrand::shuffle(&mut keys);
                let keys = &keys[..fastrand::usize(1..=6)];
                let set = seal.acquire_all(keys.iter().copied()).ttl(secs(60)).wait(secs(3_600)).await.unwrap();
                for (key, token) in set.tokens() {
                    let mut uses = uses.lock().unwrap();
                    let last = uses.entry(key.as_str().to_owned()).or_default();
                    assert!(!last.0 && last.1 < Some(token), "{key} is used with {last:?}, now {token}");
                    *last = (true, Some(token));
                }
                tokio::time::sleep(millis(fastrand::u64(0..5))).await;
                for key in keys {
                    uses.lock().unwrap().get_mut(*key).unwrap().0 = false;
                }
                set.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

//! Sharers that become exclusive holders.

use mongoseal::{
    EndReason, Error, Group, Lease, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Result, Sharing, record::Request,
    store::MemoryStore,
};
use tokio::task::JoinHandle;

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

const UPGRADED: LeaseState = LeaseState::Ended { reason: EndReason::Transferred };

fn waiting(seal: &Mongoseal, shared: bool) -> JoinHandle<Result<Lease>> {
    let acquire = seal.acquire("k").wait(secs(600));
    tokio::spawn(if shared { acquire.shared() } else { acquire }.into_future())
}

fn upgrades(store: &Faulty) -> usize {
    store.requests().iter().filter(|request| matches!(request, Request::Upgrade(_))).count()
}

#[tokio::test(start_paused = true)]
async fn a_sharer_that_is_alone_becomes_exclusive_with_a_larger_token_and_waiters_wait_on() {
    let seal = Mongoseal::in_memory();
    let earlier = seal.acquire("k").shared().await.unwrap();
    let acquire = seal.acquire("k").shared().ttl(secs(9)).grace(secs(2)).group("g").metadata("a", "b");
    let sharer = acquire.await.unwrap();
    let largest = seal.acquire("k").shared().await.unwrap().token();
    earlier.release().await.unwrap();
    let waiters = [waiting(&seal, false), waiting(&seal, true)];
    tokio::time::sleep(millis(10)).await;
    let holder = sharer.upgrade().await.unwrap();
    assert_eq!(sharer.state(), UPGRADED);
    assert!(holder.token() > largest && holder.id() != sharer.id());
    assert!(matches!(seal.acquire("k").shared().await, Err(Error::Held { token, .. }) if token == holder.token()));
    let seen = seal.inspect("k").await.unwrap().unwrap();
    let [held] = &seen.holders[..] else { panic!("{seen:?}") };
    assert_eq!((held.sharing, held.owner.clone()), (Sharing::Exclusive, sharer.owner().clone()));
    assert_eq!((held.group.as_ref().map(Group::as_str), held.metadata.get("a")), (Some("g"), Some("b")));
    tokio::time::sleep(secs(60)).await;
    assert!(holder.is_valid() && !waiters[0].is_finished() && !waiters[1].is_finished());
    assert_eq!(sharer.release().await.unwrap(), ReleaseOutcome::AlreadyTransferred);
    holder.verify().await.unwrap();
    drop(holder);
    let [exclusive, sharer] = waiters;
    drop(exclusive.await.unwrap().unwrap());
    drop(sharer.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_sharer_beside_another_and_an_exclusive_lease_are_refused_and_stay() {
    let seal = Mongoseal::in_memory();
    let (one, two) = (seal.acquire("k").shared().await.unwrap(), seal.acquire("k").shared_up_to(2).await.unwrap());
    for (sharer, other) in [(&one, &two), (&two, &one)] {
        let error = sharer.upgrade().await.unwrap_err();
        assert!(matches!(&error, Error::Held { token, .. } if *token == other.token()), "{error}");
        assert_eq!(sharer.state(), LeaseState::Held);
        sharer.verify().await.unwrap();
    }
    let exclusive = seal.acquire("e").await.unwrap();
    let error = exclusive.upgrade().await.unwrap_err();
    assert!(error.to_string().contains("excludes others already"), "{error}");
    exclusive.verify().await.unwrap();
    exclusive.downgrade(2).await.unwrap();
    exclusive.upgrade().await.unwrap().release().await.unwrap();
    two.release().await.unwrap();
    one.upgrade().await.unwrap().release().await.unwrap();
    drop(seal.acquire("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_whose_minimum_hold_is_not_over_is_another_holder() {
    let seal = Mongoseal::in_memory();
    let sharer = seal.acquire("k").shared().await.unwrap();
    seal.acquire("k").shared().min_hold(secs(5)).await.unwrap().release().await.unwrap();
    assert!(matches!(sharer.upgrade().await, Err(Error::Held { is_released: true, .. })));
    tokio::time::sleep(secs(6)).await;
    drop(sharer.upgrade().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_whose_answer_was_lost_is_made_once() {
    let store = Faulty::new();
    let sharer = store.seal().acquire("k").shared().await.unwrap();
    store.first(2, |call| matches!(call, Call::Apply(Request::Upgrade(_))), Fault::LoseReply);
    let holder = sharer.upgrade().await.unwrap();
    assert_eq!(upgrades(&store), 3);
    let seen = store.seal().inspect("k").await.unwrap().unwrap();
    assert_eq!((seen.holders.len(), seen.version), (1, holder.token()));
    holder.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_is_not_confirmed_leaves_a_key_that_is_free_after_the_ttl_and_the_grace() {
    for is_applied in [false, true] {
        let store = Faulty::new();
        let sharer = store.seal().acquire("k").shared().ttl(secs(60)).await.unwrap();
        let fault = if is_applied { Fault::LoseReply } else { Fault::Fail };
        store.script(move |call| matches!(call, Call::Apply(Request::Upgrade(_))).then_some(fault));
        let unconfirmed = sharer.upgrade().await;
        // A check for a loss, or a refresh, may find that it was applied.
        let is_lost = is_applied && matches!(unconfirmed, Err(Error::Lost { .. }));
        assert!(is_lost || matches!(unconfirmed, Err(Error::Unavailable { .. })), "{unconfirmed:?}");
        store.heal();
        tokio::time::sleep(secs(61)).await;
        if is_applied {
            assert_eq!(sharer.state(), LeaseState::Lost { cause: LossCause::Expired });
            assert!(matches!(sharer.upgrade().await, Err(Error::Lost { .. })));
            drop(store.seal().acquire("k").await.unwrap());
        } else {
            drop(sharer.upgrade().await.unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_is_lost_and_the_next_holder_stays() {
    let seal = Mongoseal::in_memory();
    let sharer = seal.acquire("k").shared().await.unwrap();
    let token = sharer.token();
    seal.revoke("k").await.unwrap();
    let next = seal.acquire("k").await.unwrap();
    assert!(matches!(sharer.upgrade().await, Err(Error::Lost { cause: LossCause::Revoked { .. }, .. })));
    assert!(next.token() > token && next.is_valid());
    next.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_upgrade_leaves_no_second_holder() {
    for step in [millis(5), millis(15), millis(25), millis(35), millis(45)] {
        let store = MemoryStore::default();
        let seal = Mongoseal::in_memory_on(&store);
        let sharer = seal.acquire("k").shared().await.unwrap();
        store.delay_replies(millis(10));
        drop(tokio::time::timeout(step, sharer.upgrade()).await);
        tokio::time::sleep(secs(31)).await;
        let holds = sharer.is_valid();
        assert_eq!(seal.acquire("k").await.is_err(), holds, "{step:?}: {:?}", sharer.state());
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_an_upgraded_lease() {
    let store = MemoryStore::default();
    let seal = Mongoseal::in_memory_on(&store);
    let holder = seal.acquire("k").shared().await.unwrap().upgrade().await.unwrap();
    seal.shutdown().await;
    assert!(!holder.is_valid());
    drop(Mongoseal::in_memory_on(&store).acquire("k").await.unwrap());
}

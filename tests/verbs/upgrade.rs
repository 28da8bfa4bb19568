//! Sharers that become exclusive holders.

use mongoseal::{
    Error, Group, LeaseState, LossCause, Mongoseal, ReleaseOutcome, Sharing, record::Request, store::MemoryStore,
};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn an_upgraded_lease_keeps_its_owner_its_group_and_its_metadata_and_waiters_wait_on() {
    let seal = Mongoseal::in_memory();
    let acquire = seal.acquire("k").shared().ttl(secs(9)).grace(secs(2)).group("g").metadata("a", "b");
    let sharer = acquire.await.unwrap();
    let mut waiting = Vec::new();
    for acquire in [seal.acquire("k"), seal.acquire("k").shared()] {
        waiting.push(tokio::spawn(acquire.wait(secs(600)).into_future()));
        tokio::time::sleep(millis(10)).await;
    }
    let holder = sharer.upgrade().await.unwrap();
    assert!(holder.id() != sharer.id());
    let seen = seal.inspect("k").await.unwrap().unwrap();
    let [held] = &seen.holders[..] else { panic!("{seen:?}") };
    assert_eq!((held.sharing, &held.owner), (Sharing::Exclusive, sharer.owner()));
    assert_eq!((held.group.as_ref().map(Group::as_str), held.metadata.get("a")), (Some("g"), Some("b")));
    tokio::time::sleep(secs(60)).await;
    assert!(holder.is_valid() && waiting.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(sharer.release().await.unwrap(), ReleaseOutcome::AlreadyTransferred);
    holder.verify().await.unwrap();
    drop(holder);
    for waiter in waiting {
        drop(waiter.await.unwrap().unwrap());
    }
    let holder = seal.acquire("k").shared().await.unwrap().upgrade().await.unwrap();
    seal.shutdown().await;
    assert!(!holder.is_valid());
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_lease_is_refused_and_a_downgraded_one_is_upgraded_if_it_is_alone() {
    let seal = Mongoseal::in_memory();
    let lease = seal.acquire("k").await.unwrap();
    let error = lease.upgrade().await.unwrap_err();
    assert!(error.to_string().contains("excludes others already"), "{error}");
    lease.downgrade(Sharing::UpTo(2)).await.unwrap();
    // A released lease whose minimum hold is not over is another holder.
    seal.acquire("k").shared().min_hold(secs(5)).await.unwrap().release().await.unwrap();
    assert!(matches!(lease.upgrade().await, Err(Error::Held { is_released: true, .. })));
    tokio::time::sleep(secs(6)).await;
    lease.upgrade().await.unwrap().verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_whose_answer_was_lost_is_made_once_and_one_that_is_not_confirmed_frees_the_key_after_its_ttl() {
    for (fault, times) in [(Fault::LoseReply, 2), (Fault::LoseReply, usize::MAX), (Fault::Fail, usize::MAX)] {
        let store = Faulty::new();
        let sharer = store.seal().acquire("k").shared().ttl(secs(60)).await.unwrap();
        store.first(times, |call| matches!(call, Call::Apply(Request::Upgrade(_))), fault);
        match sharer.upgrade().await {
            Ok(holder) => {
                assert_eq!(times, 2);
                let seen = store.seal().inspect("k").await.unwrap().unwrap();
                assert_eq!((seen.holders.len(), seen.version), (1, holder.token()));
                holder.verify().await.unwrap();
                continue;
            }
            // A check for a loss, or a refresh, may find that it was applied.
            Err(Error::Lost { .. }) => assert!(times > 2 && matches!(fault, Fault::LoseReply)),
            unconfirmed => {
                assert!(times > 2 && matches!(unconfirmed, Err(Error::Unavailable { .. })), "{unconfirmed:?}");
            }
        }
        store.heal();
        tokio::time::sleep(secs(61)).await;
        if matches!(fault, Fault::LoseReply) {
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

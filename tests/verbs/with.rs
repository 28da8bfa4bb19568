//! Leases under which `with` runs work, and transferred leases.

use mongoseal::{EndReason, Error, LeaseId, LeaseState, LossCause, Mongoseal, ReleaseOutcome, record::Request};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn with_returns_the_value_and_releases_after_success_error_panic_and_cancellation() {
    for end in ["value", "error", "panic", "cancellation"] {
        let seal = Mongoseal::in_memory();
        let other = seal.clone();
        let working = tokio::spawn(async move {
            let work = other.acquire("k").with(async |_| {
                tokio::time::sleep(secs(1)).await;
                match end {
                    "value" => Ok(7),
                    "error" => Err("mine"),
                    "panic" => panic!("mine"),
                    _ => std::future::pending().await,
                }
            });
            tokio::time::timeout(secs(90), work).await
        });
        match (end, working.await) {
            ("value", Ok(Ok(Ok(Ok(7))))) | ("error", Ok(Ok(Ok(Err("mine"))))) | ("cancellation", Ok(Err(_))) => {}
            (_, ended) => assert!(end == "panic" && ended.is_err_and(|error| error.is_panic()), "{end}"),
        }
        tokio::time::sleep(millis(1)).await;
        assert!(seal.acquire("k").await.is_ok(), "after a {end}");
    }
}

#[tokio::test(start_paused = true)]
async fn try_with_and_run_return_the_result_of_the_work_or_the_loss() {
    let (store, seal) = Faulty::open();
    let failed = async || Err::<(), _>(Error::invalid("mine"));
    let is_mine = |result: Result<(), Error>| result.unwrap_err().to_string().contains("mine");
    assert!(is_mine(seal.acquire("k").try_with(async |_| failed().await).await));
    assert!(is_mine(seal.acquire_all(["k", "l"]).try_with(async |_| failed().await).await));
    let lease = seal.acquire("k").await.unwrap();
    assert!(is_mine(lease.run(failed()).await.unwrap()));
    assert_eq!(lease.run(async { 7 }).await.unwrap(), 7);
    store.records.remove(lease.key());
    lease.verify().await.unwrap_err();
    assert!(matches!(lease.run(async { 7 }).await, Err(Error::Lost { .. })));
    let set = seal.acquire_all(["k", "l"]).await.unwrap();
    assert!(is_mine(set.run(failed()).await.unwrap()));
    let leader = seal.campaign("boss").await.unwrap();
    assert!(is_mine(leader.lease().run(failed()).await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn with_reports_a_loss_also_if_the_release_finds_it_and_keeps_the_value_if_the_release_fails() {
    let (store, seal) = Faulty::open();
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(Fault::Fail));
    let endless = seal.acquire("k").ttl(secs(3)).with(async |_| std::future::pending::<()>().await);
    assert!(matches!(endless.await, Err(Error::Lost { cause: LossCause::Expired, .. })));
    store.heal();
    tokio::time::sleep(secs(1)).await;
    let removed = seal.acquire("k").with(async |lease| store.records.remove(lease.key()));
    assert!(matches!(removed.await, Err(Error::Lost { cause: LossCause::Removed, .. })));
    store.script(|call| matches!(call, Call::Apply(Request::Release(_))).then_some(Fault::Fail));
    assert_eq!(seal.acquire("k").with(async |_| 42).await.unwrap(), 42);
}

#[tokio::test(start_paused = true)]
async fn a_transfer_whose_answer_was_lost_is_made_once() {
    let (store, giver) = Faulty::held().await;
    store.first(1, |call| matches!(call, Call::Apply(Request::Transfer(_))), Fault::LoseReply);
    let id = LeaseId::random();
    let larger = giver.transfer(id).await.unwrap();
    store.seal().resume("k", id, larger).await.unwrap().verify().await.unwrap();
}

/// A lease id that already holds the key cannot be given it. A handle checks what it refuses before it gives up the
/// lease.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_given_is_refused_with_the_reason() {
    let (store, seal) = Faulty::open();
    // To itself: nothing is sent, and the lease lives on.
    let lease = seal.acquire("k").ttl(secs(30)).await.unwrap();
    let error = lease.transfer(lease.id()).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("still held"), "{error}");
    let error = lease.transfer(LeaseId::NONE).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("names no lease"), "{error}");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(lease.state(), LeaseState::Held);
    lease.verify().await.unwrap();
    // What was given is not ours any more.
    let larger = lease.transfer(LeaseId::random()).await.unwrap();
    assert!(larger > lease.token());
    assert!(matches!(
        lease.transfer(LeaseId::random()).await,
        Err(Error::Ended { reason: EndReason::Transferred, .. })
    ));
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::AlreadyTransferred);
    // To one that holds a share itself.
    let (one, two) = (seal.acquire("s").shared().await.unwrap(), seal.acquire("s").shared().await.unwrap());
    let error = two.transfer(one.id()).await.unwrap_err();
    assert!(error.to_string().contains("already holds \"s\""), "{error}");
    // With a larger token, too; and then the share is given up, and not left for ever.
    let one = seal.acquire("t").shared_up_to(2).without_expiry().await.unwrap();
    let two = seal.acquire("t").shared_up_to(2).await.unwrap();
    assert!(matches!(one.transfer(two.id()).await, Err(Error::Invalid { .. })));
    drop(seal.acquire("t").shared_up_to(2).await.unwrap());
    // What is gone.
    let lease = seal.acquire("g").await.unwrap();
    store.records.remove(lease.key());
    assert!(matches!(lease.transfer(LeaseId::random()).await, Err(Error::Lost { cause: LossCause::Removed, .. })));
}

//! The lease of a blocking handle.

use std::{sync::mpsc, thread};

use mongoseal::{
    EndReason, Error, LeaseId, LeaseState, LossCause, Metadata, ReleaseOutcome, Watchdog,
    blocking::{Lease, Mongoseal},
};

use super::{SHORT, SOON, compute_for, on, until_refreshed};
use crate::{faulty::Faulty, millis, secs};

#[test]
fn a_lease_carries_what_its_acquire_set_and_a_later_lease_has_a_larger_token() {
    let seal = Mongoseal::builder().owner("me").in_memory().unwrap();
    let lease = seal.acquire("k").ttl(secs(30)).metadata("build", "7").run().unwrap();
    assert_eq!((lease.key().as_str(), lease.owner().as_str(), seal.owner().as_str()), ("k", "me", "me"));
    assert!(lease.is_valid() && lease.remaining() > secs(25) && lease.remaining_hold() > secs(3_600));
    assert_eq!(lease.state(), LeaseState::Held);
    let record = seal.inspect("k").unwrap().unwrap();
    assert_eq!(record.holders[0].metadata.get("build"), Some("7"));
    let token = lease.token();
    lease.verify().unwrap();
    assert_eq!(lease.release().unwrap(), ReleaseOutcome::Released);
    assert!(seal.acquire("k").run().unwrap().token() > token);
}

#[test]
fn a_held_key_is_refused_with_its_holder_and_its_token() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    match seal.acquire("k").run().unwrap_err() {
        Error::Held { key, owner, token, .. } => {
            assert_eq!((&key, &owner, token), (lease.key(), lease.owner(), lease.token()));
        }
        other => panic!("{other}"),
    }
    assert!(matches!(seal.acquire("").run(), Err(Error::Invalid { .. })));
}

#[test]
fn people_see_whose_lease_it_is_and_not_its_secret() {
    let seal = Mongoseal::builder().owner("alice").in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let shown = format!("{seal:?} {lease:?}");
    for part in ["Mongoseal {", "Lease {", "alice", &lease.token().to_string()] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains(&lease.id().expose()), "{shown}");
}

#[test]
fn a_lease_is_refreshed_while_the_only_thread_of_the_caller_computes() {
    let store = Faulty::new();
    let lease = on(&store).acquire("k").refresh_every(millis(100)).run().unwrap();
    let token = lease.token();
    lease.run(|_| until_refreshed(&store)).unwrap();
    assert!(lease.is_valid());
    lease.verify().unwrap();
    assert_eq!(lease.token(), token);
}

#[test]
fn a_waiter_blocks_until_the_key_is_released() {
    let seal = Mongoseal::in_memory().unwrap();
    let first = seal.acquire("k").run().unwrap();
    let token = first.token();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| seal.acquire("k").wait(SOON).run().unwrap().token());
        super::eventually("it is queued", || seal.inspect("k").unwrap().unwrap().queue.len() == 1);
        first.release().unwrap();
        assert!(waiting.join().unwrap() > token);
    });
}

#[test]
fn without_refresh_a_lease_ends_with_its_ttl_and_can_be_refreshed_by_hand() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").ttl(secs(1)).without_refresh().run().unwrap();
    lease.extend(secs(2)).unwrap();
    assert!(lease.remaining() > secs(1));
    lease.refresh().unwrap();
    assert_eq!(lease.cancelled().unwrap(), LeaseState::Lost { cause: LossCause::Expired });
    assert!(matches!(lease.refresh(), Err(Error::Lost { cause: LossCause::Expired, .. })));
    assert!(lease.cancellation_token().is_cancelled());
    assert_eq!(lease.release().unwrap(), ReleaseOutcome::AlreadyLost { cause: LossCause::Expired });
}

#[test]
fn the_states_of_a_lease_are_iterated_and_end_with_its_end() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let mut states = lease.watch_state();
    drop(lease);
    drop(seal);
    assert_eq!(states.next(), Some(LeaseState::Ended { reason: EndReason::Released }));
    assert_eq!((states.next(), states.next()), (None, None));
}

#[test]
fn metadata_can_be_replaced_and_a_key_be_shared_later() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let mut metadata = Metadata::default();
    metadata.insert("step", "2").unwrap();
    lease.update_metadata(metadata.clone()).unwrap();
    assert_eq!(seal.inspect("k").unwrap().unwrap().holders[0].metadata, metadata);
    lease.downgrade(2).unwrap();
    let sharer = seal.acquire("k").shared_up_to(2).run().unwrap();
    assert!(lease.is_valid() && sharer.token() > lease.token());
}

#[test]
fn a_lease_can_be_left_to_another_handle_and_be_transferred() {
    let store = Faulty::new();
    let (before, after) = (on(&store), on(&store));
    let lease = before.acquire("k").run().unwrap();
    let (id, token) = (lease.id(), lease.token());
    lease.orphan();
    before.shutdown();
    let lease = after.resume("k", id, token).ttl(secs(60)).run().unwrap();
    assert_eq!(lease.token(), token);

    let to = LeaseId::random();
    let transferred = lease.transfer(to).unwrap();
    assert!(transferred > token && !lease.is_valid());
    assert_eq!(lease.cancelled().unwrap(), LeaseState::Ended { reason: EndReason::Transferred });
    assert_eq!(after.resume("k", to, transferred).run().unwrap().token(), transferred);
}

#[test]
fn run_returns_the_value_of_its_work() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    // What it borrows need not live for ever.
    let pages = [1, 2, 3];
    let sum = lease.run(|lease| pages.iter().take_while(|_| lease.is_valid()).sum::<i32>()).unwrap();
    assert_eq!(sum, 6);
}

#[test]
fn work_sees_the_loss_of_its_lease_and_its_value_is_refused() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let work = |lease: &Lease| {
        lease.check().unwrap();
        assert!(lease.remaining() > secs(20));
        seal.revoke("k").by("olga").reason("a test").run().unwrap();
        // Other threads see it, too.
        let ended = lease.cancellation_token();
        let other = thread::spawn(move || super::eventually("the loss is seen", || ended.is_cancelled()));
        thread::scope(|scope| {
            scope.spawn(|| super::eventually("the loss is seen", || lease.check().is_err()));
        });
        other.join().unwrap();
        assert!(lease.remaining().is_zero() && lease.cancellation_token().is_cancelled());
        assert!(matches!(lease.check(), Err(Error::Lost { .. })));
        "written"
    };
    match lease.run(work).unwrap_err() {
        Error::Lost { token, cause: LossCause::Revoked { by, .. }, .. } => {
            assert_eq!((token, by.as_str()), (lease.token(), "olga"));
        }
        other => panic!("{other}"),
    }
    let ran = lease.run(|_| panic!("work does not begin without its lease"));
    assert!(matches!(ran, Err::<(), _>(Error::Lost { .. })));
}

#[test]
fn work_that_ends_after_the_deadline_is_refused() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").ttl(SHORT).without_refresh().run().unwrap();
    assert!(matches!(lease.run(|_| compute_for(SHORT * 2)), Err(Error::Lost { cause: LossCause::Expired, .. })));
}

#[test]
fn the_token_of_a_released_lease_is_cancelled_and_cancelling_it_does_not_end_the_lease() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let ended = lease.cancellation_token();
    lease.cancellation_token().cancel();
    assert!(lease.check().is_ok() && !ended.is_cancelled());
    lease.release().unwrap();
    assert!(ended.is_cancelled());
}

#[test]
fn a_watchdog_is_called_when_work_continues_past_the_deadline() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").ttl(SHORT).without_refresh().run().unwrap();
    let (send, called) = mpsc::channel();
    lease.watchdog(Watchdog::calling(move |lost| send.send(lost).unwrap())).unwrap();
    let lost = lease.run(|_| called.recv_timeout(SOON).unwrap()).unwrap_err();
    assert!(matches!(lost, Error::Lost { cause: LossCause::Expired, .. }), "{lost}");
}

#[test]
fn work_that_makes_no_progress_loses_its_lease() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").stalled_after(secs(1)).run().unwrap();
    for _ in 0..3 {
        thread::sleep(millis(400));
        lease.progress();
    }
    assert!(lease.is_valid());
    assert!(matches!(lease.cancelled().unwrap(), LeaseState::Lost { cause: LossCause::Stalled }));
}

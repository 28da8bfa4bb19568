//! The lease of a blocking handle.

use std::{sync::mpsc, thread};

use mongoseal::{
    EndReason, Error, LeaseId, LeaseState, LossCause, Metadata, ReleaseOutcome, Sharing, Watchdog,
    blocking::{Lease, Mongoseal},
};

use super::{SHORT, SOON, eventually, on, on_clock};
use crate::{faulty::Faulty, secs};

#[test]
fn a_lease_shows_what_was_set_and_not_its_secret_and_is_followed_by_one_with_a_larger_token() {
    let seal = Mongoseal::builder().owner("alice").ttl(secs(27)).in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    assert_eq!((lease.key().as_str(), lease.owner().as_str(), seal.owner().as_str()), ("k", "alice", "alice"));
    assert!(lease.is_valid() && lease.remaining() > secs(20) && lease.remaining() < secs(27));
    assert!(lease.remaining_hold() > secs(3_600));
    assert_eq!(lease.state(), LeaseState::Held);
    assert!(matches!(seal.acquire("k").run(), Err(Error::Held { token, .. }) if token == lease.token()));
    let shown = format!("{seal:?} {lease:?}");
    for part in ["Mongoseal {", "Lease {", "alice", &lease.token().to_string()] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains(&lease.id().expose()), "{shown}");
    let token = lease.token();
    lease.verify().unwrap();
    assert_eq!(lease.release().unwrap(), ReleaseOutcome::Released);
    assert!(seal.acquire("k").run().unwrap().token() > token);
}

#[test]
fn without_refresh_a_lease_ends_with_its_ttl_and_can_be_refreshed_by_hand() {
    let (clock, seal) = on_clock();
    let lease = seal.acquire("k").ttl(secs(30)).without_refresh().run().unwrap();
    lease.extend(secs(60)).unwrap();
    clock.advance(secs(59));
    lease.refresh().unwrap();
    clock.advance(secs(59));
    assert!(lease.is_valid());
    clock.advance(secs(2));
    assert_eq!(lease.cancelled().unwrap(), LeaseState::Lost { cause: LossCause::Expired });
    assert!(matches!(lease.refresh(), Err(Error::Lost { cause: LossCause::Expired, .. })));
    assert!(lease.cancellation_token().is_cancelled());
    assert_eq!(lease.release().unwrap(), ReleaseOutcome::AlreadyLost { cause: LossCause::Expired });
}

#[test]
fn the_states_and_the_token_of_a_lease_end_with_it_and_cancelling_the_token_does_not_end_it() {
    let lease = Mongoseal::in_memory().unwrap().acquire("k").run().unwrap();
    let (mut states, ended) = (lease.watch_state(), lease.cancellation_token());
    lease.cancellation_token().cancel();
    assert!(lease.check().is_ok() && !ended.is_cancelled());
    drop(lease);
    assert!(ended.is_cancelled());
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
    lease.downgrade(Sharing::UpTo(2)).unwrap();
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
fn work_sees_the_loss_of_its_lease_and_its_value_is_refused() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let work = |lease: &Lease| {
        lease.check().unwrap();
        assert!(lease.remaining() > secs(20));
        seal.revoke("k").by("olga").reason("a test").run().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| eventually("another thread sees the loss", || lease.check().is_err()));
        });
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
    let (clock, seal) = on_clock();
    let lease = seal.acquire("k").stalled_after(secs(9)).run().unwrap();
    for _ in 0..3 {
        clock.advance(secs(5));
        lease.progress();
    }
    assert!(lease.is_valid());
    clock.advance(secs(9));
    assert_eq!(lease.cancelled().unwrap(), LeaseState::Lost { cause: LossCause::Stalled });
}

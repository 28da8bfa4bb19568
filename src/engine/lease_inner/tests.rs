use std::thread;

use tokio::time::advance;

use super::*;
use crate::{
    engine::observer::{HandleEvent, Observers},
    types::sharing::Sharing,
};

const SECOND: Duration = Duration::from_secs(1);

/// A lease with this time left, on a clock that begins now.
fn lasting(left: Duration) -> LeaseInner {
    held(Clock::tokio(), Instant::at(left), Sharing::Exclusive)
}

pub(crate) fn held(clock: Clock, deadline: Instant, sharing: Sharing) -> LeaseInner {
    let terms = LeaseSpec::of_number(7, sharing, 1_000);
    let granted = (FencingToken::new(42).unwrap(), HybridTime { seconds: 1, ordinal: 1 });
    LeaseInner::new("k".parse().unwrap(), &terms, granted, clock, (deadline, None), None, &Arc::default())
}

fn revoked() -> LossCause {
    LossCause::Revoked { by: "ops".into(), reason: "drill".into() }
}

fn lost(cause: LossCause) -> LeaseState {
    LeaseState::Lost { cause }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_valid_until_the_moment_of_its_deadline_and_never_after() {
    let lease = lasting(SECOND);
    assert_eq!((lease.deadline(), lease.remaining(), lease.is_valid()), (Instant::at(SECOND), SECOND, true));
    lease.check().unwrap();
    advance(Duration::from_millis(999)).await;
    let found = (lease.remaining(), lease.is_valid(), lease.state());
    assert_eq!(found, (Duration::from_millis(1), true, LeaseState::Held));

    advance(Duration::from_millis(1)).await;
    assert_eq!(lease.state(), lost(LossCause::Expired), "no call has ended it");
    assert_eq!((lease.remaining(), lease.is_valid()), (Duration::ZERO, false));
    let refused = lease.check().unwrap_err();
    assert!(
        matches!(&refused, Error::Lost { key, token, cause: LossCause::Expired }
        if *key == lease.key && *token == lease.token),
        "{refused}"
    );
    assert!(!lease.extend_deadline(Instant::at(SECOND * 9)));
    assert!(!lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lease_at_risk_is_lost_at_its_deadline_too() {
    let lease = lasting(SECOND);
    lease.record_at_risk(&Error::unavailable("away"));
    assert_eq!((lease.state(), lease.is_valid()), (LeaseState::AtRisk, true));
    advance(SECOND).await;
    assert_eq!((lease.state(), lease.recorded_state()), (lost(LossCause::Expired), LeaseState::AtRisk));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_moves_the_deadline_on_and_never_back_and_ends_the_risk() {
    let lease = lasting(SECOND * 2);
    lease.record_at_risk(&Error::unavailable("away"));
    assert!(lease.extend_deadline(Instant::at(SECOND * 3)));
    assert_eq!((lease.remaining(), lease.state()), (SECOND * 3, LeaseState::Held));
    assert!(lease.extend_deadline(Instant::at(SECOND)), "an answer to an earlier one");
    assert_eq!(lease.deadline(), Instant::at(SECOND * 3));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_confirmed_at_the_deadline_comes_too_late() {
    let lease = lasting(SECOND);
    advance(SECOND).await;
    assert!(!lease.extend_deadline(Instant::at(SECOND * 2)), "the deadline was not seen to pass");
    assert_eq!(lease.state(), lost(LossCause::Expired));
}

#[test]
fn a_deadline_that_a_thread_has_found_passed_stays_passed_while_another_confirms_refreshes() {
    let (clock, step) = (Clock::Boot, Duration::from_micros(20));
    for _ in 0..200 {
        // Later than the other thread starts.
        let lease = held(clock, clock.now() + 25 * step, Sharing::Exclusive);
        let refresh_at_the_last_moment = || {
            while lease.remaining() > step / 50 {}
            lease.extend_deadline(clock.now() + step)
        };
        thread::scope(|scope| {
            let refreshing = scope.spawn(|| while refresh_at_the_last_moment() {});
            while lease.is_valid() {}
            while !refreshing.is_finished() {
                assert!(!lease.is_valid());
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_has_no_deadline_and_others_have() {
    let (forever, other) = (lasting(Duration::MAX), lasting(SECOND));
    assert!(forever.has_no_expiry() && !other.has_no_expiry());
    advance(SECOND * 3600 * 24 * 365).await;
    assert!(forever.is_valid() && !other.is_valid());
    assert!(!other.has_no_expiry());
    assert!(forever.extend_deadline(Instant::MAX) && forever.has_no_expiry());
}

#[tokio::test(start_paused = true)]
async fn the_first_end_stays_and_cancels_the_token() {
    let lease = lasting(SECOND);
    assert_eq!((lease.recorded_state(), lease.ended.is_cancelled()), (LeaseState::Held, false));
    lease.lose(revoked());
    assert!(lease.ended.is_cancelled());
    lease.end(&LeaseState::RELEASED);
    lease.lose(LossCause::Removed);
    lease.record_at_risk(&Error::unavailable("away"));
    assert!(lease.extend_deadline(Instant::at(SECOND * 2)), "there was time left, but the state decides");
    assert_eq!((lease.state(), lease.recorded_state()), (lost(revoked()), lost(revoked())));
    assert!(!lease.is_valid(), "a lost lease is not valid in spite of the time left");
    assert!(matches!(lease.check(), Err(Error::Lost { cause, .. }) if cause == revoked()));

    let lease = lasting(SECOND);
    lease.end(&LeaseState::RELEASED);
    lease.lose(LossCause::Removed);
    assert!(lease.ended.is_cancelled());
    assert_eq!((lease.state(), lease.recorded_state()), (LeaseState::RELEASED, LeaseState::RELEASED));
    assert!(matches!(lease.check(), Err(Error::Ended { reason: EndReason::Released, .. })));
}

#[tokio::test(start_paused = true)]
async fn an_end_by_the_holder_counts_as_an_expiry_after_the_deadline_and_other_ends_stay() {
    for (end, late) in [
        (LeaseState::RELEASED, lost(LossCause::Expired)),
        (LeaseState::SHUT_DOWN, lost(LossCause::Expired)),
        (lost(revoked()), lost(revoked())),
    ] {
        let (early_one, late_one) = (lasting(SECOND * 2), lasting(SECOND));
        advance(SECOND).await;
        early_one.end(&end);
        late_one.end(&end);
        assert_eq!((early_one.state(), late_one.state()), (end, late));
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_sees_each_change_once_and_reads_the_present_state() {
    let lease = lasting(SECOND);
    lease.record_at_risk(&Error::unavailable("away"));
    let mut follows = lease.watch();
    assert_eq!(*follows.borrow_and_update(), LeaseState::AtRisk, "from before the first follower");
    lease.record_at_risk(&Error::unavailable("still away"));
    assert!(!follows.has_changed().unwrap(), "the state is the same");
    assert!(lease.extend_deadline(Instant::at(SECOND * 2)) && follows.has_changed().unwrap());
    assert_eq!(*follows.borrow_and_update(), LeaseState::Held);
    assert_eq!(*lease.watch().borrow(), LeaseState::Held);
    assert!(!follows.has_changed().unwrap(), "a new follower is no change");
    lease.lose(revoked());
    assert_eq!(*follows.borrow_and_update(), lost(revoked()));
    lease.lose(LossCause::Removed);
    assert!(!follows.has_changed().unwrap(), "it has ended");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_not_published_is_seen_when_another_follower_begins() {
    let lease = lasting(SECOND);
    let mut follows = lease.watch();
    // A thread has changed the state and not published it yet.
    lease.lock().state = LeaseState::AtRisk;
    assert!(!follows.has_changed().unwrap());
    assert_eq!(*lease.watch().borrow(), LeaseState::AtRisk);
    assert_eq!(*follows.borrow_and_update(), LeaseState::AtRisk);
    lease.lock().state = lost(revoked());
    lease.end(&LeaseState::RELEASED);
    assert_eq!(*follows.borrow_and_update(), lost(revoked()), "and when it ends");
}

#[test]
fn a_follower_that_borrows_the_state_can_read_the_lease_while_another_thread_ends_it() {
    let lease = held(Clock::Boot, Instant::MAX, Sharing::Exclusive);
    let follows = lease.watch();
    thread::scope(|scope| {
        let borrowed = follows.borrow();
        scope.spawn(|| lease.lose(revoked()));
        while lease.is_valid() {}
        assert_eq!((lease.state(), lease.recorded_state()), (lost(revoked()), lost(revoked())));
        assert_eq!((&*borrowed, lease.ended.is_cancelled()), (&LeaseState::Held, false));
    });
    assert_eq!(*follows.borrow(), lost(revoked()));
}

#[tokio::test(start_paused = true)]
async fn a_linked_token_is_cancelled_by_the_end_or_at_once_after_it() {
    let lease = lasting(SECOND);
    let (before, after) = (CancellationToken::new(), CancellationToken::new());
    lease.cancel_at_end(&before);
    assert!(!before.is_cancelled());
    lease.end(&LeaseState::RELEASED);
    assert!(before.is_cancelled());
    lease.cancel_at_end(&after);
    assert!(after.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn it_is_at_work_until_the_last_work_is_dropped() {
    let lease = lasting(SECOND);
    assert!(!lease.is_at_work());
    let one = lease.begin_work();
    assert!(lease.is_at_work());
    let other = lease.begin_work();
    drop(one);
    assert!(lease.is_at_work());
    drop(other);
    assert!(!lease.is_at_work());
}

#[tokio::test(start_paused = true)]
async fn it_is_exclusive_unless_others_may_hold_the_key_too() {
    let exclusive = [Sharing::Exclusive, Sharing::UpTo(2), Sharing::Shared];
    let exclusive = exclusive.map(|sharing| held(Clock::tokio(), Instant::at(SECOND), sharing).is_exclusive());
    assert_eq!(exclusive, [true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn silence_puts_a_lease_at_risk_after_two_and_a_half_round_trips_and_always_before_its_deadline() {
    let ttl = Ttl::try_from(6 * SECOND).unwrap();
    let lease = lasting(4 * SECOND);
    assert_eq!(lease.risk_after(ttl), SECOND);
    lease.record_round_trip(SECOND);
    assert_eq!(lease.risk_after(ttl), SECOND.mul_f64(2.5));
    lease.record_round_trip(2 * SECOND);
    assert!(lease.risk_after(ttl) > 3 * SECOND && lease.risk_after(ttl) < lease.remaining());
}

#[test]
fn a_lease_that_ended_before_it_was_observed_reports_its_end_after_its_start() {
    let lease = lasting(SECOND);
    let seen: Arc<Mutex<Vec<&str>>> = Arc::default();
    let (mut observers, events) = (Observers::default(), Arc::clone(&seen));
    observers.add(Arc::new(move |event: &HandleEvent<'_>| {
        let name = match event {
            HandleEvent::Resumed { .. } => "start",
            HandleEvent::Lost { .. } => "lost",
            _ => "other",
        };
        events.lock().unwrap().push(name);
    }));
    lease.lose(LossCause::Removed);
    lease.observe(&observers, false, HandleEvent::Resumed { key: &lease.key, token: lease.token });
    assert_eq!(*seen.lock().unwrap(), ["start", "lost"]);
    lease.end(&LeaseState::RELEASED);
    assert_eq!(seen.lock().unwrap().len(), 2);
}

use tokio::time::advance;

use super::*;
use crate::Metadata;

const SECOND: Duration = Duration::from_secs(1);

/// A lease that lasts this long on a clock that begins now.
fn lasting(left: Duration) -> LeaseShared {
    held(Clock::tokio(), left, 0)
}

pub(crate) fn held(clock: Clock, deadline: Duration, limit: u32) -> LeaseShared {
    let terms = LeaseSpec {
        lease: LeaseId::from_bytes([7; 16]),
        caller: "0000000000000007/0".parse().unwrap(),
        owner: "alice".parse().unwrap(),
        limit,
        ttl: 1_000,
        grace: 0,
        group: None,
        metadata: Metadata::default(),
    };
    let granted = (FencingToken::new(42).unwrap(), HybridTime { seconds: 1, ordinal: 1 });
    LeaseShared::new("k".parse().unwrap(), &terms, granted, clock, deadline)
}

fn revoked() -> LossCause {
    LossCause::Revoked { by: "ops".into(), reason: "drill".into() }
}

fn lost(cause: LossCause) -> LeaseState {
    LeaseState::Lost { cause }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_valid_until_the_moment_of_its_deadline_and_never_after() {
    let hold = lasting(SECOND);
    assert_eq!((hold.deadline(), hold.remaining(), hold.is_valid()), (SECOND, SECOND, true));
    hold.check().unwrap();
    advance(Duration::from_millis(999)).await;
    assert_eq!((hold.remaining(), hold.is_valid(), hold.state()), (Duration::from_millis(1), true, LeaseState::Held));

    advance(Duration::from_millis(1)).await;
    assert_eq!(hold.state(), lost(LossCause::Expired), "though nobody has ended it");
    assert_eq!((hold.remaining(), hold.is_valid(), hold.cause()), (Duration::ZERO, false, LossCause::Expired));
    let refused = hold.check().unwrap_err();
    assert!(
        matches!(&refused, Error::Lost { key, token, cause: LossCause::Expired }
        if *key == hold.key && *token == hold.token),
        "{refused}"
    );
    assert_eq!(hold.deadline(), Duration::ZERO, "found passed, it stays so");
    assert!(!hold.extend_deadline(SECOND * 9));
    assert!(!hold.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lease_at_risk_is_lost_at_its_deadline_too() {
    let hold = lasting(SECOND);
    hold.at_risk(&Error::unavailable("away"));
    assert_eq!((hold.state(), hold.is_valid()), (LeaseState::AtRisk, true));
    advance(SECOND).await;
    assert_eq!((hold.state(), hold.is_lost()), (lost(LossCause::Expired), None));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_moves_the_deadline_on_and_never_back_and_ends_the_risk() {
    let hold = lasting(SECOND * 2);
    hold.at_risk(&Error::unavailable("away"));
    assert!(hold.extend_deadline(SECOND * 3));
    assert_eq!((hold.remaining(), hold.state()), (SECOND * 3, LeaseState::Held));
    assert!(hold.extend_deadline(SECOND), "an answer to an earlier one");
    assert_eq!(hold.deadline(), SECOND * 3);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_confirmed_at_the_deadline_comes_too_late() {
    let hold = lasting(SECOND);
    advance(SECOND).await;
    assert!(!hold.extend_deadline(SECOND * 2), "though nobody has seen the deadline pass");
    assert_eq!(hold.state(), lost(LossCause::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_expiry_has_no_deadline_and_others_have() {
    let (forever, other) = (lasting(Duration::MAX), lasting(SECOND));
    assert!(forever.never_expires() && !other.never_expires());
    advance(SECOND * 3600 * 24 * 365).await;
    assert!(forever.is_valid() && !other.is_valid());
    assert!(!other.never_expires());
    assert!(forever.extend_deadline(Duration::MAX) && forever.never_expires());
}

#[tokio::test(start_paused = true)]
async fn the_first_end_stays_and_cancels_the_token() {
    let hold = lasting(SECOND);
    assert_eq!((hold.is_lost(), hold.ended.is_cancelled()), (None, false));
    hold.lose(revoked());
    assert!(hold.ended.is_cancelled());
    hold.end(&LeaseState::Released);
    hold.lose(LossCause::Removed);
    hold.at_risk(&Error::unavailable("away"));
    assert!(hold.extend_deadline(SECOND * 2), "there was time left: it is the state that tells");
    assert_eq!((hold.state(), hold.cause(), hold.is_lost()), (lost(revoked()), revoked(), Some(revoked())));
    assert!(!hold.is_valid(), "time left is of no use to one that is lost");
    assert!(matches!(hold.check(), Err(Error::Lost { cause, .. }) if cause == revoked()));

    let hold = lasting(SECOND);
    hold.end(&LeaseState::Released);
    hold.lose(LossCause::Removed);
    assert!(hold.ended.is_cancelled());
    assert_eq!((hold.state(), hold.is_lost()), (LeaseState::Released, None));
}

#[tokio::test(start_paused = true)]
async fn an_end_by_will_is_none_after_the_deadline_and_every_other_end_is_what_it_was() {
    for (end, late) in [
        (LeaseState::Released, lost(LossCause::Expired)),
        (lost(LossCause::ShutDown), lost(LossCause::Expired)),
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
async fn who_follows_is_told_of_each_move_once_and_finds_the_state_as_it_is() {
    let hold = lasting(SECOND);
    hold.at_risk(&Error::unavailable("away"));
    let mut follows = hold.watch();
    assert_eq!(*follows.borrow_and_update(), LeaseState::AtRisk, "from before anybody followed");
    hold.at_risk(&Error::unavailable("still away"));
    assert!(!follows.has_changed().unwrap(), "it is where it was");
    assert!(hold.extend_deadline(SECOND * 2) && follows.has_changed().unwrap());
    assert_eq!(*follows.borrow_and_update(), LeaseState::Held);
    assert_eq!(*hold.watch().borrow(), LeaseState::Held);
    assert!(!follows.has_changed().unwrap(), "another one who follows is no move");
    hold.lose(revoked());
    assert_eq!(*follows.borrow_and_update(), lost(revoked()));
    hold.lose(LossCause::Removed);
    assert!(!follows.has_changed().unwrap(), "it has ended");
}

#[tokio::test(start_paused = true)]
async fn one_who_missed_a_move_is_told_of_it_when_another_begins_to_follow() {
    let hold = lasting(SECOND);
    let mut follows = hold.watch();
    // As a thread leaves it that has moved the state and not told yet.
    *hold.lock() = LeaseState::AtRisk;
    assert!(!follows.has_changed().unwrap());
    assert_eq!(*hold.watch().borrow(), LeaseState::AtRisk);
    assert_eq!(*follows.borrow_and_update(), LeaseState::AtRisk);
    *hold.lock() = lost(revoked());
    hold.end(&LeaseState::Released);
    assert_eq!(*follows.borrow_and_update(), lost(revoked()), "and when it ends");
}

#[tokio::test(start_paused = true)]
async fn what_ends_with_it_is_cancelled_by_its_end_or_at_once_if_it_has_ended() {
    let hold = lasting(SECOND);
    let (before, after) = (CancellationToken::new(), CancellationToken::new());
    hold.ends_with(&before);
    assert!(!before.is_cancelled());
    hold.end(&LeaseState::Released);
    assert!(before.is_cancelled());
    hold.ends_with(&after);
    assert!(after.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn it_is_at_work_until_the_last_work_is_dropped() {
    let hold = lasting(SECOND);
    assert!(!hold.is_at_work());
    let one = hold.work();
    assert!(hold.is_at_work());
    let other = hold.work();
    drop(one);
    assert!(hold.is_at_work());
    drop(other);
    assert!(!hold.is_at_work());
}

#[tokio::test(start_paused = true)]
async fn it_is_exclusive_unless_others_may_hold_the_key_too() {
    let exclusive = [0, 1, 2].map(|limit| held(Clock::tokio(), SECOND, limit).is_exclusive());
    assert_eq!(exclusive, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn silence_puts_a_lease_at_risk_after_two_and_a_half_round_trips_and_always_before_its_deadline() {
    let ttl = Ttl::try_from(6 * SECOND).unwrap();
    let hold = lasting(4 * SECOND);
    assert_eq!(hold.risk_after(ttl), SECOND);
    hold.note_round_trip(SECOND);
    assert_eq!(hold.risk_after(ttl), SECOND.mul_f64(2.5));
    hold.note_round_trip(2 * SECOND);
    assert!(hold.risk_after(ttl) > 3 * SECOND && hold.risk_after(ttl) < hold.remaining());
}

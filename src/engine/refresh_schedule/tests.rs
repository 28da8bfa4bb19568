use super::*;
use crate::{
    engine::lease_inner::tests::held,
    types::{clock::Clock, sharing::Sharing},
};

const INTERVAL: Duration = Duration::from_secs(20);

fn ttl() -> Ttl {
    Ttl::try_from(3 * INTERVAL).unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Reading {
    Reading::at(secs(seconds))
}

/// Leases with a ttl of 60 seconds that were refreshed at these seconds of the clock.
fn refreshed_at(clock: Clock, seconds: &[u64]) -> ScheduledLeases {
    let mut leases = ScheduledLeases::default();
    for (slot, sent) in (0..).zip(seconds) {
        let sent = at(*sent);
        let lease = Arc::new(held(clock, sent + 3 * INTERVAL, Sharing::Exclusive));
        let (interval, is_single, due_at) = (Some(INTERVAL), false, sent + INTERVAL);
        let spec = ScheduleSpec { ttl: ttl(), interval, is_single, sent, due_at };
        leases.by_slot.insert(slot, Scheduled::new(lease, spec));
        leases.update(slot, |_| {});
    }
    leases
}

fn collect(leases: &mut ScheduledLeases, now: Reading) -> Todo {
    leases.collect(now, Pace::of(ttl()))
}

/// Sends a part, which is late after a second. Returns its number and its leases.
fn send(leases: &mut ScheduledLeases, now: u64) -> (u64, Vec<u64>) {
    let members = leases.take_part(at(now), ttl(), false);
    let slots: Vec<u64> = members.into_iter().map(|(slot, _)| slot).collect();
    (leases.send(at(now), at(now + 1), slots.clone(), Vec::new()), slots)
}

#[tokio::test(start_paused = true)]
async fn a_part_takes_the_earliest_deadlines_first_and_then_those_past_half_of_their_interval() {
    let mut leases = refreshed_at(Clock::tokio(), &[3, 1, 2, 8, 11, 5, 14]);
    let todo = collect(&mut leases, at(23));
    assert!(!todo.wants_part && todo.next.unwrap() > at(23), "others may come along");
    let next = todo.next.unwrap();
    assert!(collect(&mut leases, next).wants_part);
    let (number, slots) = send(&mut leases, 23);
    assert_eq!(slots, [1, 2, 0, 5, 3, 4], "the last is not past half of its interval");
    assert!(!collect(&mut leases, at(23)).wants_part, "all are sent");
    leases.attempts.end(number, true);
    for slot in slots {
        leases.update(slot, |scheduled| scheduled.record_confirmed(at(23)));
    }
    assert_eq!(leases.take_part(at(32), ttl(), false).len(), 0, "one is no part");
    assert_eq!(leases.waits.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_collected_once_and_an_extended_deadline_is_checked_again() {
    let clock = Clock::tokio();
    let mut leases = refreshed_at(clock, &[0, 0, 0]);
    assert!(collect(&mut leases, Reading::at(INTERVAL)).lapsed.is_empty());
    leases.by_slot[&1].lease.extend_deadline(at(80));
    tokio::time::advance(3 * INTERVAL).await;
    let todo = collect(&mut leases, clock.now());
    assert_eq!(todo.lapsed.len(), 2);
    assert!(collect(&mut leases, clock.now()).lapsed.is_empty());
    assert_eq!(leases.by_slot.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_leases_of_a_late_part_share_another_or_are_refreshed_alone_and_after_a_second_one_alone() {
    let mut leases = refreshed_at(Clock::tokio(), &[0, 0, 15]);
    collect(&mut leases, at(20));
    assert_eq!(send(&mut leases, 20).1, [0, 1]);
    let todo = collect(&mut leases, at(21));
    assert_eq!((todo.single, leases.due().collect::<Vec<_>>()), (Some(false), vec![0, 1]));
    assert_eq!(send(&mut leases, 21).1, [0, 1]);
    let todo = collect(&mut leases, at(22));
    assert_eq!((todo.single, leases.due().count()), (Some(false), 0));
    // A confirmed refresh ends that.
    leases.update(0, |scheduled| scheduled.record_confirmed(at(22)));
    leases.update(0, |scheduled| scheduled.share_again(at(42)));
    assert_eq!(leases.due().collect::<Vec<_>>(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_late_part_loses_its_permit_with_the_answer_to_a_later_attempt() {
    let mut leases = refreshed_at(Clock::tokio(), &[0, 0, 15]);
    collect(&mut leases, at(20));
    let (number, slots) = send(&mut leases, 20);
    assert_eq!(slots, [0, 1]);
    let todo = collect(&mut leases, at(21));
    assert_eq!((todo.single, todo.is_probe_due), (Some(false), false));
    assert!(leases.attempts.in_flight.contains_key(&number), "its connection is in use");
    // Nothing is answered for so long that a refresh goes out without a permit.
    let probe_at = at(21) + Pace::of(ttl()).probe();
    assert!(collect(&mut leases, probe_at).is_probe_due);
    let probe = leases.send(probe_at, probe_at + secs(1), vec![0], Vec::new());
    assert!(!collect(&mut leases, probe_at).is_probe_due, "one is in flight");
    leases.attempts.end(probe, false);
    assert!(leases.attempts.in_flight.contains_key(&number), "a failure is no answer");
    let next = leases.send(probe_at, probe_at + secs(1), vec![1], Vec::new());
    leases.attempts.end(next, true);
    assert!(leases.attempts.in_flight.is_empty());
    let [earlier, later] = [0, 1].map(|slot| leases.send(probe_at, probe_at + secs(1), vec![slot], Vec::new()));
    collect(&mut leases, probe_at + secs(1));
    leases.attempts.end(earlier, true);
    assert!(leases.attempts.in_flight.contains_key(&later), "an answer to an earlier attempt says nothing of it");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_not_tried_comes_first_and_then_the_earliest_deadline() {
    let mut leases = refreshed_at(Clock::tokio(), &[4, 1, 3, 2]);
    for (slot, has_failed) in [(0, false), (1, true), (2, false), (3, true)] {
        leases.update(slot, |scheduled| scheduled.queue(at(21), has_failed));
    }
    let queued: Vec<_> = leases.waits.iter().map(|(_, slot)| *slot).collect();
    assert_eq!(queued, [2, 0, 1, 3]);
}

#[test]
fn a_failed_attempt_gets_twice_the_time_and_one_over_a_slow_network_a_round_trip() {
    let pace = Pace::of(Ttl::try_from(secs(30)).unwrap());
    let [none, slow] = [Duration::ZERO, secs(2)];
    assert_eq!(pace.times(true, none, 0), (secs(1), secs(2)));
    assert_eq!(pace.times(false, none, 0), (secs(1) / 2, secs(1)));
    assert_eq!(pace.times(false, none, 1), (secs(1), secs(2)));
    assert_eq!(pace.times(false, none, 9), pace.times(false, none, 3));
    assert_eq!(pace.times(true, slow, 0), (slow, secs(3)));
    assert_eq!(pace.times(true, secs(20), 0), (secs(5), secs(15) / 2));
}

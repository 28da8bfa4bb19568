use std::time::Duration;

use pace::Pace;
use tokio::sync::oneshot;

use super::*;
use crate::{
    engine::{lease_inner::tests::held, refresh::Refreshing},
    types::sharing::Sharing,
};

const INTERVAL: Duration = Duration::from_secs(20);

/// The most leases of a large part here.
const LARGE: usize = 3 * PART;

fn ttl() -> Ttl {
    Ttl::try_from(3 * INTERVAL).unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Instant {
    Instant::at(secs(seconds))
}

/// Leases with a ttl of 60 seconds that were refreshed at these seconds of the clock.
fn refreshed_at(clock: Clock, seconds: &[u64]) -> Schedule {
    let mut schedule = Schedule::new(LARGE);
    for (number, sent) in (0..).zip(seconds) {
        add(&mut schedule, number, clock, ttl(), at(*sent));
    }
    schedule
}

fn add(schedule: &mut Schedule, number: u64, clock: Clock, ttl: Ttl, sent: Instant) {
    let lease = Arc::new(held(clock, sent + ttl.duration(), Sharing::Exclusive));
    schedule.add(number, Kept::new(lease, (ttl, Refreshing::AtAThird), sent, Instant::MAX));
}

/// Requests a refresh for the holder. Returns its reply.
fn request(schedule: &mut Schedule, number: u64, now: u64, metadata: Option<&str>) -> oneshot::Receiver<Result<()>> {
    let (reply, done) = oneshot::channel();
    let metadata = metadata.map(|value| Metadata::try_from(BTreeMap::from([("name".into(), value.into())])).unwrap());
    let command = RefreshCommand { ttl: None, metadata, until: at(now + 10), reply };
    schedule.request(number, at(now), Box::new(command));
    done
}

/// Sends a part, which is late after a second. Returns its number and its leases.
fn send(schedule: &mut Schedule, now: u64) -> (u64, Vec<u64>) {
    let numbers = schedule.take_part(at(now), ttl(), false);
    (schedule.send((ttl(), at(now)), at(now + 1), numbers.clone(), Vec::new()), numbers)
}

fn due(schedule: &mut Schedule) -> Vec<u64> {
    schedule.class(ttl()).due().collect()
}

fn end(schedule: &mut Schedule, attempt: u64, is_answered: bool) {
    schedule.class(ttl()).attempts.end(attempt, is_answered);
}

fn is_in_flight(schedule: &mut Schedule, attempt: u64) -> bool {
    schedule.class(ttl()).attempts.is_in_flight(attempt)
}

#[tokio::test(start_paused = true)]
async fn a_part_takes_the_earliest_deadlines_first_and_then_those_past_half_of_their_interval() {
    let mut schedule = refreshed_at(Clock::tokio(), &[3, 1, 2, 8, 11, 5, 14]);
    let todo = schedule.collect(at(23));
    assert!(todo.part.is_none() && todo.next > at(23), "others may come along");
    assert_eq!(schedule.collect(todo.next).part, Some(ttl()));
    let (attempt, numbers) = send(&mut schedule, 23);
    assert_eq!(numbers, [1, 2, 0, 5, 3, 4], "the last is not past half of its interval");
    assert_eq!(schedule.collect(at(23)).part, None, "all are sent");
    end(&mut schedule, attempt, true);
    for number in numbers {
        schedule.update(number, |kept| kept.record_confirmed(at(23)));
    }
    assert_eq!(schedule.take_part(at(32), ttl(), false).len(), 0, "one is no part");
    assert_eq!(schedule.class(ttl()).first_queued(), Some(6));
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_collected_once_and_an_extended_deadline_is_checked_again() {
    let clock = Clock::tokio();
    let mut schedule = refreshed_at(clock, &[0, 0, 0]);
    assert!(schedule.collect(Instant::at(INTERVAL)).lost.is_empty());
    schedule.leases[&1].lease.extend_deadline(at(80));
    tokio::time::advance(3 * INTERVAL).await;
    let lost = schedule.collect(clock.now()).lost;
    assert!(lost.len() == 2 && lost.iter().all(|(_, cause)| *cause == LossCause::Expired));
    assert!(schedule.collect(clock.now()).lost.is_empty());
    assert_eq!(schedule.take(9).len(), 1, "one is not over");
    schedule.collect(clock.now());
    assert!(schedule.is_empty() && schedule.classes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_leases_of_a_late_part_share_another_or_are_refreshed_alone_and_after_a_second_one_alone() {
    let mut schedule = refreshed_at(Clock::tokio(), &[0, 0, 15]);
    schedule.collect(at(20));
    assert_eq!(send(&mut schedule, 20).1, [0, 1]);
    let todo = schedule.collect(at(21));
    assert_eq!((todo.single, due(&mut schedule)), (Some(ttl()), vec![0, 1]));
    assert_eq!(send(&mut schedule, 21).1, [0, 1]);
    let todo = schedule.collect(at(22));
    assert_eq!((todo.single, due(&mut schedule)), (Some(ttl()), vec![]));
    // A confirmed refresh ends that.
    schedule.update(0, |kept| kept.record_confirmed(at(22)));
    schedule.update(0, |kept| kept.share_again(at(42)));
    assert_eq!(due(&mut schedule), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_late_part_loses_its_permit_with_the_answer_to_a_later_attempt() {
    let mut schedule = refreshed_at(Clock::tokio(), &[0, 0, 15]);
    schedule.collect(at(20));
    let (part, numbers) = send(&mut schedule, 20);
    assert_eq!(numbers, [0, 1]);
    let todo = schedule.collect(at(21));
    assert_eq!((todo.single, todo.probes), (Some(ttl()), vec![]));
    assert!(is_in_flight(&mut schedule, part), "its connection is in use");
    // Nothing is answered for so long that a refresh goes out without a permit.
    let probe_at = at(21) + Pace::of(ttl()).probe();
    assert_eq!(schedule.collect(probe_at).probes, [ttl()]);
    let late_at = probe_at + secs(1);
    let sent = |schedule: &mut Schedule, number| schedule.send((ttl(), probe_at), late_at, vec![number], Vec::new());
    let probe = sent(&mut schedule, 0);
    assert!(schedule.collect(probe_at).probes.is_empty(), "one is in flight");
    end(&mut schedule, probe, false);
    assert!(is_in_flight(&mut schedule, part), "a failure is no answer");
    let next = sent(&mut schedule, 1);
    end(&mut schedule, next, true);
    assert!(schedule.class(ttl()).attempts.is_empty());
    let [earlier, later] = [0, 1].map(|number| sent(&mut schedule, number));
    schedule.collect(late_at);
    end(&mut schedule, earlier, true);
    assert!(is_in_flight(&mut schedule, later), "an answer to an earlier attempt says nothing of it");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_not_tried_comes_first_and_then_the_earliest_deadline() {
    let mut schedule = refreshed_at(Clock::tokio(), &[4, 1, 3, 2]);
    for (number, has_failed) in [(0, false), (1, true), (2, false), (3, true)] {
        schedule.update(number, |kept| kept.queue(at(21), has_failed));
    }
    let queued: Vec<_> = schedule.class(ttl()).waits.iter().map(|(_, number)| *number).collect();
    assert_eq!(queued, [2, 0, 1, 3]);
}

/// The size of a part follows from the ttl and from what failed, and not from a measured time of the store.
#[tokio::test(start_paused = true)]
async fn after_a_large_part_that_was_not_confirmed_the_class_sends_parts_of_the_usual_size_for_a_ttl() {
    let failures: [fn(&mut Schedule, &Part); 3] = [
        |schedule, part| schedule.end_part(part, PartEnd::Partial, &[], at(21)),
        |schedule, part| schedule.end_part(part, PartEnd::Unanswered, &[], at(21)),
        |schedule, _| drop(schedule.collect(at(21 + 2))),
    ];
    for (which, fail) in failures.into_iter().enumerate() {
        let clock = Clock::tokio();
        let mut schedule = refreshed_at(clock, &[0; LARGE + 9]);
        schedule.collect(at(20));
        let (_permits, large) = permit();
        let large = schedule.send_part(ttl(), clock, large, false).unwrap();
        assert_eq!(large.members.len(), LARGE);
        fail(&mut schedule, &large);
        let mut again = Vec::new();
        while again.len() < LARGE {
            schedule.collect(at(24));
            let numbers = schedule.take_part(at(24), ttl(), false);
            assert!(numbers.len() <= PART && !numbers.is_empty(), "{which}: {} in a part", numbers.len());
            again.extend(numbers.clone());
            schedule.send((ttl(), at(24)), at(25), numbers, Vec::new());
        }
        assert!(schedule.class(ttl()).first_queued().is_none(), "{which}: none is refreshed alone");
        assert_eq!(schedule.class(ttl()).part_size(at(24) + ttl().duration(), LARGE), LARGE);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_part_of_the_usual_size_that_was_not_confirmed_as_a_whole_each_lease_is_refreshed_alone() {
    let clock = Clock::tokio();
    let mut schedule = refreshed_at(clock, &[0; PART]);
    schedule.collect(at(20));
    let (_permits, permit) = permit();
    let part = schedule.send_part(ttl(), clock, permit, false).unwrap();
    schedule.end_part(&part, PartEnd::Partial, &[], at(21));
    let class = schedule.class(ttl());
    assert_eq!((class.waits.len(), class.has_late(), class.first_queued().is_some()), (PART, false, true));
}

#[tokio::test(start_paused = true)]
async fn after_a_large_part_that_a_release_overtook_its_leases_are_due_and_large_parts_come_soon() {
    let clock = Clock::tokio();
    let mut schedule = refreshed_at(clock, &[0; LARGE]);
    tokio::time::advance(INTERVAL).await;
    for size in [LARGE, PART, LARGE - PART] {
        let now = clock.now();
        schedule.collect(now);
        let (_permits, permit) = permit();
        let part = schedule.send_part(ttl(), clock, permit, false).unwrap();
        assert_eq!(part.members.len(), size, "at {now:?}");
        let end = if size == PART { PartEnd::Confirmed(now) } else { PartEnd::Overtaken };
        let confirmed: Vec<_> = part.members.iter().map(|(number, _)| *number).collect();
        schedule.end_part(&part, end, &confirmed, now);
        assert!(!schedule.class(ttl()).has_late() && schedule.class(ttl()).first_queued().is_none());
        tokio::time::advance(secs(3) / 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn large_parts_that_fail_together_count_once_and_the_pause_doubles_with_each_that_fails_later() {
    let mut schedule = refreshed_at(Clock::tokio(), &[0]);
    let ttl = ttl().duration();
    let class = schedule.class(Ttl::try_from(ttl).unwrap());
    for now in [at(20), at(21)] {
        class.record_large_failure(now);
    }
    let again = at(20) + ttl;
    assert_eq!([at(79), again].map(|now| class.part_size(now, LARGE)), [PART, LARGE]);
    class.record_large_failure(again);
    assert_eq!([again + ttl, again + 2 * ttl].map(|now| class.part_size(now, LARGE)), [PART, LARGE]);
}

#[tokio::test(start_paused = true)]
async fn a_large_part_has_no_lease_whose_last_round_trip_was_long() {
    let clock = Clock::tokio();
    let mut schedule = refreshed_at(clock, &[0; LARGE]);
    schedule.leases[&7].lease.record_round_trip(secs(4));
    schedule.collect(at(20));
    let (_permits, permit) = permit();
    assert_eq!(schedule.send_part(ttl(), clock, permit, false).unwrap().members.len(), PART);
}

#[tokio::test(start_paused = true)]
async fn the_leases_of_other_ttls_are_in_other_parts_and_a_silence_of_one_class_delays_no_probe_of_another() {
    let clock = Clock::tokio();
    let mut schedule = refreshed_at(clock, &[0, 0]);
    let short = Ttl::try_from(secs(3)).unwrap();
    for number in [7, 8] {
        add(&mut schedule, number, clock, short, at(19));
    }
    schedule.collect(at(20));
    let now = at(20) + secs(1) / 2;
    assert_eq!(
        (schedule.collect(now).part, schedule.classes.values().filter(|class| class.part_at.is_some()).count()),
        (Some(short), 2),
        "that which waits longest is first"
    );
    let (_permits, permit) = permit();
    let part = schedule.send_part(ttl(), Clock::tokio(), permit, false).unwrap();
    assert_eq!(part.members.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1]);
    // That of 60 seconds is not late yet when the one of 3 seconds needs a probe.
    let first = schedule.send((short, now), now + secs(1) / 10, vec![7], Vec::new());
    schedule.collect(now + secs(1) / 10);
    let probe_at = now + secs(1) / 10 + Pace::of(short).probe();
    assert_eq!(schedule.collect(probe_at).probes, [short]);
    schedule.class(short).attempts.end(first, true);
    assert!(is_in_flight(&mut schedule, part.number));
}

fn permit() -> (Arc<tokio::sync::Semaphore>, Vec<OwnedSemaphorePermit>) {
    let permits = Arc::new(tokio::sync::Semaphore::new(1));
    let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
    (permits, vec![permit])
}

/// Sends a refresh of this lease alone, and nothing of another.
fn send_single(schedule: &mut Schedule, number: u64) -> Single {
    let single = schedule.send_single(ttl(), Clock::tokio(), Vec::new()).unwrap();
    assert_eq!(single.acquire, number);
    single
}

#[tokio::test(start_paused = true)]
async fn refreshes_for_a_holder_are_sent_one_after_another_and_abandoned_ones_are_not() {
    let mut schedule = refreshed_at(Clock::tokio(), &[0]);
    let [_first, gone, _third] = [None; 3].map(|none| request(&mut schedule, 0, 1, none));
    drop(gone);
    let failed = send_single(&mut schedule, 0);
    let effect = schedule.end_single(&failed, Err(Error::unavailable("away")), at(1));
    assert!(effect.0.is_none());
    schedule.collect(at(2));
    for (round, sent) in [(1, 2), (2, 3)] {
        let single = send_single(&mut schedule, 0);
        assert_eq!(
            (single.round, schedule.send_single(ttl(), Clock::tokio(), Vec::new()).is_none()),
            (Some(round), true)
        );
        let effect = schedule.end_single(&single, Ok(Some(at(sent))), at(sent));
        assert!(matches!(effect.0, Some((_, None))));
    }
    let todo = schedule.collect(at(4));
    assert!(todo.single.is_none() && todo.retry.is_none(), "the holder waits for nothing");
    assert_eq!(schedule.leases[&0].next_check(), at(23));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_for_a_holder_that_is_not_confirmed_in_time_ends_with_the_last_error_and_the_next_begins() {
    let mut schedule = refreshed_at(Clock::tokio(), &[0]);
    let [_first, _second] = [1, 5].map(|now| request(&mut schedule, 0, now, None));
    let single = send_single(&mut schedule, 0);
    schedule.end_single(&single, Err(Error::unavailable("away")), at(2));
    assert!(!schedule.is_risk(&Single { round: Some(9), ..single }), "nobody waits for that");
    let todo = schedule.collect(at(11));
    let [(_, Some(error))] = &todo.unconfirmed[..] else { panic!("it was given up") };
    assert!(error.to_string().contains("away") && todo.retry.is_some(), "{error}");
    let refused = send_single(&mut schedule, 0);
    assert_eq!(refused.round, Some(2));
    let effect = schedule.end_single(&refused, Err(Error::invalid("no")), at(12));
    assert!(matches!(effect.0, Some((_, Some(Error::Invalid { .. })))));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_due_again_if_the_answer_to_an_earlier_attempt_comes_last() {
    let mut schedule = refreshed_at(Clock::tokio(), &[0]);
    schedule.collect(at(20));
    schedule.update(0, |kept| kept.queue(at(20), false));
    let first = send_single(&mut schedule, 0);
    let _done = request(&mut schedule, 0, 20, None);
    let second = send_single(&mut schedule, 0);
    schedule.end_single(&first, Ok(Some(at(22))), at(22));
    let effect = schedule.end_single(&second, Ok(Some(at(21))), at(23));
    assert!(effect.0.is_some());
    assert_eq!(schedule.leases[&0].next_check(), at(42), "a third of the ttl after the later one");
}

#[tokio::test(start_paused = true)]
async fn classes_refresh_leases_alone_by_turns_and_one_that_failed_holds_up_no_other() {
    let clock = Clock::tokio();
    let mut schedule = refreshed_at(clock, &[0, 0]);
    let short = Ttl::try_from(secs(30)).unwrap();
    add(&mut schedule, 7, clock, short, at(10));
    schedule.update(7, |kept| kept.queue(at(20), true));
    let todo = schedule.collect(at(20));
    assert_eq!((todo.single, todo.retry), (None, Some(short)));
    for number in [0, 1] {
        schedule.update(number, |kept| kept.queue(at(21), false));
    }
    let todo = schedule.collect(at(21));
    assert_eq!((todo.single, todo.retry), (Some(ttl()), Some(short)));
    schedule.update(7, |kept| kept.record_confirmed(at(21)));
    schedule.update(7, |kept| kept.queue(at(21), false));
    assert_eq!(schedule.collect(at(22)).single, Some(short), "it waits longer");
    schedule.send_single(short, clock, Vec::new()).unwrap();
    assert_eq!(schedule.collect(at(22)).single, Some(ttl()));
}

#[tokio::test(start_paused = true)]
async fn new_metadata_waits_for_earlier_attempts_and_is_sent_again_with_each_refresh() {
    let mut schedule = refreshed_at(Clock::tokio(), &[0]);
    let _plain = request(&mut schedule, 0, 1, None);
    let early = send_single(&mut schedule, 0);
    // The first is late, and the holder requests other metadata meanwhile.
    schedule.collect(at(2));
    let again = send_single(&mut schedule, 0);
    schedule.end_single(&again, Ok(Some(at(3))), at(3));
    let _changed = request(&mut schedule, 0, 4, Some("new"));
    assert!(schedule.send_single(ttl(), Clock::tokio(), Vec::new()).is_none(), "an earlier one could undo it");
    schedule.end_single(&early, Ok(None), at(5));
    let change = send_single(&mut schedule, 0);
    assert!(change.metadata.is_some());
    schedule.end_single(&change, Ok(Some(at(6))), at(6));
    let _again = request(&mut schedule, 0, 7, None);
    assert_eq!(send_single(&mut schedule, 0).metadata, change.metadata);
}

#[test]
fn a_lease_takes_less_than_a_quarter_of_a_kilobyte_on_the_schedule() {
    assert!(size_of::<Kept>() < 250, "{}", size_of::<Kept>());
}

#[test]
fn a_failed_attempt_gets_twice_the_time_and_one_over_a_slow_network_a_round_trip() {
    let pace = Pace::of(Ttl::try_from(secs(30)).unwrap());
    let [none, slow] = [Duration::ZERO, secs(2)];
    assert_eq!(pace.times(true, none, 0), (secs(1), secs(2)));
    assert_eq!(pace.times(false, none, 0), (secs(1) / 2, secs(1)));
    let large = |ttl| Pace::of(Ttl::try_from(ttl).unwrap()).large_part(512);
    assert_eq!([secs(1), secs(3), secs(30)].map(large), [PART, 95, 512]);
    assert_eq!(pace.large_part(PART), PART);
    assert_eq!(pace.times(false, none, 1), (secs(1), secs(2)));
    assert_eq!(pace.times(false, none, 9), pace.times(false, none, 3));
    assert_eq!(pace.times(true, slow, 0), (slow, secs(3)));
    assert_eq!(pace.times(true, secs(20), 0), (secs(5), secs(15) / 2));
}

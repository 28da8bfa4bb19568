use super::*;
use crate::record::{Complete, PastRun, Reset, RunReport};

fn complete(number: u8, token: FencingToken, tick: u64) -> Request {
    reported(number, token, tick, RunReport::default())
}

fn reported(number: u8, token: FencingToken, tick: u64, report: RunReport) -> Request {
    Request::Complete(Complete { lease: lease(number), token, tick, by: format!("runner-{number}"), keep: 0, report })
}

fn reset(tick: u64) -> Request {
    Request::Reset(Reset { tick, upto: FencingToken::MAX, by: "ops".into() })
}

fn done(bench: &Bench) -> Option<(u64, FencingToken)> {
    bench.record().done.as_ref().map(|done| (done.tick, done.token))
}

#[test]
fn a_completion_notes_the_tick_and_releases_the_lease_in_one_write() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(wait(2, 0));
    assert_eq!(bench.send(complete(1, token, 5)), Outcome::Completed);
    let completion = CompletedTick { tick: 5, token, by: "runner-1".into(), at: bench.now() };
    assert_eq!(bench.record().done, Some(completion));
    assert_eq!((bench.holders(), bench.queue()), (vec![2], vec![]));
}

#[test]
fn a_second_completion_is_answered_as_the_first_and_changes_nothing() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(complete(1, token, 5));
    granted(&bench.send(once(2, 0)));
    let before = bench.record().clone();
    bench.pass(10);
    assert_eq!(bench.send(complete(1, token, 5)), Outcome::Completed);
    assert_eq!(bench.record(), &before);
}

#[test]
fn a_completed_run_is_kept_with_its_times_its_note_and_its_period_and_a_repeated_completion_adds_none() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.pass(700);
    let report = RunReport { took: 600, is_failed: true, note: "3 rows".into(), period: Some(60_000) };
    bench.send(reported(1, token, 5, report.clone()));
    let at = bench.now();
    bench.pass(10);
    bench.send(reported(1, token, 5, RunReport { took: 610, ..report.clone() }));
    let RunReport { is_failed, note, period, .. } = report;
    let since = StoreTime::from_millis(at.millis() - 600);
    let run = PastRun { tick: 5, token, by: "runner-1".into(), since, at, is_failed, note, period };
    assert_eq!(bench.record().runs, [run]);
}

#[test]
fn a_record_keeps_the_last_32_runs_and_a_reset_keeps_them() {
    let mut bench = Bench::new();
    for tick in 1..=33 {
        let token = granted(&bench.send(once(1, 0)));
        bench.send(complete(1, token, tick));
    }
    bench.send(reset(7));
    let ticks: Vec<u64> = bench.record().runs.iter().map(|run| run.tick).collect();
    assert_eq!(ticks, (2..=33).collect::<Vec<_>>());
}

#[test]
fn an_expired_lease_completes_its_tick_until_the_key_is_granted_again() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.pass(1_000);
    assert_eq!(bench.send(complete(1, token, 5)), Outcome::Completed);
    let second = granted(&bench.send(once(2, 0)));
    bench.pass(1_000);
    granted(&bench.send(once(3, 0)));
    assert_eq!(bench.send(complete(2, second, 6)), Outcome::Absent);
    assert_eq!(done(&bench), Some((5, token)));
}

#[test]
fn a_revoked_lease_completes_nothing() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(revoke());
    assert_eq!(bench.send(complete(1, token, 5)), Outcome::Absent);
    assert_eq!(done(&bench), None);
}

#[test]
fn a_lease_that_holds_completes_its_tick_although_the_version_was_raised() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(Request::Raise(Raise { to: FencingToken::new(token.get() + 9).unwrap() }));
    assert_eq!(bench.send(complete(1, token, 5)), Outcome::Completed);
    let token = granted(&bench.send(once(2, 0)));
    bench.send(Request::Raise(Raise { to: FencingToken::new(token.get() + 9).unwrap() }));
    bench.pass(1_000);
    assert_eq!(bench.send(complete(2, token, 6)), Outcome::Absent, "an expired one does not");
}

#[test]
fn a_completion_names_the_lease_by_its_id_and_its_token() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(Request::Raise(Raise { to: FencingToken::new(token.get() + 9).unwrap() }));
    let other = FencingToken::new(token.get() - 1).unwrap();
    assert_eq!(bench.send(complete(2, token, 5)), Outcome::Absent);
    assert_eq!(bench.send(complete(1, other, 5)), Outcome::Absent);
    assert_eq!((bench.holders(), done(&bench)), (vec![1], None));
}

#[test]
fn a_completion_raises_the_tick_and_never_lowers_it() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 0)));
    bench.send(complete(1, first, 5));
    for tick in [4, 5] {
        let token = granted(&bench.send(once(2, 0)));
        assert_eq!(bench.send(complete(2, token, tick)), Outcome::Absent);
        assert_eq!((bench.holders(), done(&bench)), (vec![], Some((5, first))), "the lease is released all the same");
    }
    let token = granted(&bench.send(once(2, 0)));
    assert_eq!(bench.send(complete(2, token, 6)), Outcome::Completed);
    assert_eq!(done(&bench), Some((6, token)));
}

#[test]
fn a_reset_lowers_the_tick_and_a_delayed_completion_does_not_undo_it() {
    let mut bench = Bench::new();
    let token = granted(&bench.send(once(1, 0)));
    bench.send(complete(1, token, 5));
    let before = bench.record().clone();
    for later in [5, 6] {
        assert!(matches!(bench.send(reset(later)), Outcome::Reset { done: Some(done) } if done.tick == 5));
    }
    assert_eq!(bench.record(), &before, "a reset never raises the tick");
    bench.pass(10);
    bench.send(reset(4));
    let lowered = CompletedTick { tick: 4, token, by: "ops".into(), at: bench.now() };
    assert_eq!(bench.record().done, Some(lowered));
    bench.send(complete(1, token, 5));
    assert_eq!(done(&bench), Some((4, token)));
    assert_eq!(Bench::new().send(reset(4)), Outcome::Absent, "there is no record");
}

#[test]
fn a_delayed_reset_does_not_undo_a_later_completion() {
    let mut bench = Bench::new();
    let first = granted(&bench.send(once(1, 0)));
    bench.send(complete(1, first, 5));
    let delayed = || Request::Reset(Reset { tick: 4, upto: first, by: "ops".into() });
    bench.send(delayed());
    assert_eq!(done(&bench), Some((4, first)));
    let second = granted(&bench.send(once(2, 0)));
    bench.send(complete(2, second, 5));
    assert!(matches!(bench.send(delayed()), Outcome::Reset { done: Some(done) } if done.token == second));
    assert_eq!(done(&bench), Some((5, second)));
}

#[test]
fn a_reset_grants_the_key_to_a_waiter_as_each_request_does() {
    let mut bench = Bench::new();
    granted(&bench.send(once(1, 0)));
    bench.pass(600);
    bench.send(wait(2, 0));
    bench.pass(400);
    bench.send(reset(1));
    assert_eq!(bench.holders(), [2]);
}

//! Work that runs once for each tick.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongoseal::{
    BeginOutcome, Error, FencingToken, Mongoseal, OnceOutcome, Result, Retry, Skipped, Tick, TickLease,
    action::RunOnce, record::Request, store::MemoryStore,
};

use crate::{
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// Runs a tick whose work does nothing. Does not wait.
async fn run(seal: &Mongoseal, tick: u64) -> Result<OnceOutcome<FencingToken>> {
    run_tick(seal, Tick::number(tick)).await
}

async fn run_tick(seal: &Mongoseal, tick: Tick) -> Result<OnceOutcome<FencingToken>> {
    seal.once("k", tick).wait(Duration::ZERO).run(async |tick| Ok::<_, Error>(tick.token())).await
}

fn is_complete(call: &Call<'_>) -> bool {
    matches!(call, Call::Apply(Request::Complete(_)))
}

fn completions(store: &Faulty) -> usize {
    store.requests().iter().filter(|request| matches!(request, Request::Complete(_))).count()
}

/// The last completed tick.
async fn done(seal: &Mongoseal) -> Option<u64> {
    seal.inspect("k").await.unwrap().and_then(|seen| seen.done).map(|done| done.tick)
}

#[tokio::test(start_paused = true)]
async fn a_tick_before_the_last_completed_one_is_superseded() {
    let seal = Mongoseal::in_memory();
    assert!(matches!(run(&seal, 5).await.unwrap(), OnceOutcome::Ran(_)));
    let OnceOutcome::Skipped(why) = run(&seal, 4).await.unwrap() else { panic!("it is superseded") };
    assert!(matches!(why, Skipped::Superseded { tick: 5, .. }));
    assert!(why.to_string().contains("completed the later tick 5 at "), "{why}");
}

#[tokio::test(start_paused = true)]
async fn the_history_has_each_completed_run_with_its_times_its_owner_its_note_and_its_period() {
    let store = Faulty::new();
    let (alice, bob) =
        (store.build(Mongoseal::builder().owner("alice")), store.build(Mongoseal::builder().owner("bob")));
    assert_eq!(alice.runs("k").await.unwrap(), []);
    let first = Tick::at_millis(60_000).period(secs(60));
    let ran = alice.once("k", first).run(async |tick| {
        tokio::time::sleep(millis(2_500)).await;
        tick.note("first");
        tick.note("312 rows");
        Ok::<_, Error>(())
    });
    assert_eq!(ran.await.unwrap(), OnceOutcome::Ran(()));
    // This one is not completed, so it leaves no trace.
    bob.once("k", Tick::at_millis(120_000)).run(async |_| Err::<(), _>(Error::invalid("full"))).await.unwrap_err();
    let failing = bob.once("k", Tick::at_millis(120_000)).complete_on_error();
    failing.run(async |_| Err::<(), _>(Error::invalid("full"))).await.unwrap_err();
    let without_period = Tick::at_millis(180_000).period(Duration::ZERO);
    let BeginOutcome::Started(tick) = bob.once("k", without_period).begin().await.unwrap() else { panic!() };
    tick.complete_failed().await.unwrap();
    let runs = bob.runs("k").await.unwrap();
    let seen: Vec<_> =
        runs.iter().map(|run| (run.tick, run.by.as_str(), run.at.since(run.since), run.is_failed)).collect();
    let none = Duration::ZERO;
    assert_eq!(
        seen,
        [(60_000, "alice", millis(2_500), false), (120_000, "bob", none, true), (180_000, "bob", none, true)]
    );
    let said: Vec<_> = runs.iter().map(|run| (run.note.as_str(), run.period)).collect();
    assert_eq!(said, [("312 rows", Some(60_000)), ("", None), ("", None)]);
    assert!(runs.is_sorted_by_key(|run| (run.token, run.at)));
}

#[tokio::test(start_paused = true)]
async fn a_note_is_cut_to_200_bytes_and_a_completion_whose_reply_is_lost_adds_one_run() {
    let (store, seal) = Faulty::open();
    store.first(1, |call| is_complete(&call), Fault::LoseReply);
    for (tick, note) in [(1, "é".repeat(150)), (2, "é".repeat(99) + "a€")] {
        let work = async |tick: &TickLease| {
            tick.note(&note);
            Ok::<_, Error>(())
        };
        seal.once("k", Tick::number(tick)).run(work).await.unwrap();
    }
    assert_eq!(completions(&store), 3);
    let notes: Vec<_> = seal.runs("k").await.unwrap().into_iter().map(|run| run.note).collect();
    assert_eq!(notes, ["é".repeat(100), "é".repeat(99) + "a"]);
}

#[tokio::test(start_paused = true)]
async fn while_a_runner_works_another_is_busy_and_one_that_waits_finds_the_tick_done() {
    let store = Faulty::new();
    let (alice, bob) = (store.build(Mongoseal::builder().owner("alice")), store.seal());
    let working = tokio::spawn(async move {
        let once = alice.once("k", Tick::number(1)).min_hold(secs(40));
        once.run(async |_| {
            tokio::time::sleep(secs(10)).await;
            Ok::<_, Error>(())
        })
        .await
    });
    tokio::time::sleep(secs(1)).await;
    let busy = OnceOutcome::Skipped(Skipped::Busy { owner: "alice".parse().unwrap() });
    assert_eq!(run(&bob, 1).await.unwrap(), busy);
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let seal = store.seal();
            tokio::spawn(async move {
                let once = seal.once("k", Tick::number(1)).min_hold(secs(40)).wait(secs(600));
                once.run(async |_| -> Result<()> { panic!("the tick is done") }).await
            })
        })
        .collect();
    assert_eq!(working.await.unwrap().unwrap(), OnceOutcome::Ran(()));
    let began = tokio::time::Instant::now();
    assert_eq!(run(&bob, 2).await.unwrap(), busy, "the minimum hold");
    for waiter in waiters {
        assert!(
            matches!(waiter.await.unwrap().unwrap(), OnceOutcome::Skipped(Skipped::AlreadyDone { by, .. }) if by == "alice")
        );
    }
    // The waiters that found the tick done began no work, so their minimum hold delays no acquire.
    assert!(began.elapsed() < secs(31), "{:?}", began.elapsed());
    assert!(matches!(run(&bob, 2).await.unwrap(), OnceOutcome::Ran(_)));
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_is_answered_is_the_last_request_of_its_tick() {
    let store = Faulty::new();
    let is_last = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_last);
    store.script(move |call| {
        noted.store(is_complete(&call), Ordering::Relaxed);
        None
    });
    assert!(matches!(run(&store.seal(), 1).await.unwrap(), OnceOutcome::Ran(_)));
    assert!(is_last.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_completion_whose_reply_is_lost_or_from_a_stale_copy_is_sent_again_and_the_work_does_not_run_again() {
    // The first completion hands the key over to the waiter, so the next completions find another holder.
    for (fault, waits) in [(Fault::LoseReply, false), (Fault::LoseReply, true), (Fault::Stale, false)] {
        let store = Faulty::new();
        let (seal, other) = (store.seal(), store.seal());
        store.first(2, |call| is_complete(&call), fault);
        let once = seal.once("k", Tick::number(1)).run(async |_| {
            let waiting = waits.then(|| tokio::spawn(other.acquire("k").wait(secs(600)).into_future()));
            tokio::time::sleep(millis(50)).await;
            Ok::<_, Error>(waiting)
        });
        let ran = once.await.unwrap();
        let OnceOutcome::Ran(waiting) = ran else { panic!("the tick ran: {ran:?}") };
        assert_eq!(completions(&store), 3);
        if let Some(waiting) = waiting {
            waiting.await.unwrap().unwrap().release().await.unwrap();
        }
        assert!(matches!(run(&seal, 1).await.unwrap(), OnceOutcome::Skipped(Skipped::AlreadyDone { .. })));
    }
}

#[tokio::test]
async fn work_that_blocked_past_the_expiry_completes_its_tick() {
    let seal = Mongoseal::in_memory();
    let ran = seal.once("k", Tick::number(1)).ttl(millis(50)).run(async |_| {
        std::thread::sleep(millis(80));
        Ok::<_, Error>(7)
    });
    assert_eq!((ran.await.unwrap(), done(&seal).await), (OnceOutcome::Ran(7), Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_was_cut_off_past_the_expiry_completes_its_tick_if_the_key_was_not_granted_since() {
    for taken in [false, true] {
        let store = Faulty::new();
        let (seal, other) = (store.seal(), store.seal());
        let begun = seal.once("k", Tick::number(1)).ttl(secs(10)).begin().await.unwrap();
        let BeginOutcome::Started(tick) = begun else { panic!("{begun:?}") };
        store.always(Fault::Hang);
        tokio::time::sleep(secs(20)).await;
        store.heal();
        if taken {
            drop(other.acquire("k").await.unwrap());
        }
        let completed = tick.complete().await;
        assert_eq!(done(&seal).await, (!taken).then_some(1));
        assert!(if taken { matches!(completed, Err(Error::Lost { .. })) } else { completed.is_ok() }, "{completed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_is_revoked_too_long_or_without_progress_is_dropped_and_its_tick_stays_open() {
    let seal = Mongoseal::in_memory();
    let once = || seal.once("k", Tick::number(1));
    for (once, expected) in
        [(once(), "revoked"), (once().max_hold(secs(50)), "held_too_long"), (once().stalled_after(secs(50)), "stalled")]
    {
        let revoke = async {
            tokio::time::sleep(secs(60)).await;
            seal.revoke("k").await.unwrap()
        };
        let endless = once.run(async |_| -> Result<()> { std::future::pending().await });
        let (lost, _) = tokio::join!(endless, revoke);
        assert!(matches!(&lost, Err(Error::Lost { cause, .. }) if cause.kind() == expected), "{lost:?}");
        assert_eq!(done(&seal).await, None);
    }
    let busy = once().stalled_after(secs(50)).run(async |tick| {
        for _ in 0..10 {
            tokio::time::sleep(secs(40)).await;
            tick.progress();
        }
        Ok::<_, Error>(())
    });
    assert_eq!(busy.await.unwrap(), OnceOutcome::Ran(()));
}

#[tokio::test(start_paused = true)]
async fn a_tick_of_a_time_far_ahead_of_the_store_is_refused_and_the_schedule_goes_on() {
    let (store, seal) = Faulty::open();
    let now = seal.now().await.unwrap().millis().unsigned_abs();
    let error = run_tick(&seal, Tick::at_millis(now + 366 * 24 * 3_600_000)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("check the clock"), "{error}");
    assert!(store.requests().is_empty());
    assert!(matches!(run_tick(&seal, Tick::at_millis(now + 30_000)).await.unwrap(), OnceOutcome::Ran(_)));
    let within_the_period = Tick::at_millis(now + 3_000_000).period(secs(3_600));
    assert!(matches!(run_tick(&seal, within_the_period).await.unwrap(), OnceOutcome::Ran(_)));
}

#[tokio::test(start_paused = true)]
async fn a_reset_lets_a_tick_run_again_and_never_raises_the_last_one() {
    let seal = Mongoseal::in_memory();
    assert_eq!(seal.rewind_tick("k", 3).await.unwrap(), None);
    run(&seal, 7).await.unwrap();
    assert_eq!(seal.rewind_tick("k", 9).await.unwrap().map(|last| last.tick), Some(7));
    let last = seal.rewind_tick("k", 6).by("olga").await.unwrap().unwrap();
    assert_eq!((last.tick, last.by.as_str()), (6, "olga"));
    assert!(
        matches!(run(&seal, 6).await.unwrap(), OnceOutcome::Skipped(Skipped::AlreadyDone { by, .. }) if by == "olga")
    );
    assert!(matches!(run(&seal, 7).await.unwrap(), OnceOutcome::Ran(_)));
    assert!(matches!(seal.rewind_tick("k", 0).by("").await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_run_dropped_half_way_drops_the_work_and_releases_the_key() {
    let (store, seal) = Faulty::open();
    let pending = seal.once("k", Tick::number(1)).run(async |_| -> Result<()> { std::future::pending().await });
    assert!(tokio::time::timeout(secs(5), pending).await.is_err());
    tokio::time::sleep(millis(10)).await;
    assert!(matches!(run(&store.seal(), 1).await.unwrap(), OnceOutcome::Ran(_)));
}

#[tokio::test(start_paused = true)]
async fn a_run_dropped_during_its_completion_completes_the_tick_in_the_background() {
    let (store, seal) = Faulty::open();
    store.script(|call| is_complete(&call).then_some(Fault::Delay(secs(2))));
    let completing = seal.once("k", Tick::number(1)).run(async |_| Ok::<_, Error>(()));
    assert!(tokio::time::timeout(secs(1), completing).await.is_err());
    tokio::time::sleep(secs(3)).await;
    assert_eq!(done(&seal).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_the_store_does_not_confirm_is_unavailable_and_a_retry_finds_what_happened() {
    let store = Faulty::new();
    let seal = store.build(Mongoseal::builder().operation_timeout(secs(5)));
    store.script(|call| is_complete(&call).then_some(Fault::LoseReply));
    assert!(matches!(run(&seal, 1).await, Err(Error::Unavailable { .. })));
    store.heal();
    assert!(matches!(run(&seal, 1).await.unwrap(), OnceOutcome::Skipped(Skipped::AlreadyDone { .. })));
}

#[tokio::test(start_paused = true)]
async fn wrong_options_and_ticks_are_refused_before_a_lease_is_acquired() {
    let (store, seal) = Faulty::open();
    let work = async |_: &TickLease| Ok::<_, Error>(());
    for (once, says) in [
        (seal.once("", Tick::number(1)), "key"),
        (seal.once("k", Tick::number(0)), "no tick"),
        (seal.once("k", Tick::of(Duration::ZERO)), "period"),
        (seal.once("k", Tick::number(1)).ttl(Duration::ZERO), "ttl"),
        (seal.once("k", Tick::number(1)).keep_for(RunOnce::MAX_KEEP + millis(1)), "`keep_for` cannot be"),
        (seal.once("k", Tick::number(1)).min_hold(secs(9)).max_hold(secs(8)), "at least"),
    ] {
        let error = once.run(work).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{says}: {error}");
    }
    assert!(store.requests().is_empty());
}

/// The retention alone would delete the completed tick before its period ends.
#[tokio::test(start_paused = true)]
async fn no_tick_of_a_period_that_is_longer_than_the_retention_runs_twice() {
    // It deletes what has been idle for a minute.
    let seal = Mongoseal::in_memory_on(&MemoryStore::new(secs(60)));
    let day = 24 * 3_600;
    let mut runs = 0;
    // Every 75 seconds, and then for two months every day.
    for pause in [75; 8].into_iter().chain([day; 60]) {
        runs += u32::from(matches!(run_tick(&seal, Tick::of(secs(30 * day))).await.unwrap(), OnceOutcome::Ran(_)));
        tokio::time::sleep(secs(pause)).await;
    }
    assert!((2..=4).contains(&runs), "{runs}");
}

#[tokio::test(start_paused = true)]
async fn a_completed_tick_is_to_be_kept_for_90_days_or_for_as_long_as_the_caller_says() {
    let (store, seal) = Faulty::open();
    let (once, day) = (|key| seal.once(key, Tick::number(1)), secs(24 * 3_600));
    // A record is kept for the retention of a day anyway. That stores keep it for so much longer is a requirement.
    for (once, longer) in [
        (once("default"), 89 * day),
        (once("a century").keep_for(RunOnce::MAX_KEEP), 36_499 * day),
        (once("no longer").keep_for(Duration::ZERO), Duration::ZERO),
    ] {
        once.run(async |_| Ok::<_, Error>(())).await.unwrap();
        let Some(Request::Complete(complete)) = store.requests().pop() else { panic!("a completion is the last") };
        assert_eq!(Duration::from_millis(complete.keep), longer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_runner_takes_over_from_one_that_died_unless_it_asks_not_to_wait() {
    let store = Faulty::new();
    let dead = store.seal();
    let lease = dead.acquire("k").await.unwrap();
    lease.orphan();
    let began = tokio::time::Instant::now();
    assert!(matches!(run(&store.seal(), 1).await.unwrap(), OnceOutcome::Skipped(Skipped::Busy { .. })));
    assert!(began.elapsed() < secs(1));
    let ran = store.seal().once("k", Tick::number(1)).run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(ran, OnceOutcome::Ran(()));
    assert!(began.elapsed() < secs(32), "{:?}", began.elapsed());
    // Of a holder that lives, it does not wait longer than that.
    let lease = dead.acquire("k").await.unwrap();
    let busy = store.seal().once("k", Tick::number(2)).run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert!(matches!(busy, OnceOutcome::Skipped(Skipped::Busy { .. })));
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn a_runner_retries_and_refreshes_as_its_options_say() {
    let (store, lease) = Faulty::held().await;
    let seal = store.seal();
    let busy = seal.once("k", Tick::number(1)).retry(Retry::fixed(secs(1)).attempts(3)).begin();
    let began = tokio::time::Instant::now();
    assert!(matches!(busy.await.unwrap(), BeginOutcome::Skipped(Skipped::Busy { .. })));
    assert!(began.elapsed() >= secs(2) && began.elapsed() < secs(3), "{:?}", began.elapsed());
    lease.release().await.unwrap();
    let once = seal.once("k", Tick::number(1)).ttl(secs(30)).refresh_every(secs(2));
    let ran = once.run(async |_| {
        tokio::time::sleep(secs(9)).await;
        let seen = seal.inspect("k").await?.unwrap();
        Ok::<_, Error>(seen.read_at.since(seen.holders[0].last_seen))
    });
    let OnceOutcome::Ran(silent) = ran.await.unwrap() else { panic!("the tick is new") };
    assert!(silent < millis(2_100), "{silent:?} without a refresh");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_copy_of_a_reset_does_not_undo_a_later_completion() {
    let (store, seal) = Faulty::open();
    run(&seal, 7).await.unwrap();
    store.first(1, |call| matches!(call, Call::Apply(Request::Reset(_))), Fault::Delay(secs(60)));
    assert_eq!(seal.rewind_tick("k", 6).await.unwrap().map(|last| last.tick), Some(6));
    assert!(matches!(run(&seal, 7).await.unwrap(), OnceOutcome::Ran(_)));
    tokio::time::sleep(secs(120)).await;
    assert_eq!(done(&seal).await, Some(7));
}

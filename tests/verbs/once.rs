//! Work that runs once for each tick.

use std::time::Duration;

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
async fn a_tick_before_the_last_completed_one_is_superseded_until_a_reset_which_never_raises_the_last_one() {
    let (store, seal) = Faulty::open();
    assert_eq!(seal.rewind_tick("k", 3).await.unwrap(), None);
    assert!(matches!(run(&seal, 7).await.unwrap(), OnceOutcome::Ran(_)));
    let OnceOutcome::Skipped(why) = run(&seal, 6).await.unwrap() else { panic!("it is superseded") };
    assert!(matches!(why, Skipped::Superseded { tick: 7, .. }));
    assert!(why.to_string().contains("completed the later tick 7 at "), "{why}");
    assert_eq!(seal.rewind_tick("k", 9).await.unwrap().map(|last| last.tick), Some(7));
    // Another copy of it arrives after the next completion.
    store.first(1, |call| matches!(call, Call::Apply(Request::Reset(_))), Fault::Delay(secs(60)));
    let last = seal.rewind_tick("k", 6).by("olga").await.unwrap().unwrap();
    assert_eq!((last.tick, last.by.as_str()), (6, "olga"));
    let done_by_olga = run(&seal, 6).await.unwrap();
    assert!(matches!(done_by_olga, OnceOutcome::Skipped(Skipped::AlreadyDone { by, .. }) if by == "olga"));
    assert!(matches!(run(&seal, 7).await.unwrap(), OnceOutcome::Ran(_)));
    tokio::time::sleep(secs(120)).await;
    assert_eq!(done(&seal).await, Some(7));
    assert!(matches!(seal.rewind_tick("k", 0).by("").await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_history_has_each_completed_run_with_its_times_its_owner_its_note_of_200_bytes_and_its_period() {
    let seal = Mongoseal::builder().owner("alice").in_memory().unwrap();
    assert_eq!(seal.runs("k").await.unwrap(), []);
    let once = |number: u64| seal.once("k", Tick::at_millis(number * 60_000).period(secs(60)));
    let fail = async |_: &TickLease| Err::<(), _>(Error::invalid("full"));
    let ran = once(1).run(async |tick| {
        tokio::time::sleep(millis(2_500)).await;
        tick.note("first");
        tick.note("é".repeat(99) + "a€");
        Ok::<_, Error>(())
    });
    ran.await.unwrap();
    // This one is not completed, so it leaves no trace.
    once(2).run(fail).await.unwrap_err();
    once(3).complete_on_error().run(fail).await.unwrap_err();
    let without_period = Tick::at_millis(240_000).period(Duration::ZERO);
    let BeginOutcome::Started(tick) = seal.once("k", without_period).begin().await.unwrap() else { panic!() };
    tick.note("é".repeat(150));
    tick.complete_failed().await.unwrap();
    let runs = seal.runs("k").await.unwrap();
    let seen: Vec<_> = runs.iter().map(|run| (run.tick, run.at.since(run.since), run.is_failed, run.period)).collect();
    let (none, minute) = (Duration::ZERO, Some(60_000));
    let expected = [(60_000, millis(2_500), false, minute), (180_000, none, true, minute), (240_000, none, true, None)];
    assert_eq!(seen, expected);
    let notes = ["é".repeat(99) + "a", String::new(), "é".repeat(100)];
    assert!(runs.iter().map(|run| &run.note).eq(&notes), "{runs:?}");
    assert!(runs.iter().all(|run| run.by.as_str() == "alice") && runs.is_sorted_by_key(|run| (run.token, run.at)));
}

#[tokio::test(start_paused = true)]
async fn while_a_runner_works_another_is_busy_and_one_that_waits_finds_the_tick_done() {
    let store = Faulty::new();
    let (alice, bob) = (store.build(Mongoseal::builder().owner("alice")), store.seal());
    let once = alice.once("k", Tick::number(1)).min_hold(secs(40));
    let working = once.run(async |_| {
        tokio::time::sleep(secs(10)).await;
        Ok::<_, Error>(())
    });
    let busy = OnceOutcome::Skipped(Skipped::Busy { owner: "alice".parse().unwrap() });
    let watching = async {
        tokio::time::sleep(secs(1)).await;
        assert_eq!(run(&bob, 1).await.unwrap(), busy);
        let once = bob.once("k", Tick::number(1)).min_hold(secs(40)).wait(secs(600));
        let found = once.run(async |_| -> Result<()> { panic!("the tick is done") }).await.unwrap();
        assert!(matches!(found, OnceOutcome::Skipped(Skipped::AlreadyDone { by, .. }) if by == "alice"));
        // It began no work, so its minimum hold delays no acquire.
        assert!(matches!(run(&bob, 2).await.unwrap(), OnceOutcome::Ran(_)));
    };
    let (worked, ()) = tokio::join!(working, watching);
    assert_eq!(worked.unwrap(), OnceOutcome::Ran(()));
}

#[tokio::test(start_paused = true)]
async fn a_completion_without_an_answer_to_believe_is_sent_again_and_the_work_does_not_run_again() {
    // The first completion hands the key over to the waiter, so the next completions find another holder.
    for (fault, times, waits) in [
        (Fault::LoseReply, 0, false),
        (Fault::LoseReply, 2, false),
        (Fault::LoseReply, 2, true),
        (Fault::Stale, 2, false),
        (Fault::LoseReply, 1_000, false),
    ] {
        let store = Faulty::new();
        let (seal, other) = (store.seal(), store.seal());
        store.first(times, |call| is_complete(&call), fault);
        let once = seal.once("k", Tick::number(1)).run(async |_| {
            let waiting = waits.then(|| tokio::spawn(other.acquire("k").wait(secs(600)).into_future()));
            tokio::time::sleep(millis(50)).await;
            Ok::<_, Error>(waiting)
        });
        match once.await {
            Ok(OnceOutcome::Ran(waiting)) => {
                assert_eq!(completions(&store), times + 1, "{fault:?}, beside a waiter: {waits}");
                assert!(matches!(store.requests().last(), Some(Request::Complete(_))), "nothing is released behind it");
                if let Some(waiting) = waiting {
                    waiting.await.unwrap().unwrap().release().await.unwrap();
                }
            }
            ended => assert!(times == 1_000 && matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}"),
        }
        store.heal();
        assert!(matches!(run(&seal, 1).await.unwrap(), OnceOutcome::Skipped(Skipped::AlreadyDone { .. })));
        assert_eq!(seal.runs("k").await.unwrap().len(), 1, "{fault:?}, {times} times, beside a waiter: {waits}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_at_work_leaves_the_tick_open_and_one_that_completes_goes_on() {
    for (works, done_then) in [(secs(60), None), (secs(0), Some(1))] {
        let (store, seal) = Faulty::open();
        store.script(|call| is_complete(&call).then_some(Fault::Delay(secs(2))));
        let running = seal.once("k", Tick::number(1)).run(async |_| {
            tokio::time::sleep(works).await;
            Ok::<_, Error>(())
        });
        assert!(tokio::time::timeout(secs(1), running).await.is_err());
        tokio::time::sleep(secs(3)).await;
        assert_eq!(done(&seal).await, done_then, "after {works:?} of work");
        drop(store.seal().acquire("k").await.expect("it is released"));
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
        let (store, seal) = Faulty::open();
        let begun = seal.once("k", Tick::number(1)).ttl(secs(10)).begin().await.unwrap();
        let BeginOutcome::Started(tick) = begun else { panic!("{begun:?}") };
        store.always(Fault::Hang);
        tokio::time::sleep(secs(20)).await;
        store.heal();
        if taken {
            drop(store.seal().acquire("k").await.unwrap());
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
async fn wrong_options_and_ticks_are_refused_before_a_lease_is_acquired() {
    let (store, seal) = Faulty::open();
    let work = async |_: &TickLease| Ok::<_, Error>(());
    for (once, says) in [
        (seal.once("", Tick::number(1)), "key"),
        (seal.once("k", Tick::number(0)), "no tick"),
        (seal.once("k", Tick::of(Duration::ZERO)), "period"),
        (seal.once("k", Tick::at_millis(Tick::MAX)), "check the clock"),
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
    dead.acquire("k").await.unwrap().orphan();
    let began = tokio::time::Instant::now();
    assert!(matches!(run(&store.seal(), 1).await.unwrap(), OnceOutcome::Skipped(Skipped::Busy { .. })));
    assert!(began.elapsed() < secs(1));
    let run = async |tick| store.seal().once("k", Tick::number(tick)).run(async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(run(1).await, OnceOutcome::Ran(()));
    assert!(began.elapsed() < secs(32), "{:?}", began.elapsed());
    // Of a holder that lives, it does not wait longer than that.
    let _lease = dead.acquire("k").await.unwrap();
    assert!(matches!(run(2).await, OnceOutcome::Skipped(Skipped::Busy { .. })));
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

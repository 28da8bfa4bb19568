//! The other verbs of a blocking handle.

use std::{thread, time::Duration};

use mongoseal::{
    BeginOutcome, Error, LossCause, OnceOutcome, Result, Retry, Skipped, Tick, blocking::Mongoseal, inspect::EventKind,
};

use super::{SOON, catch, eventually, on, on_clock};
use crate::{faulty::Faulty, millis, secs};

#[test]
fn a_scope_releases_its_lease_after_a_value_an_error_and_a_panic() {
    let (clock, seal) = on_clock();
    let first = seal.acquire("k").with(|lease| lease.token()).unwrap();
    let error = seal.acquire("k").with(|_| Err::<(), _>("the work failed")).unwrap();
    assert_eq!(error, Err("the work failed"));
    assert!(catch(|| seal.acquire("k").with(|_| panic!("the work panics"))).is_err());
    assert!(seal.acquire("k").run().unwrap().token() > first);

    let lost = seal.acquire("l").without_refresh().with(|_| clock.advance(secs(31)));
    assert!(matches!(lost, Err(Error::Lost { cause: LossCause::Expired, .. })));
}

#[test]
fn a_set_is_acquired_released_and_lost_as_a_whole() {
    let seal = Mongoseal::in_memory().unwrap();
    let set = seal.acquire_all(["b", "a"]).ttl(secs(30)).run().unwrap();
    assert!(set.tokens().map(|(key, _)| key.as_str()).eq(["a", "b"]));
    assert!(set.is_valid() && set.remaining() > secs(20) && set.token("a") < set.token("b"));
    set.verify().unwrap();
    set.refresh().unwrap();
    assert!(set.remaining() > secs(29));
    assert!(matches!(seal.acquire_all(["b", "c"]).run(), Err(Error::Held { .. })));
    seal.acquire("c").run().unwrap().release().unwrap();
    assert!(set.run(|set| set.is_valid()).unwrap());

    let lost = set.run(|set| {
        seal.revoke("b").run().unwrap();
        eventually("the loss is seen", || set.check().is_err());
    });
    assert!(matches!(lost, Err(Error::Lost { key, .. }) if key.as_str() == "b"));
    assert_eq!(set.cancelled().unwrap().0.as_str(), "b");
    assert_eq!(set.release().unwrap().len(), 2);
    assert_eq!(seal.acquire_all(["a", "b"]).with(|set| set.tokens().count()).unwrap(), 2);
    let first = seal.acquire_any(["a", "b"]).run().unwrap();
    let second = seal.acquire_any(["a", "b"]).wait(SOON).with(|lease| lease.key().clone()).unwrap();
    assert_eq!((first.key().as_str(), second.as_str()), ("a", "b"));
    first.release().unwrap();
    drop(seal.acquire_all(["a", "b"]).run().unwrap());
    drop(seal.acquire_all(["a", "b"]).wait(SOON).run().unwrap());
}

#[test]
fn a_verb_in_the_closure_of_a_retry_policy_does_not_hang_the_threads_of_the_handle() {
    let seal = Mongoseal::in_memory().unwrap();
    let held = seal.acquire("k").run().unwrap();
    let others: Vec<_> = (0..8)
        .map(|_| {
            let (seal, inner) = (seal.clone(), seal.clone());
            let policy = Retry::custom(move |attempt| {
                inner.inspect("k").unwrap().unwrap();
                (attempt.number < 20).then_some(millis(1))
            });
            thread::spawn(move || seal.acquire("k").retry(policy).run().map(drop))
        })
        .collect();
    for other in others {
        assert!(matches!(other.join().unwrap(), Err(Error::RetriesExhausted { attempts: 20, .. })));
    }
    held.verify().unwrap();
}

#[test]
fn work_runs_once_for_each_tick() {
    let seal = Mongoseal::in_memory().unwrap();
    let done = |_: &_| Ok::<_, Error>("done");
    let once = |tick| seal.once("k", Tick::number(tick)).ttl(secs(30));
    assert_eq!(
        once(7).run(|tick| Ok::<_, Error>((tick.number(), tick.lease().is_valid()))).unwrap(),
        OnceOutcome::Ran((7, true))
    );
    assert!(matches!(once(7).run(done).unwrap(), OnceOutcome::Skipped(Skipped::AlreadyDone { .. })));
    assert!(matches!(once(6).run(done).unwrap(), OnceOutcome::Skipped(Skipped::Superseded { tick: 7, .. })));

    let failed = once(8).run(|_| Err::<(), _>(Error::invalid("it fails")));
    assert!(matches!(failed, Err(Error::Invalid { .. })));
    let failed = once(8).complete_on_error().run(|_| Err::<(), _>(Error::invalid("it fails again")));
    assert!(matches!(failed, Err(Error::Invalid { .. })));
    assert!(matches!(once(8).run(done).unwrap(), OnceOutcome::Skipped(Skipped::AlreadyDone { .. })));

    let BeginOutcome::Started(begun) = once(9).begin().unwrap() else { panic!("it begins") };
    begun.progress();
    // By default it would wait for as long as a dead holder keeps the key.
    assert!(matches!(once(9).wait(Duration::ZERO).run(done).unwrap(), OnceOutcome::Skipped(Skipped::Busy { .. })));
    begun.complete().unwrap();
    let BeginOutcome::Started(begun) = once(10).begin().unwrap() else { panic!("it begins") };
    begun.release().unwrap();
    let BeginOutcome::Started(begun) = once(10).begin().unwrap() else { panic!("it begins") };
    begun.note("full");
    begun.complete_failed().unwrap();
    let runs = seal.runs("k").unwrap();
    let runs: Vec<_> = runs.iter().map(|run| (run.tick, run.is_failed, run.note.as_str())).collect();
    assert_eq!(runs, [(7, false, ""), (8, true, ""), (9, false, ""), (10, true, "full")]);
    assert_eq!(seal.rewind_tick("k", 6).by("olga").run().unwrap().map(|last| last.tick), Some(6));
    assert_eq!(once(7).run(done).unwrap(), OnceOutcome::Ran("done"));
}

#[test]
fn the_work_of_a_tick_completes_it_after_its_lease_has_expired_unless_the_key_was_granted_since() {
    let (clock, seal) = on_clock();
    // The lease ends during the work, whatever is refreshed.
    let once = |tick| seal.once("k", Tick::number(tick)).max_hold(secs(9));
    let late = once(1).run(|_| {
        clock.advance(secs(10));
        Ok::<_, Error>(())
    });
    assert_eq!(late.unwrap(), OnceOutcome::Ran(()));
    let taken = once(2).run(|tick| {
        clock.advance(secs(10));
        assert!(!tick.lease().is_valid());
        seal.acquire("k").run()?.release()
    });
    assert!(matches!(taken, Err(Error::Lost { .. })), "{taken:?}");
}

#[test]
fn a_leader_is_elected_observed_and_resigns() {
    let seal = Mongoseal::in_memory().unwrap();
    assert_eq!(seal.leader("scheduler").unwrap(), None);
    let mut leaders = seal.observe("scheduler").unwrap();
    assert_eq!(leaders.next().unwrap().unwrap(), None);
    let leader = seal.campaign("scheduler").value("a").wait(SOON).run().unwrap();
    let seen = leaders.next().unwrap().unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.token), ("a", leader.token()));
    leader.proclaim("b").unwrap();
    assert_eq!(seal.leader("scheduler").unwrap().unwrap().value, "b");
    assert!(leader.lease().run(|lease| lease.is_valid()).unwrap());
    assert!(matches!(seal.campaign("scheduler").wait(millis(10)).run(), Err(Error::Held { .. })));
    leader.lease().verify().unwrap();
    leader.resign().unwrap();
    assert_eq!(seal.leader("scheduler").unwrap(), None);
}

#[test]
fn leases_are_listed_and_keys_are_watched_by_iterators() {
    let seal = Mongoseal::in_memory().unwrap();
    let mut all = seal.watch_prefix("").unwrap();
    let _leases = ["a/1", "a/2", "b/1"].map(|key| seal.acquire(key).run().unwrap());
    let listed: Vec<_> = seal.leases().prefix("a/").exclusive().run().unwrap().collect::<Result<_>>().unwrap();
    assert!(listed.iter().map(|lease| lease.key.as_str()).eq(["a/1", "a/2"]));
    assert!(matches!(seal.leases().owner("").run(), Err(Error::Invalid { .. })));
    for key in ["a/1", "a/2", "b/1"] {
        let event = all.next().unwrap().unwrap().into_event().unwrap();
        assert_eq!(event.key.as_str(), key);
        assert!(matches!(event.kind, EventKind::Granted { .. }));
    }
}

#[test]
fn operators_read_the_time_and_raise_purge_and_prepare() {
    let seal = Mongoseal::in_memory().unwrap();
    seal.prepare().unwrap();
    let lease = seal.acquire("k").run().unwrap();
    let record = seal.inspect("k").unwrap().unwrap();
    assert!(seal.now().unwrap() >= record.holders[0].since);
    assert!(seal.raise_token_floor("k", lease.token()).unwrap() >= lease.token());
    assert!(seal.purge().unwrap().is_empty());
    let revoked = seal.revoke("k").token(lease.token()).run().unwrap();
    assert_eq!(revoked[0].token, lease.token());
    assert!(matches!(seal.inspect(""), Err(Error::Invalid { .. })));
}

#[test]
fn groups_are_refreshed_and_released_together() {
    let seal = Mongoseal::in_memory().unwrap();
    let lease = seal.acquire("a").group("job").ttl(secs(5)).without_refresh().run().unwrap();
    assert_eq!(seal.refresh_group("job", secs(60)).unwrap().refreshed.len(), 1);
    assert!(lease.remaining() > secs(50));
    assert_eq!(seal.release_group("job").unwrap()[0].holder.token, lease.token());
    assert!(!lease.is_valid());
}

#[test]
fn a_future_of_the_asynchronous_api_runs_on_the_threads_of_the_handle() {
    let seal = on(&Faulty::new());
    let asynchronous = seal.as_async().clone();
    let token =
        seal.block_on(async move { asynchronous.acquire("k").with(async |lease| lease.token()).await }).unwrap();
    assert!(seal.acquire("k").run().unwrap().token() > token);
    let panic = catch(|| seal.block_on::<()>(async { panic!("it panics") }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"it panics"));
}

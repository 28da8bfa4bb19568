//! Leaders, on paused time.

use std::future::{IntoFuture, pending};

use mongoseal::{
    CancellationToken, Error, Mongoseal,
    election::{Elector, Leader, LeaderStream, LeadershipState},
    store::MemoryStore,
    testing::ManualClock,
};
use mongoseal_test_support::eventually;
use tokio::time::{Instant, timeout};

use crate::{
    GRACE,
    candidates::Log,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn a_leader_proclaims_another_value_with_the_same_token_group_and_metadata() {
    let seal = Mongoseal::in_memory();
    let leader = seal.campaign("k").value("one").group("nightly").metadata("build", "1.4.2").await.unwrap();
    for value in ["one", "$$two"] {
        let holder = &seal.inspect("k").await.unwrap().unwrap().holders[0];
        assert_eq!(holder.group.as_ref().unwrap().as_str(), "nightly");
        assert_eq!((holder.metadata.get("build"), holder.metadata.get("value")), (Some("1.4.2"), Some(value)));
        let seen = seal.leader("k").await.unwrap().unwrap();
        assert_eq!((seen.value.as_str(), seen.token, &seen.owner), (value, leader.token(), leader.lease().owner()));
        leader.proclaim("$$two").await.unwrap();
    }
}

/// A member whose clock is ahead by as much ends the leader's time that much sooner.
#[tokio::test(start_paused = true)]
async fn the_grace_of_the_handle_comes_on_top_of_the_time_that_a_leader_has_to_stop() {
    let kept = async |seal: Mongoseal, stop_margin| {
        let leader = seal.campaign("k").ttl(secs(30)).stop_margin(stop_margin).await.unwrap();
        let holders = seal.inspect("k").await.unwrap().unwrap().holders;
        (holders[0].free_in, leader.lease().remaining())
    };
    for stop_margin in [secs(0), secs(5)] {
        for (builder, grace) in [
            (Mongoseal::builder(), GRACE),
            (Mongoseal::builder().grace(secs(2)), secs(2)),
            (Mongoseal::builder().grace(secs(0)), secs(0)),
        ] {
            let (store, leader) = kept(builder.in_memory().unwrap(), stop_margin).await;
            assert_eq!(store, secs(30) + stop_margin + grace);
            assert!(leader > secs(29) && leader <= secs(30), "{leader:?}");
        }
    }
    let all = Mongoseal::builder().retention(secs(35)).in_memory().unwrap();
    assert_eq!(kept(all, secs(5)).await.0, secs(35), "no longer than idle records are kept");
}

#[tokio::test(start_paused = true)]
async fn a_campaign_waits_no_longer_than_it_says_and_one_or_a_leader_that_is_dropped_withdraws() {
    let store = Faulty::new();
    let leader = store.seal().campaign("k").await.unwrap();
    let other = store.seal();
    assert!(matches!(other.campaign("k").wait(secs(5)).await, Err(Error::Held { .. })));
    assert!(timeout(secs(5), other.campaign("k").into_future()).await.is_err());
    drop(leader);
    tokio::time::sleep(millis(1)).await;
    assert_eq!(other.leader("k").await.unwrap(), None);
}

/// What is observed next, within a while.
async fn next(leaders: &mut LeaderStream) -> Option<String> {
    let next = timeout(secs(3600), leaders.next()).await.expect("something is told");
    next.unwrap().unwrap().map(|leader| leader.value)
}

/// An expired holder can already be missing from the first state that the observer reads.
#[tokio::test(start_paused = true)]
async fn observers_are_told_of_leaders_values_and_gaps_and_of_nothing_else() {
    let store = Faulty::new();
    let mut leaders = store.seal().observe("k").await.unwrap();
    assert_eq!(next(&mut leaders).await, None, "nobody leads yet");
    let one = store.seal().campaign("k").value("one").await.unwrap();
    let two = tokio::spawn(store.seal().campaign("k").value("two").into_future());
    // Refreshes are no news.
    tokio::time::sleep(secs(100)).await;
    assert_eq!(next(&mut leaders).await.as_deref(), Some("one"));
    one.proclaim("one again").await.unwrap();
    assert_eq!(next(&mut leaders).await.as_deref(), Some("one again"));
    one.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await.as_deref(), Some("two"), "no gap where somebody stood behind");
    two.await.unwrap().unwrap().resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
    let three = store.seal().campaign("k").value("three").ttl(secs(30)).await.unwrap();
    assert_eq!(next(&mut leaders).await.as_deref(), Some("three"));
    let began = Instant::now();
    // As one that dies: nobody touches the record.
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Fail));
    assert_eq!(next(&mut leaders).await, None);
    assert!(began.elapsed() >= secs(34) && began.elapsed() < secs(36), "{:?}", began.elapsed());
    drop(three);
    let seen = store.seal();
    let mut present = seen.observe("k").await.unwrap();
    assert_eq!(next(&mut present).await, None, "its time is over, whatever the record says");
    seen.shutdown().await;
    assert!(matches!(present.next().await, Some(Err(Error::Invalid { .. }))));
    assert!(present.next().await.is_none());
}

/// An elector that notes its calls.
fn elector(seal: &Mongoseal, value: &str, log: &Log) -> Elector {
    let (leads, stops, who) = (log.clone(), log.clone(), value.to_owned());
    let elector = seal.campaign("k").value(value).elector();
    elector
        .on_new_leader(move |leader| leads.note(format!("{} leads", leader.value)))
        .on_stopped(move || stops.note(format!("{who} stops")))
}

/// Works until the elector stops it.
async fn endless(_: &Leader) -> mongoseal::Result<()> {
    pending().await
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_told_to_end_stops_its_work_and_makes_way() {
    let (store, log) = (Faulty::new(), Log::default());
    let end = CancellationToken::new();
    let first = elector(&store.seal(), "one", &log).until(end.clone());
    let readiness = first.readiness();
    assert!(readiness.check().unwrap_err().to_string().contains("has not been run"));
    let first = tokio::spawn(first.run(endless));
    tokio::time::sleep(secs(1)).await;
    let second_end = CancellationToken::new();
    let second = tokio::spawn(elector(&store.seal(), "two", &log).until(second_end.clone()).run(endless));
    tokio::time::sleep(secs(600)).await;
    readiness.check().unwrap();
    end.cancel();
    assert!(first.await.unwrap().unwrap().is_none());
    assert!(readiness.check().unwrap_err().to_string().contains("has ended"));
    tokio::time::sleep(secs(1)).await;
    second_end.cancel();
    assert!(second.await.unwrap().unwrap().is_none());
    let told = ["one leads", "one leads", "one stops", "two leads", "two stops"];
    assert_eq!(log.take(), told, "each is told of the other");
}

#[tokio::test(start_paused = true)]
async fn an_elector_asks_through_what_passes_and_ends_with_what_does_not() {
    let (store, log) = (Faulty::new(), Log::default());
    store.always(Fault::Fail);
    let heal = async {
        tokio::time::sleep(secs(60)).await;
        store.heal();
    };
    let work = async |_: &Leader| Ok::<_, Error>(42);
    let (ran, ()) = tokio::join!(elector(&store.seal(), "one", &log).run(work), heal);
    assert_eq!(ran.unwrap(), Some(42));
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Refuse));
    assert!(matches!(elector(&store.seal(), "one", &log).run(work).await, Err(Error::Invalid { .. })));
    let mistaken = store.seal().campaign("k").ttl(secs(30)).refresh_every(secs(20)).elector();
    let readiness = mistaken.readiness();
    assert!(matches!(mistaken.run(async |_| Ok(())).await, Err(Error::Invalid { .. })));
    assert!(readiness.check().unwrap_err().to_string().contains("has ended"));
}

/// An error of a program with a type of its own.
#[derive(Debug, PartialEq)]
enum Job {
    Full(u32),
    Seal(String),
}

impl From<Error> for Job {
    fn from(error: Error) -> Self {
        Self::Seal(error.to_string())
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_work_ends_its_elector_which_has_resigned() {
    let (store, log) = (Faulty::new(), Log::default());
    let work = async |_: &Leader| Err::<(), _>(Job::Full(7));
    assert_eq!(elector(&store.seal(), "one", &log).run(work).await, Err(Job::Full(7)));
    assert_eq!(store.seal().leader("k").await.unwrap(), None);
    assert!(log.take().contains(&"one stops".to_owned()));
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Refuse));
    let refused = elector(&store.seal(), "one", &log).run(work).await;
    assert!(matches!(&refused, Err(Job::Seal(why)) if why.contains("refuses")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_lost_stands_again_even_if_its_work_had_an_error_and_resigns_when_its_work_ends() {
    for has_error in [false, true] {
        let (store, log) = (Faulty::new(), Log::default());
        let (other, mut rounds) = (store.seal(), 0);
        let done = elector(&store.seal(), "one", &log).run(async |leader| -> mongoseal::Result<_> {
            rounds += 1;
            if rounds == 1 {
                tokio::time::sleep(secs(10)).await;
                other.revoke("k").await?;
                if has_error {
                    // The work sees it before the elector does.
                    leader.lease().verify().await?;
                }
                pending::<()>().await;
            }
            Ok((rounds, leader.token()))
        });
        let (rounds, token) = done.await.unwrap().expect("its work came to its end");
        assert_eq!((rounds, other.leader("k").await.unwrap()), (2, None), "and it has resigned");
        assert_eq!(other.inspect("k").await.unwrap().unwrap().version, token);
        let mut told = log.take();
        told.sort();
        assert_eq!(told, ["one leads", "one leads", "one stops", "one stops"], "with an error: {has_error}");
    }
}

/// A spawned elector whose work uses what it owns, its leader and values of other calls across awaits.
#[tokio::test(start_paused = true)]
async fn an_elector_can_run_on_a_task_of_its_own_and_is_ready_when_its_work_begins() {
    let (seal, mut jobs) = (Mongoseal::in_memory(), vec!["mail".to_owned()]);
    let elector = elector(&seal, "one", &Log::default());
    let readiness = elector.readiness();
    let task = tokio::spawn(elector.run(async move |leader| -> mongoseal::Result<usize> {
        readiness.check()?;
        leader.lease().verify().await?;
        jobs.push(format!("{:?}", seal.leader("k").await?.map(|leader| leader.value)));
        leader.proclaim(jobs[0].as_str()).await?;
        Ok(jobs.len())
    }));
    assert_eq!(task.await.unwrap().unwrap(), Some(2));
}

#[tokio::test]
async fn a_wedged_elector_is_told_from_another_thread() {
    let clock = ManualClock::new();
    let seal = Mongoseal::in_memory_on(&MemoryStore::on_clock(clock));
    let elector = seal.campaign("k").elector();
    let readiness = elector.readiness();
    let check = || std::thread::scope(|scope| scope.spawn(|| readiness.check()).join().unwrap());
    let is_ready = async || check().is_ok();
    let running = tokio::spawn(elector.run(endless));
    eventually(secs(60), "it runs", is_ready).await;
    // Nothing drives the runtime meanwhile.
    clock.advance(secs(29));
    check().unwrap();
    clock.advance(secs(2));
    assert!(check().unwrap_err().to_string().contains("no sign of life"));
    eventually(secs(60), "it runs again", is_ready).await;
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_ends_with_an_error_says_that_its_work_has_stopped_and_leaves_no_leader() {
    for by_shutdown in [true, false] {
        let (store, log) = (Faulty::new(), Log::default());
        store.script(|call| matches!(call, Call::Follow).then_some(Fault::Delay(secs(2))));
        let seal = store.seal();
        let elector = elector(&seal, "one", &log);
        let mut leadership = elector.leadership();
        let running = tokio::spawn(elector.run(endless));
        tokio::time::sleep(secs(1)).await;
        if by_shutdown {
            seal.shutdown().await;
        } else {
            // Who observes is refused, and who leads is not.
            store.script(|call| matches!(call, Call::Follow | Call::Read).then_some(Fault::Refuse));
        }
        assert!(matches!(running.await.unwrap(), Err(Error::Invalid { .. })));
        assert_eq!(log.take(), ["one leads", "one stops"], "by shutdown: {by_shutdown}");
        assert_eq!((leadership.state(), leadership.changed().await), (LeadershipState::NoLeader, None));
        store.heal();
        assert_eq!(store.seal().leader("k").await.unwrap(), None, "and it has resigned");
    }
}

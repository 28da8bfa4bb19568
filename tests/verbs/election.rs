//! Leaders, on paused time.

use std::future::IntoFuture;

use mongoseal::{CancellationToken, Error, LeaderInfo, LeaderStream, LossCause, Mongoseal, ReleaseOutcome};

use crate::{
    GRACE,
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn candidates_lead_in_the_order_they_came_and_others_see_who() {
    let store = Faulty::new();
    let first = store.seal().campaign("scheduler").value("one").await.unwrap();
    let mut rest = Vec::new();
    for value in ["two", "three"] {
        rest.push(tokio::spawn(store.seal().campaign("scheduler").value(value).into_future()));
        tokio::time::sleep(millis(10)).await;
    }
    let seen = |leader: Option<LeaderInfo>| leader.map(|leader| (leader.value, leader.token));
    let leads = || async { seen(store.seal().leader("scheduler").await.unwrap()) };
    let mut now = first;
    for next in rest {
        let value = if leads().await.unwrap().0 == "one" { "two" } else { "three" };
        assert_eq!(leads().await.unwrap().1, now.token());
        let token = now.token();
        assert_eq!(now.resign().await.unwrap(), ReleaseOutcome::Released);
        now = next.await.unwrap().unwrap();
        assert!(now.token() > token);
        assert_eq!(leads().await, Some((value.into(), now.token())));
    }
    drop(now);
    tokio::time::sleep(millis(1)).await;
    assert_eq!(leads().await, None, "whoever drops its leadership resigns");
    assert_eq!(store.seal().leader("never").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_keeps_its_group_and_metadata_when_it_proclaims() {
    let seal = Mongoseal::in_memory();
    let campaign = seal.campaign("lead").value("one").group("nightly").metadata("build", "1.4.2");
    let leader = campaign.await.unwrap();
    for value in ["one", "two"] {
        let holder = &seal.inspect("lead").await.unwrap().unwrap().holders[0];
        assert_eq!(holder.group.as_ref().unwrap().as_str(), "nightly");
        assert_eq!((holder.metadata.get("build"), holder.metadata.get("value")), (Some("1.4.2"), Some(value)));
        leader.proclaim("two").await.unwrap();
    }
    let refused = seal.campaign("other").metadata("value", "b").await.unwrap_err();
    assert!(refused.to_string().contains("the name of the leader's value"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_proclaims_another_value_with_the_same_token() {
    let store = Faulty::new();
    let leader = store.seal().campaign("k").value("one").await.unwrap();
    leader.proclaim("$$two").await.unwrap();
    let seen = store.seal().leader("k").await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.token, &seen.owner), ("$$two", leader.token(), leader.lease().owner()));
    assert!(matches!(leader.proclaim("x".repeat(5_000)).await, Err(Error::Invalid { .. })));
    assert_eq!(store.seal().leader("k").await.unwrap().unwrap().value, "$$two");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_has_stopped_before_the_next_one_leads() {
    let store = Faulty::new();
    let clock = tokio::time::Instant::now();
    let cut_off = store.seal();
    let leader = cut_off.campaign("k").ttl(secs(30)).await.unwrap();
    let next = tokio::spawn(store.seal().campaign("k").ttl(secs(30)).into_future());
    tokio::time::sleep(millis(100)).await;
    // Of its refreshes none arrives; the other candidate reaches the store.
    store.script(|call| matches!(call, Call::Apply(mongoseal::record::Request::Refresh(_))).then_some(Fault::Fail));
    let done = leader.lease().run(std::future::pending::<()>()).await;
    let stopped = clock.elapsed();
    assert!(matches!(done, Err(Error::Lost { cause: LossCause::Expired, .. })));
    assert!(stopped > secs(24) && stopped <= secs(25), "{stopped:?}");
    let next = next.await.unwrap().unwrap();
    let followed = clock.elapsed();
    assert!(followed >= secs(30) && followed < secs(31), "{followed:?}");
    assert!(next.token() > leader.token());
}

/// A member whose clock is ahead by as much ends the leader's time that much sooner.
#[tokio::test(start_paused = true)]
async fn the_grace_of_the_handle_comes_on_top_of_the_time_that_a_leader_has_to_stop() {
    let kept = async |seal: Mongoseal, stop_margin| {
        let leader = seal.campaign("k").ttl(secs(30)).stop_margin(stop_margin).await.unwrap();
        let holders = seal.inspect("k").await.unwrap().unwrap().holders;
        (holders[0].remaining.unwrap(), leader.lease().remaining())
    };
    for stop_margin in [secs(0), secs(5)] {
        let leads = secs(30).checked_sub(stop_margin).unwrap();
        for (builder, grace) in [
            (Mongoseal::builder(), GRACE),
            (Mongoseal::builder().grace(secs(2)), secs(2)),
            (Mongoseal::builder().grace(secs(0)), secs(0)),
        ] {
            let (store, leader) = kept(builder.in_memory().unwrap(), stop_margin).await;
            assert_eq!(store, secs(30) + grace);
            assert!(leader <= leads, "{leader:?}");
        }
    }
    let all = Mongoseal::builder().retention(secs(30)).in_memory().unwrap();
    assert_eq!(kept(all, secs(5)).await.0, secs(30), "no longer than idle records are kept");
}

#[tokio::test(start_paused = true)]
async fn durations_that_do_not_fit_are_refused_before_anything_is_sent() {
    let store = Faulty::new();
    let campaign = || store.seal().campaign("k").ttl(secs(30)).wait(secs(1));
    for (bad, says) in [
        (
            campaign().stop_margin(secs(16)),
            "`stop_margin` cannot be 16 s if the ttl is 30 s: choose up to half the ttl",
        ),
        (campaign().stop_margin(secs(10)).refresh_every(secs(11)), "up to half the ttl"),
        (campaign().refresh_every(secs(0)), "`refresh_every` cannot be 0 s"),
        (campaign().ttl(secs(0)), "a ttl must be from 10 ms to 365 d and 0 s is not"),
        (campaign().ttl(secs(48 * 3600)), "exceed the retention of idle records"),
        (campaign().value("x".repeat(5_000)), "at most 4096 bytes"),
    ] {
        let error = bad.await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(says), "{error}");
    }
    assert!(store.requests().is_empty());
    for good in [campaign().stop_margin(secs(15)), campaign().stop_margin(secs(0)).refresh_every(secs(15))] {
        good.await.unwrap().resign().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_campaign_waits_no_longer_than_it_says_and_one_that_is_dropped_withdraws() {
    let store = Faulty::new();
    let leader = store.seal().campaign("k").await.unwrap();
    let other = store.seal();
    assert!(matches!(other.campaign("k").wait(secs(5)).await, Err(Error::Held { .. })));
    assert!(tokio::time::timeout(secs(5), other.campaign("k").into_future()).await.is_err());
    leader.resign().await.unwrap();
    tokio::time::sleep(millis(1)).await;
    assert_eq!(other.leader("k").await.unwrap(), None);
    assert!(matches!(Mongoseal::in_memory().campaign("").await, Err(Error::Invalid { .. })));
}

/// What is observed next, within a while.
async fn next(leaders: &mut LeaderStream) -> Option<String> {
    let next = tokio::time::timeout(secs(3600), leaders.next()).await.expect("something is told");
    next.unwrap().unwrap().map(|leader| leader.value)
}

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
    let began = tokio::time::Instant::now();
    // As one that dies: nobody touches the record.
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Fail));
    assert_eq!(next(&mut leaders).await, None);
    assert!(began.elapsed() >= secs(29) && began.elapsed() < secs(31), "{:?}", began.elapsed());
    drop(three);
    let seen = store.seal();
    let mut present = seen.observe("k").await.unwrap();
    assert_eq!(next(&mut present).await, None, "its time is over, whatever the record says");
    seen.shutdown().await;
    assert!(matches!(present.next().await, Some(Err(Error::Invalid { .. }))));
    assert!(present.next().await.is_none());
}

/// What the calls of an elector said.
type Said = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

fn elector(store: &Faulty, value: &str, said: &Said) -> mongoseal::Elector {
    let (leads, stops, who) = (said.clone(), said.clone(), value.to_owned());
    store
        .seal()
        .campaign("k")
        .value(value)
        .elector()
        .on_new_leader(move |leader| leads.lock().unwrap().push(format!("{} leads", leader.value)))
        .on_stopped(move || stops.lock().unwrap().push(format!("{who} stops")))
}

#[tokio::test(start_paused = true)]
async fn an_elector_works_while_it_leads_and_stands_again_where_it_lost() {
    let store = Faulty::new();
    let said = Said::default();
    let mut rounds = 0;
    let work = said.clone();
    let running = elector(&store, "one", &said).run(async move |leader| {
        rounds += 1;
        work.lock().unwrap().push(format!("round {rounds}"));
        if rounds == 1 {
            std::future::pending::<()>().await;
        }
        Ok::<_, Error>((rounds, leader.token()))
    });
    let revoking = store.clone();
    let revoke = async move {
        tokio::time::sleep(secs(10)).await;
        revoking.seal().revoke("k").await.unwrap();
    };
    let (done, ()) = tokio::join!(running, revoke);
    let (rounds, token) = done.unwrap().expect("its work came to its end");
    assert_eq!((rounds, store.seal().leader("k").await.unwrap()), (2, None), "and it has resigned");
    assert_eq!(store.seal().inspect("k").await.unwrap().unwrap().version, token);
    let said = said.lock().unwrap().clone();
    let only = |what: &str| said.iter().filter(|said| said.ends_with(what)).count();
    assert_eq!((only("one leads"), only("one stops")), (2, 2), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_told_to_end_stops_its_work_and_makes_way() {
    let store = Faulty::new();
    let said = Said::default();
    let end = CancellationToken::new();
    let first = elector(&store, "one", &said).until(end.clone());
    let readiness = first.readiness();
    assert!(readiness.check().unwrap_err().to_string().contains("has not been run"));
    let first = tokio::spawn(first.run(async |_| std::future::pending::<mongoseal::Result<()>>().await));
    tokio::time::sleep(secs(1)).await;
    let second_end = CancellationToken::new();
    let second = elector(&store, "two", &said).until(second_end.clone());
    let second = tokio::spawn(second.run(async |_| std::future::pending::<mongoseal::Result<()>>().await));
    tokio::time::sleep(secs(600)).await;
    readiness.check().unwrap();
    end.cancel();
    assert!(first.await.unwrap().unwrap().is_none());
    assert!(readiness.check().unwrap_err().to_string().contains("has ended"));
    tokio::time::sleep(secs(1)).await;
    second_end.cancel();
    assert!(second.await.unwrap().unwrap().is_none());
    let said = said.lock().unwrap().clone();
    assert_eq!(said, ["one leads", "one leads", "one stops", "two leads", "two stops"], "each is told of the other");
}

#[tokio::test(start_paused = true)]
async fn an_elector_asks_through_what_passes_and_ends_with_what_does_not() {
    let store = Faulty::new();
    let said = Said::default();
    store.always(Fault::Fail);
    let healing = store.clone();
    tokio::spawn(async move {
        tokio::time::sleep(secs(60)).await;
        healing.heal();
    });
    assert_eq!(elector(&store, "one", &said).run(async |_| Ok::<_, Error>(42)).await.unwrap(), Some(42));
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Refuse));
    let refused = elector(&store, "one", &said).run(async |_| Ok::<_, Error>(42)).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })));
    let mistaken = store.seal().campaign("k").ttl(secs(30)).stop_margin(secs(20)).elector();
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
    async fn sees_it(store: &Faulty, said: &Said) -> Result<(), Job> {
        // Whatever is done with the value: the error is not in it.
        elector(store, "one", said).run(async |_| Err::<(), _>(Job::Full(7))).await?;
        Ok(())
    }
    let (store, said) = (Faulty::new(), Said::default());
    assert_eq!(sees_it(&store, &said).await, Err(Job::Full(7)));
    assert_eq!(store.seal().leader("k").await.unwrap(), None);
    assert!(said.lock().unwrap().contains(&"one stops".to_owned()));
    store.script(|call| matches!(call, Call::Apply(_)).then_some(Fault::Refuse));
    let refused = elector(&store, "one", &said).run(async |_| Err::<(), _>(Job::Full(7))).await;
    assert!(matches!(&refused, Err(Job::Seal(why)) if why.contains("refuses")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_work_that_has_lost_its_leadership_is_dropped_and_the_elector_stands_again() {
    let (store, said) = (Faulty::new(), Said::default());
    let other = store.seal();
    let mut rounds = 0;
    let done = elector(&store, "one", &said).run(async |leader| -> mongoseal::Result<u32> {
        rounds += 1;
        if rounds == 1 {
            other.revoke("k").await?;
            // The work sees it before the elector does.
            return leader.lease().verify().await.map(|()| rounds);
        }
        Ok(rounds)
    });
    assert_eq!(done.await.unwrap(), Some(2));
}

/// A spawned elector whose work uses what it owns, its leader and values of other calls across awaits.
#[tokio::test(start_paused = true)]
async fn an_elector_can_run_on_a_task_of_its_own() {
    let (store, said) = (Faulty::new(), Said::default());
    let (seal, mut jobs) = (store.seal(), vec!["mail".to_owned()]);
    let task = tokio::spawn(elector(&store, "one", &said).run(async move |leader| -> mongoseal::Result<usize> {
        leader.lease().verify().await?;
        jobs.push(format!("{:?}", seal.leader("k").await?.map(|leader| leader.value)));
        leader.proclaim(jobs[0].as_str()).await?;
        Ok(jobs.len())
    }));
    assert_eq!(task.await.unwrap().unwrap(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_dropped_resigns() {
    let store = Faulty::new();
    let running =
        store.seal().campaign("k").elector().run(async |_| std::future::pending::<mongoseal::Result<()>>().await);
    assert!(tokio::time::timeout(secs(100), running).await.is_err());
    tokio::time::sleep(millis(1)).await;
    assert_eq!(store.seal().leader("k").await.unwrap(), None);
}

#[test]
fn a_wedged_elector_is_told_from_another_thread() {
    let seal = Mongoseal::in_memory();
    let elector = seal.campaign("k").ttl(secs(1)).elector();
    let readiness = elector.readiness();
    let (tell, told) = std::sync::mpsc::channel();
    let probe = std::thread::spawn(move || {
        told.recv().unwrap();
        assert!(readiness.check().is_ok());
        // While the only thread of the runtime is blocked.
        let deadline = std::time::Instant::now() + secs(60);
        while readiness.check().is_ok() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(millis(5));
        }
        readiness.check().unwrap_err().to_string()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let running = elector.run(async move |_| {
            // It stands again, and leads again, when nobody asks any more.
            tell.send(()).ok();
            std::thread::sleep(secs(2));
            Ok::<_, Error>(())
        });
        drop(tokio::time::timeout(millis(100), running).await);
    });
    let said = probe.join().unwrap();
    assert!(said.contains("no sign of life"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_ends_with_an_error_says_that_its_work_has_stopped() {
    for by_shutdown in [true, false] {
        let store = Faulty::new();
        let said = Said::default();
        store.script(|call| matches!(call, Call::Follow).then_some(Fault::Delay(secs(2))));
        let seal = store.seal();
        let (leads, stops) = (said.clone(), said.clone());
        let elector = seal
            .campaign("k")
            .elector()
            .on_new_leader(move |_| leads.lock().unwrap().push("leads".into()))
            .on_stopped(move || stops.lock().unwrap().push("stops".into()));
        let running = tokio::spawn(elector.run(async |_| std::future::pending::<mongoseal::Result<()>>().await));
        tokio::time::sleep(secs(1)).await;
        if by_shutdown {
            seal.shutdown().await;
        } else {
            // Who observes is refused, and who leads is not.
            store.script(|call| matches!(call, Call::Follow | Call::Read).then_some(Fault::Refuse));
        }
        assert!(matches!(running.await.unwrap(), Err(Error::Invalid { .. })));
        assert_eq!(*said.lock().unwrap(), ["leads", "stops"], "by shutdown: {by_shutdown}");
        store.heal();
        assert_eq!(store.seal().leader("k").await.unwrap(), None, "and it has resigned");
    }
}

#[tokio::test]
async fn an_elector_is_ready_when_its_work_begins() {
    let seal = Mongoseal::in_memory();
    let elector = seal.campaign("scheduler").elector();
    let readiness = elector.readiness();
    let ended = elector.run(async |_leader| readiness.check()).await;
    assert_eq!(ended.unwrap(), Some(()));
}

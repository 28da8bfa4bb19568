//! The leadership as a signal, on paused time.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
};

use mongoseal::{
    FencingToken, Mongoseal,
    election::{Elector, Leader, LeadershipState, LeadershipWatch},
    record::Request,
    store::MemoryStore,
    testing::ManualClock,
};

use crate::{
    candidates::{Candidate, Log, until_some, waiters},
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

/// A state in short.
#[derive(Debug, PartialEq)]
enum Seen {
    Leads(FencingToken),
    Follows(String, FencingToken),
    None,
}

impl From<LeadershipState> for Seen {
    fn from(state: LeadershipState) -> Self {
        match state {
            LeadershipState::Leader { token, .. } => Self::Leads(token),
            LeadershipState::Follower { leader } => Self::Follows(leader.value, leader.token),
            _ => Self::None,
        }
    }
}

/// The next change, within an hour.
async fn next(leadership: &mut LeadershipWatch) -> Option<Seen> {
    tokio::time::timeout(secs(3600), leadership.changed()).await.expect("a change").map(Seen::from)
}

/// All changes of the next seconds.
async fn changes(leadership: &mut LeadershipWatch, seconds: u64) -> Vec<Seen> {
    let (mut seen, end) = (Vec::new(), tokio::time::Instant::now() + secs(seconds));
    while let Ok(Some(state)) = tokio::time::timeout_at(end, leadership.changed()).await {
        seen.push(state.into());
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn each_new_leader_and_value_is_a_change_once_and_a_refresh_is_none() {
    let store = Faulty::new();
    let leader = store.seal().campaign("k").value("one").await.unwrap();
    let two = Candidate::start(&store.seal(), "two", &Log::default());
    let (mut signal, token) = (two.leadership.clone(), leader.token());
    assert_eq!(next(&mut signal).await, Some(Seen::Follows("one".into(), token)));
    assert_eq!(changes(&mut signal, 600).await, [], "refreshes");
    leader.proclaim("one again").await.unwrap();
    assert_eq!(next(&mut signal).await, Some(Seen::Follows("one again".into(), token)));
    let mut later = signal.clone();
    leader.resign().await.unwrap();
    let led = two.leads().await;
    assert!(led > token);
    for seen_once in [&mut signal, &mut later] {
        assert_eq!(next(seen_once).await, Some(Seen::Leads(led)), "a clone has seen what the original has seen");
    }
    assert_eq!(changes(&mut signal, 600).await, []);
    store.seal().revoke("k").await.unwrap();
    assert_eq!(next(&mut signal).await, Some(Seen::None));
    let again = two.leads().await;
    assert!(again > led);
    assert_eq!(next(&mut signal).await, Some(Seen::Leads(again)));
    two.finish().await;
    assert_eq!(next(&mut signal).await, Some(Seen::None), "the elector has ended");
    assert_eq!((next(&mut signal).await, next(&mut signal).await), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_of_changed_loses_no_change() {
    let store = Faulty::new();
    let two = Candidate::start_with(&store.seal(), "two", &Log::default(), false);
    let mut signal = two.leadership.clone();
    let mut call = Box::pin(signal.changed());
    assert!(tokio::time::timeout(secs(1), &mut call).await.is_err());
    let leader = store.seal().campaign("k").value("one").await.unwrap();
    two.follows("one").await;
    drop(call);
    assert_eq!(next(&mut signal).await, Some(Seen::Follows("one".into(), leader.token())));
}

#[tokio::test(start_paused = true)]
async fn an_elector_observes_once_if_its_leadership_is_read_and_otherwise_sends_nothing_more() {
    /// The observations and the reads of an elector that leads for 20 seconds.
    async fn sent(prepare: impl FnOnce(Elector) -> Elector) -> [usize; 2] {
        let (store, counts) = (Faulty::new(), Arc::new(Mutex::new([0; 2])));
        let counted = Arc::clone(&counts);
        store.script(move |call| {
            let mut counted = counted.lock().unwrap();
            counted[0] += usize::from(matches!(call, Call::Follow));
            counted[1] += usize::from(matches!(call, Call::Read));
            None
        });
        let work = async |_: &Leader| -> mongoseal::Result<()> {
            tokio::time::sleep(secs(20)).await;
            Ok(())
        };
        prepare(store.seal().campaign("k").elector()).run(work).await.unwrap();
        *counts.lock().unwrap()
    }
    let [none, reads] = sent(|elector| elector).await;
    assert_eq!(none, 0);
    assert_eq!(sent(|elector| elector.on_new_leader(|_| {})).await, [1, reads]);
    let mut kept = Vec::new();
    for with_callback in [false, true] {
        let sent = sent(|elector| {
            kept.extend([elector.leadership(), elector.leadership()]);
            if with_callback { elector.on_new_leader(|_| {}) } else { elector }
        });
        assert_eq!(sent.await, [1, reads], "with a callback: {with_callback}");
    }
    let dropped = sent(|elector| {
        drop(elector.leadership());
        elector
    });
    assert_eq!(dropped.await, [0, reads], "no value shows it");
}

/// Also from a thread without a runtime.
#[tokio::test]
async fn a_leader_whose_runtime_was_not_driven_past_its_deadline_does_not_lead_and_cannot_step_down() {
    let clock = ManualClock::new();
    let seal = Mongoseal::in_memory_on(&MemoryStore::on_clock(clock));
    let one = Candidate::start(&seal, "one", &Log::default());
    let first = one.leads().await;
    clock.advance(secs(31));
    let signal = one.leadership.clone();
    let seen = std::thread::spawn(move || (signal.state(), signal.is_leader(), signal.step_down()));
    // The record still names this candidate, which does not follow itself.
    assert_eq!(seen.join().unwrap(), (LeadershipState::NoLeader, false, false));
    let second = until_some(|| {
        clock.advance(secs(1));
        one.token().filter(|token| *token != first)
    });
    assert!(second.await > first);
    one.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_lost_its_leadership_does_not_follow_itself() {
    let store = Faulty::new();
    let one = Candidate::start(&store.seal(), "one", &Log::default());
    let mut signal = one.leadership.clone();
    let first = one.leads().await;
    assert_eq!(next(&mut signal).await, Some(Seen::Leads(first)));
    // Each refresh fails. The record names this candidate until the ttl and the grace have passed.
    store.script(|call| matches!(call, Call::Apply(Request::Refresh(_))).then_some(Fault::Fail));
    assert_eq!(next(&mut signal).await, Some(Seen::None));
    let named = store.seal().leader("k").await.unwrap().map(|leader| leader.token);
    assert_eq!((named, one.token()), (Some(first), None));
    store.heal();
    let second = one.leads().await;
    assert!(second > first);
    assert_eq!(changes(&mut signal, 100).await, [Seen::Leads(second)]);
    one.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_does_not_know_yet_that_it_leads_does_not_follow_itself() {
    let store = Faulty::new();
    store.script(|call| matches!(call, Call::Apply(Request::Acquire(_))).then_some(Fault::DelayReply(millis(900))));
    let (log, seal) = (Log::default(), store.seal());
    let one = Candidate::start(&seal, "one", &log);
    let mut signal = one.leadership.clone();
    tokio::time::sleep(millis(500)).await;
    assert_eq!(seal.leader("k").await.unwrap().map(|leader| leader.value).as_deref(), Some("one"));
    assert_eq!(one.leadership.state(), LeadershipState::NoLeader);
    // It withdraws, and the store shows it as the leader until the reply has come and the lease is released.
    one.health.send_replace(false);
    assert_eq!(changes(&mut signal, 100).await, []);
    assert_eq!((seal.leader("k").await.unwrap(), log.take()), (None, vec![]));
    one.health.send_replace(true);
    assert_eq!(changes(&mut signal, 100).await, [Seen::Leads(one.leads().await)]);
    one.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_observation_shows_no_leader_of_the_time_before_an_own_leadership() {
    let store = Faulty::new();
    store.script(|call| matches!(call, Call::Follow).then_some(Fault::DelayReply(secs(5))));
    let leader = store.seal().campaign("k").value("one").await.unwrap();
    let two = Candidate::start(&store.seal(), "two", &Log::default());
    let mut signal = two.leadership.clone();
    assert_eq!(next(&mut signal).await, Some(Seen::Follows("one".into(), leader.token())));
    leader.proclaim("one again").await.unwrap();
    tokio::time::sleep(secs(1)).await;
    leader.resign().await.unwrap();
    assert_eq!(next(&mut signal).await, Some(Seen::Leads(two.leads().await)));
    // It resigns before it observes the new value of the earlier leader.
    two.health.send_replace(false);
    assert_eq!(changes(&mut signal, 100).await, [Seen::None]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_steps_down_makes_way_for_those_that_wait_also_of_its_handle_and_queues_last() {
    let (store, log) = (Faulty::new(), Log::default());
    let (seal, mut all) = (store.seal(), Vec::new());
    for (behind, (value, seal)) in [("one", &seal), ("two", &seal), ("three", &store.seal())].into_iter().enumerate() {
        all.push(Candidate::start(seal, value, &log));
        all[0].leads().await;
        waiters(&store.seal(), behind).await;
    }
    let mut last = all[0].leads().await;
    assert_eq!(log.take(), ["one works"]);
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 1)] {
        let name = |at: usize| ["one", "two", "three"][at];
        assert!(!all[to].leadership.step_down(), "it does not lead");
        assert!(all[from].leadership.step_down());
        assert!(all[from].leadership.step_down(), "again, before the elector runs");
        let token = all[to].leads().await;
        assert!(token > last);
        last = token;
        let said = ["is dropped", "stops"].map(|what| format!("{} {what}", name(from)));
        assert_eq!(log.take(), [said[0].clone(), said[1].clone(), format!("{} works", name(to))]);
        all[from].follows(name(to)).await;
        waiters(&store.seal(), 2).await;
    }
    tokio::time::sleep(secs(600)).await;
    assert_eq!(all[1].token(), Some(last), "each step-down ended one leadership");

    all.remove(2).finish().await;
    all.remove(0).finish().await;
    log.take();
    assert!(all[0].leadership.step_down());
    let next = until_some(|| all[0].token().filter(|token| *token > last)).await;
    assert_eq!(log.take(), ["two is dropped", "two stops", "two works"], "without another candidate");
    tokio::time::sleep(secs(600)).await;
    assert_eq!(all[0].token(), Some(next));
}

/// The step-down comes before, at and after the moment at which the elector notices the loss.
#[tokio::test(start_paused = true)]
async fn a_step_down_at_the_moment_of_a_loss_ends_no_later_leadership() {
    let (mut stepped_down, mut refused) = (0, 0);
    for turns in 0..40 {
        let (store, log) = (Faulty::new(), Log::default());
        let (seal, other) = (store.seal(), store.seal());
        let one = Candidate::start(&seal, "one", &log);
        let first = one.leads().await;
        // By then the handle is notified of revocations.
        tokio::time::sleep(secs(10)).await;
        let revoked = tokio::spawn(other.revoke("k").token(first).into_future());
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        let led = one.token();
        assert_eq!(one.leadership.step_down(), led.is_some(), "after {turns} turns");
        *if led.is_some() { &mut stepped_down } else { &mut refused } += 1;
        revoked.await.unwrap().unwrap();
        let second = until_some(|| one.token().filter(|token| *token != first)).await;
        // Longer than a ttl.
        tokio::time::sleep(secs(31)).await;
        assert_eq!(one.token(), Some(second), "after {turns} turns");
        let expected = ["one works", "one is dropped", "one stops", "one works"];
        assert_eq!(log.take(), expected, "after {turns} turns");
    }
    assert!(stepped_down > 0 && refused > 0, "{stepped_down} before, {refused} at or after the loss");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_leaves_no_leader_and_ends_the_signal() {
    let store = Faulty::new();
    let one = Candidate::start(&store.seal(), "one", &Log::default());
    let mut signal = one.leadership.clone();
    assert_eq!(next(&mut signal).await, Some(Seen::Leads(one.leads().await)));
    one.running.abort();
    assert_eq!(next(&mut signal).await, Some(Seen::None));
    assert_eq!((next(&mut signal).await, signal.state()), (None, LeadershipState::NoLeader));
    assert!(!signal.step_down());
    // The signal is still there, and keeps no lease.
    tokio::time::sleep(millis(1)).await;
    assert_eq!(store.seal().leader("k").await.unwrap(), None);
    let elector = store.seal().campaign("k").elector();
    let mut never_run = elector.leadership();
    drop(elector);
    assert_eq!(next(&mut never_run).await, None);
}

//! Electors that lead and wait only while they are healthy, on paused time.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use mongoseal::{CancellationToken, FencingToken, LeadershipState, record::Request};
use tokio::sync::watch;

use crate::{
    by_length,
    candidates::{Candidate, Log, waiters},
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn a_leader_that_becomes_unhealthy_resigns_and_observes_and_is_ready_and_queues_again_when_it_is_healthy() {
    let (store, log) = (Faulty::new(), Log::default());
    let one = Candidate::start(&store.seal(), "one", &log);
    let first = one.leads().await;
    let two = Candidate::start(&store.seal(), "two", &log);
    waiters(&store.seal(), 1).await;
    one.health.send_replace(false);
    let second = two.leads().await;
    assert!(second > first);
    assert_eq!(log.take(), ["one works", "one is dropped", "one stops", "two works"]);
    one.follows("two").await;
    tokio::time::sleep(secs(600)).await;
    one.readiness.check().unwrap();
    waiters(&store.seal(), 0).await;
    one.health.send_replace(true);
    waiters(&store.seal(), 1).await;
    assert_eq!((log.take(), two.token()), (vec![], Some(second)), "it waits");
    two.finish().await;
    assert!(one.leads().await > second);
    assert_eq!(log.take(), ["two is dropped", "two stops", "one works"]);
    one.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_becomes_unhealthy_gives_up_its_place_at_once() {
    let (store, log) = (Faulty::new(), Log::default());
    let one = Candidate::start(&store.seal(), "one", &log);
    one.leads().await;
    let two = Candidate::start(&store.seal(), "two", &log);
    waiters(&store.seal(), 1).await;
    let three = Candidate::start(&store.seal(), "three", &log);
    waiters(&store.seal(), 2).await;
    two.health.send_replace(false);
    tokio::time::sleep(millis(1)).await;
    waiters(&store.seal(), 1).await;
    two.follows("one").await;
    two.health.send_replace(true);
    waiters(&store.seal(), 2).await;
    log.take();
    one.finish().await;
    three.leads().await;
    two.follows("three").await;
    three.finish().await;
    two.leads().await;
    let works: Vec<_> = log.take().into_iter().filter(|what| what.ends_with("works")).collect();
    assert_eq!(works, ["three works", "two works"]);
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_unhealthy_from_the_start_does_not_campaign() {
    let (store, log) = (Faulty::new(), Log::default());
    let one = Candidate::start_with(&store.seal(), "one", &log, false);
    tokio::time::sleep(secs(600)).await;
    assert!(store.requests().is_empty());
    one.readiness.check().unwrap();
    let two = Candidate::start(&store.seal(), "two", &log);
    one.follows("two").await;
    two.finish().await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!((one.leadership.state(), log.take().contains(&"one works".into())), (LeadershipState::NoLeader, false));
    one.health.send_replace(true);
    one.leads().await;
    one.finish().await;
    let never = Candidate::start_with(&store.seal(), "never", &log, false);
    tokio::time::sleep(secs(1)).await;
    never.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_sender_leaves_the_last_health() {
    let (store, log) = (Faulty::new(), Log::default());
    let mut electors = Vec::new();
    for is_healthy in [false, true] {
        let (health, receiver) = watch::channel(is_healthy);
        let end = CancellationToken::new();
        let elector = store.seal().campaign("k").elector().health(receiver).until(end.clone());
        let (leadership, log) = (elector.leadership(), log.clone());
        drop(health);
        let running = tokio::spawn(elector.run(async move |_| {
            log.note(format!("{is_healthy} works"));
            std::future::pending::<mongoseal::Result<()>>().await
        }));
        electors.push((leadership, end, running));
    }
    tokio::time::sleep(secs(600)).await;
    assert_eq!((electors[0].0.is_leader(), electors[1].0.is_leader()), (false, true));
    assert_eq!(log.take(), ["true works"]);
    for (_, end, running) in electors {
        end.cancel();
        assert_eq!(running.await.unwrap().unwrap(), None);
    }
}

/// Three candidates whose health changes at random, on a store with slow and lost replies.
#[tokio::test(start_paused = true)]
async fn health_that_flaps_makes_no_two_leaders_and_tokens_grow() {
    for seed in 0..by_length(7, 20) {
        let (store, mut random) = (Faulty::new(), fastrand::Rng::with_seed(seed));
        let mut faults = random.fork();
        store.script(move |call| {
            let is_request = matches!(call, Call::Apply(Request::Acquire(_) | Request::Leave(_) | Request::Release(_)));
            match faults.u8(..20) {
                0 if is_request => Some(Fault::LoseReply),
                1..6 if is_request => Some(Fault::DelayReply(millis(faults.u64(..200)))),
                6..9 if is_request => Some(Fault::Delay(millis(faults.u64(..200)))),
                _ => None,
            }
        });
        let (inside, tokens) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::<FencingToken>::new())));
        let mut electors = Vec::new();
        for _ in 0..3 {
            let (health, receiver) = watch::channel(true);
            let end = CancellationToken::new();
            let elector = store.seal().campaign("k").ttl(secs(3)).elector().health(receiver).until(end.clone());
            let (leadership, inside, tokens) = (elector.leadership(), inside.clone(), tokens.clone());
            let running = tokio::spawn(elector.run(async move |leader| {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "seed {seed}: two leaders");
                let _out = Leaves(&inside);
                tokens.lock().unwrap().push(leader.token());
                std::future::pending::<mongoseal::Result<()>>().await
            }));
            electors.push((leadership, health, end, running));
        }
        for _ in 0..200 {
            let (_, health, ..) = &electors[random.usize(..3)];
            health.send_modify(|is_healthy| *is_healthy = !*is_healthy);
            for _ in 0..random.u8(..8) {
                tokio::task::yield_now().await;
            }
            if random.bool() {
                tokio::time::sleep(millis(random.u64(..300))).await;
            }
            let leaders = electors.iter().filter(|(leadership, ..)| leadership.is_leader()).count();
            assert!(leaders <= 1, "seed {seed}: {leaders} leaders");
        }
        store.heal();
        for (_, health, ..) in &electors {
            health.send_replace(true);
        }
        tokio::time::sleep(secs(60)).await;
        assert_eq!(electors.iter().filter(|(leadership, ..)| leadership.is_leader()).count(), 1, "seed {seed}");
        for (_, _, end, running) in electors {
            end.cancel();
            assert_eq!(running.await.unwrap().unwrap(), None);
        }
        let tokens = tokens.lock().unwrap();
        assert!(tokens.len() > 10 && tokens.is_sorted_by(|a, b| a < b), "seed {seed}: {tokens:?}");
    }
}

/// Counts a leader out when its work is dropped.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

//! Electors that lead and wait only while they are healthy, on paused time.

use mongoseal::{election::LeadershipState, record::Request};
use tokio::sync::watch;

use crate::{
    by_length,
    candidates::{Candidate, Log, waiters},
    faulty::{Call, Fault, Faulty},
    millis, secs,
};

#[tokio::test(start_paused = true)]
async fn who_waits_and_becomes_unhealthy_leaves_the_queue_observes_and_is_ready_and_queues_again_when_it_is_healthy() {
    let (store, log) = (Faulty::new(), Log::default());
    let one = Candidate::start(&store.seal(), "one", &log);
    one.leads().await;
    let two = Candidate::start(&store.seal(), "two", &log);
    waiters(&store.seal(), 1).await;
    two.health.send_replace(false);
    waiters(&store.seal(), 0).await;
    two.follows("one").await;
    tokio::time::sleep(secs(600)).await;
    two.readiness.check().unwrap();
    two.health.send_replace(true);
    waiters(&store.seal(), 1).await;
    one.finish().await;
    two.leads().await;
    two.finish().await;
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
    let candidates = [false, true].map(|is_healthy| {
        let mut candidate = Candidate::start_with(&store.seal(), "k", &log, is_healthy);
        candidate.health = watch::channel(is_healthy).0;
        candidate
    });
    tokio::time::sleep(secs(600)).await;
    assert_eq!(candidates.each_ref().map(|candidate| candidate.leadership.is_leader()), [false, true]);
    for candidate in candidates {
        candidate.finish().await;
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
        let log = Log::default();
        let candidates = ["one", "two", "three"].map(|value| Candidate::start(&store.seal(), value, &log));
        let mut last = None;
        for _ in 0..200 {
            candidates[random.usize(..3)].health.send_modify(|is_healthy| *is_healthy = !*is_healthy);
            for _ in 0..random.u8(..8) {
                tokio::task::yield_now().await;
            }
            if random.bool() {
                tokio::time::sleep(millis(random.u64(..300))).await;
            }
            let tokens: Vec<_> = candidates.iter().filter_map(Candidate::token).collect();
            assert!(
                tokens.len() <= 1 && tokens.iter().all(|token| last <= Some(*token)),
                "{seed}: {last:?} {tokens:?}"
            );
            last = tokens.first().copied().or(last);
        }
        store.heal();
        for candidate in &candidates {
            candidate.health.send_replace(true);
        }
        tokio::time::sleep(secs(60)).await;
        assert_eq!(candidates.iter().filter_map(Candidate::token).count(), 1, "seed {seed}");
        for candidate in candidates {
            candidate.finish().await;
        }
        // The work of each has ended before that of the next one begins.
        let turns = log.take();
        let is_turn = |turn: &[String]| {
            let who = turn[0].trim_end_matches(" works");
            turn[1..] == [format!("{who} is dropped"), format!("{who} stops")]
        };
        assert!(turns.len() > 30 && turns.chunks(3).all(is_turn), "seed {seed}: {turns:?}");
    }
}

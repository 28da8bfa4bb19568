//! The leadership as a signal, on a real server.

use std::future;

use mongoseal::{CancellationToken, Elector, LeadershipState, LeadershipWatch, Mongoseal};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use crate::{TestDatabase, eventually, secs};

/// A handle with a client of its own, as another process has.
async fn process(db: &TestDatabase, name: &str) -> Mongoseal {
    Mongoseal::builder().database(name).connect(db.set.uri()).await.unwrap()
}

/// Runs work that ends with the leadership.
fn run(elector: Elector) -> JoinHandle<mongoseal::Result<Option<()>>> {
    tokio::spawn(elector.run(async |_leader| future::pending().await))
}

/// Waits for the state that a check accepts.
async fn reach(leadership: &mut LeadershipWatch, mut check: impl FnMut(&LeadershipState) -> bool) {
    let reached = async { while !leadership.changed().await.is_some_and(|state| check(&state)) {} };
    assert!(timeout(secs(30), reached).await.is_ok(), "{leadership:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_sees_the_value_of_a_leader_of_another_process_and_leads_after_it() {
    let name = "mongoseal_leadership";
    let db = TestDatabase::new(name).await;
    let (first, second) = (process(&db, name).await, process(&db, name).await);
    let leader = first.campaign("k").value("one").await.unwrap();
    let (token, end) = (leader.token(), CancellationToken::new());
    let elector = second.campaign("k").value("two").elector().until(end.clone());
    let mut leadership = elector.leadership();
    let running = run(elector);
    let follows = |state: &LeadershipState, value: &str| match state {
        LeadershipState::Follower { leader } => leader.value == value && leader.token == token,
        _ => false,
    };
    reach(&mut leadership, |state| follows(state, "one")).await;
    leader.proclaim("one again").await.unwrap();
    reach(&mut leadership, |state| follows(state, "one again")).await;
    leader.resign().await.unwrap();
    reach(&mut leadership, |state| matches!(state, LeadershipState::Leader { token: next, .. } if *next > token)).await;
    end.cancel();
    assert_eq!(running.await.unwrap().unwrap(), None);
    assert_eq!(leadership.state(), LeadershipState::NoLeader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leadership_that_ends_by_a_step_down_or_by_bad_health_goes_to_the_other_process_and_comes_back() {
    let name = "mongoseal_stepped_down";
    let db = TestDatabase::new(name).await;
    let (end, mut candidates) = (CancellationToken::new(), Vec::new());
    for value in ["one", "two"] {
        let seal = process(&db, name).await;
        let (health, is_healthy) = watch::channel(true);
        let elector = seal.campaign("k").value(value).elector().health(is_healthy).until(end.clone());
        let mut leadership = elector.leadership();
        let running = run(elector);
        // The second one follows the first one and is queued behind it.
        reach(&mut leadership, |state| *state != LeadershipState::NoLeader).await;
        candidates.push((leadership, health, running, seal));
    }
    let waiters = async |wanted: usize| {
        eventually(secs(30), "the candidates wait", async || {
            db.seal().inspect("k").await.unwrap().is_some_and(|record| record.queue.len() == wanted)
        })
        .await;
    };
    waiters(1).await;
    let [(one, one_health, ..), (two, ..)] = &mut candidates[..] else { unreachable!() };
    assert!(!two.step_down() && one.step_down());
    reach(two, |state| matches!(state, LeadershipState::Leader { .. })).await;
    waiters(1).await;
    reach(one, |state| matches!(state, LeadershipState::Follower { leader } if leader.value == "two")).await;
    assert!(two.step_down());
    reach(one, |state| matches!(state, LeadershipState::Leader { .. })).await;
    waiters(1).await;
    one_health.send_replace(false);
    reach(two, |state| matches!(state, LeadershipState::Leader { .. })).await;
    reach(one, |state| matches!(state, LeadershipState::Follower { leader } if leader.value == "two")).await;
    waiters(0).await;
    one_health.send_replace(true);
    waiters(1).await;
    end.cancel();
    for (_, _, running, seal) in candidates {
        assert_eq!(running.await.unwrap().unwrap(), None);
        seal.shutdown().await;
    }
}

//! Leaders, followers, and the runners of a tick.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use mongoseal::{
    CancellationToken, Error, Mongoseal, OnceOutcome, Result, Sharing, Skipped, Tick,
    election::{Elector, LeadershipState, LeadershipWatch},
};
use mongoseal_test_support::secs;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::world::{World, soon};

/// Runs work that ends with the leadership.
fn run(elector: Elector) -> JoinHandle<Result<Option<()>>> {
    tokio::spawn(elector.run(async |_leader| future::pending().await))
}

/// Waits for the state that a check accepts.
async fn reach(leadership: &mut LeadershipWatch, mut check: impl FnMut(&LeadershipState) -> bool) {
    soon(async { while !leadership.changed().await.is_some_and(|state| check(&state)) {} }).await;
}

fn leads(state: &LeadershipState) -> bool {
    matches!(state, LeadershipState::Leader { .. })
}

fn follows(value: &str) -> impl Fn(&LeadershipState) -> bool {
    move |state| matches!(state, LeadershipState::Follower { leader } if leader.value == value)
}

pub(crate) async fn a_follower_sees_the_value_of_a_leader_of_another_process_and_leads_after_it(world: &World) {
    let leader = world.seal().campaign("k").value("one").await.unwrap();
    let (token, end) = (leader.token(), CancellationToken::new());
    let elector = world.seal().campaign("k").value("two").elector().until(end.clone());
    let mut leadership = elector.leadership();
    let running = run(elector);
    reach(&mut leadership, follows("one")).await;
    leader.proclaim("one again").await.unwrap();
    reach(&mut leadership, follows("one again")).await;
    leader.resign().await.unwrap();
    reach(&mut leadership, |state| matches!(state, LeadershipState::Leader { token: next, .. } if *next > token)).await;
    end.cancel();
    assert_eq!(running.await.unwrap().unwrap(), None);
    assert_eq!(leadership.state(), LeadershipState::NoLeader);
}

pub(crate) async fn a_key_that_is_shared_or_only_kept_has_no_leader(world: &World) {
    let (seal, other) = (world.seal(), world.seal());
    let named = async |key: &str| seal.leader(key).await.unwrap().map(|leader| leader.token);
    let mut leaders = seal.observe("k").await.unwrap();
    let mut next = async || soon(leaders.next()).await.unwrap().unwrap().map(|leader| leader.token);
    assert_eq!(next().await, None);
    let sharer = other.acquire("k").shared_up_to(2).await.unwrap();
    let beside = seal.acquire("k").shared_up_to(2).await.unwrap();
    assert_eq!(named("k").await, None, "of two sharers none is the leader");
    beside.release().await.unwrap();
    assert_eq!(named("k").await, None, "a sharer that is alone does not exclude others");
    let only = sharer.upgrade().await.unwrap();
    assert_eq!(named("k").await, Some(only.token()));
    assert_eq!(next().await, Some(only.token()), "an observer is told of no sharer");
    only.downgrade(Sharing::UpTo(3)).await.unwrap();
    assert_eq!(named("k").await, None);
    assert_eq!(next().await, None, "an observer is told that others are let in");

    other.acquire("kept").min_hold(secs(600)).await.unwrap().release().await.unwrap();
    assert_eq!(named("kept").await, None, "a lease that is released does not lead during its minimum hold");
}

pub(crate) async fn a_leadership_that_ends_by_a_step_down_or_by_bad_health_goes_to_the_other_process_and_comes_back(
    world: &World,
) {
    let (end, mut candidates) = (CancellationToken::new(), Vec::new());
    for value in ["one", "two"] {
        let (health, is_healthy) = watch::channel(true);
        let elector = world.seal().campaign("k").value(value).elector().health(is_healthy).until(end.clone());
        let mut leadership = elector.leadership();
        let running = run(elector);
        // The second one follows the first one and is queued behind it.
        reach(&mut leadership, |state| *state != LeadershipState::NoLeader).await;
        candidates.push((leadership, health, running));
    }
    world.queued(1).await;
    let [(one, one_health, _), (two, ..)] = &mut candidates[..] else { unreachable!() };
    assert!(!two.step_down() && one.step_down());
    reach(two, leads).await;
    world.queued(1).await;
    reach(one, follows("two")).await;
    assert!(two.step_down());
    reach(one, leads).await;
    world.queued(1).await;
    one_health.send_replace(false);
    reach(two, leads).await;
    reach(one, follows("two")).await;
    world.queued(0).await;
    one_health.send_replace(true);
    world.queued(1).await;
    end.cancel();
    for (_, _, running) in candidates {
        assert_eq!(running.await.unwrap().unwrap(), None);
    }
}

pub(crate) async fn of_many_runners_of_a_tick_one_runs_it_and_the_rest_find_it_completed(world: &World) {
    if !world.abilities.has_current_reads {
        let refused = world.seal().once("k", Tick::number(7)).run(async |_| -> Result<()> { Ok(()) }).await;
        assert!(matches!(&refused, Err(Error::Invalid { .. })), "{refused:?}");
        return;
    }
    let (runs, mut runners) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for runner in 0..12 {
        let seal = world.build(Mongoseal::builder().owner(format!("runner-{runner}")));
        let runs = Arc::clone(&runs);
        runners.spawn(async move {
            let once = seal.once("k", Tick::number(7)).wait(secs(3_600));
            let ended = once.run(async |_| -> Result<()> {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            (runner, ended.await.unwrap())
        });
    }
    let (mut ran, mut told) = (Vec::new(), Vec::new());
    for ended in soon(runners.join_all()).await {
        match ended {
            (runner, OnceOutcome::Ran(())) => ran.push(format!("runner-{runner}")),
            (_, OnceOutcome::Skipped(Skipped::AlreadyDone { by, at })) => told.push((by, at)),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!((runs.load(Ordering::Relaxed), ran.len(), told.len()), (1, 1, 11));
    let done = world.seal().inspect("k").await.unwrap().unwrap().done.unwrap();
    assert!(told.iter().all(|(by, at)| *by == ran[0] && *at == done.at), "{told:?} {done:?}");
    assert_eq!((done.tick, &done.by), (7, &ran[0]));
}

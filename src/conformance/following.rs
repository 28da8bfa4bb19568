//! Clauses on following a record. A store that cannot follow must return `Invalid`.

use std::time::Duration;

use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
};

use super::bench::{Bench, leave, once, refresh, release, terms, wait};
use crate::{
    FencingToken, Result,
    record::{BatchRequest, KeyFilter, LeaseSpec, Record, Request, Revoke},
    store::{FollowedState, RecordState},
};

/// Receives the states of a record.
struct Follower {
    states: Receiver<FollowedState>,
    following: JoinHandle<Result<()>>,
}

/// Follows the record of the key. `None`: the store cannot follow, and returned `Invalid`.
async fn follow(bench: &Bench, room: usize) -> Option<(Follower, RecordState)> {
    let (sender, states) = mpsc::channel(room);
    let filter = KeyFilter::Key(bench.key.clone());
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    let following = tokio::spawn(bench.store.follow(&filter, Vec::new(), sender));
    let mut follower = Follower { states, following };
    let Some(first) = follower.receive().await else {
        let ended = follower.following.await.expect("following must not panic");
        assert!(
            matches!(ended, Err(crate::Error::Invalid { .. })),
            "a store that cannot follow must return Invalid: {ended:?}"
        );
        return None;
    };
    let FollowedState::Record { key, state } = first else {
        panic!("the state of the key must be sent first, whether it has a record or not")
    };
    assert_eq!(key, bench.key, "only the states of the key must be sent");
    let complete = follower.receive().await;
    assert!(matches!(complete, Some(FollowedState::Complete { .. })), "the beginning must end: {complete:?}");
    Some((follower, state))
}

impl Follower {
    async fn receive(&mut self) -> Option<FollowedState> {
        let next = tokio::time::timeout(Duration::from_secs(10), self.states.recv()).await;
        next.expect("a state must come within 10 seconds")
    }

    async fn next(&mut self) -> RecordState {
        match self.receive().await.expect("following must go on") {
            FollowedState::Record { state, .. } => state,
            FollowedState::Complete { .. } => panic!("the beginning must end once"),
        }
    }
}

/// A state as it is sent: the store may leave out the queue.
fn as_sent(record: Option<Record>) -> Option<Box<Record>> {
    record.map(|record| Box::new(Record { queue: Vec::new(), ..record }))
}

fn without_queue(state: &RecordState) -> Option<Box<Record>> {
    as_sent(state.record.as_deref().cloned())
}

pub(super) async fn each_state_of_a_record_is_sent_in_order(bench: Bench) {
    let Some((mut follower, first)) = follow(&bench, 1).await else { return };
    assert_eq!(first.record, None, "the first state must be that there is no record");
    let neighbour = bench.beside("neighbour");
    let waiters: Vec<LeaseSpec> = (0..20).map(|number| LeaseSpec { limit: number % 3, ..terms() }).collect();
    let revoke = || Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX });
    let mut requests: Vec<Request> = waiters.iter().map(|waiter| wait(waiter).into()).collect();
    requests.extend(waiters[..8].iter().flat_map(|waiter| [refresh(waiter), leave(waiter)]));
    requests.push(revoke());
    requests.extend(waiters[8..].iter().map(leave));
    // All of it before any state is received, so that the store cannot look up a state late.
    let mut expected = Vec::new();
    for request in requests {
        neighbour.send(once(&terms())).await;
        let before = expected.last().cloned();
        bench.send(request).await;
        let after = Some(bench.record().await);
        if before.as_ref() != Some(&after) {
            expected.push(after);
        }
    }
    // A batch request changes records, too.
    let token = bench.granted(once(&terms())).await;
    expected.push(Some(bench.record().await));
    let leases = [(bench.key.clone(), vec![token])].into();
    assert!(
        bench
            .store
            .apply_batch(&leases, &BatchRequest::Release, bench.deadline())
            .await
            .expect("the batch must be applied")
    );
    expected.push(Some(bench.record().await));
    let mut tick = first.at.tick;
    for (number, after) in expected.into_iter().enumerate() {
        let state = follower.next().await;
        assert_eq!(without_queue(&state), as_sent(after.clone()), "change {number}");
        let last_seen = after.expect("there must be a record").last_seen;
        let late = state.at.now.since(last_seen);
        assert!(
            state.at.now >= last_seen && late < Duration::from_secs(5),
            "state {number} must have the time of its change: {late:?}"
        );
        assert!(state.at.tick > tick, "the hybrid time must grow");
        tick = state.at.tick;
    }
    let more = tokio::time::timeout(Duration::from_millis(200), follower.states.recv()).await;
    assert!(more.is_err(), "nothing else must be sent, and nothing of other keys: {more:?}");
}

pub(super) async fn an_existing_record_is_sent_first(bench: Bench) {
    let holder = terms();
    let token = bench.granted(once(&holder)).await;
    bench.send(wait(&terms())).await;
    let Some((mut follower, first)) = follow(&bench, 64).await else { return };
    let (record, at) = bench.seen().await;
    assert_eq!(without_queue(&first), as_sent(record));
    let at = at.expect("there must be a record");
    assert!(first.at.now <= at.now && first.at.tick <= at.tick, "the first state must be from before this read");
    bench.send(release(&holder, token)).await;
    assert_eq!(without_queue(&follower.next().await), as_sent(Some(bench.record().await)));
}

pub(super) async fn following_ends_with_its_receiver(bench: Bench) {
    let Some((Follower { states, following }, _)) = follow(&bench, 64).await else { return };
    drop(states);
    let ended = tokio::time::timeout(Duration::from_secs(10), following).await;
    let ended = ended.expect("following must end within 10 seconds").expect("following must not panic");
    assert!(ended.is_ok(), "a dropped receiver is no error: {ended:?}");
}

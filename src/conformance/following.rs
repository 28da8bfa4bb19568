//! Clauses on following a record. A store that cannot has to say so.

use std::time::Duration;

use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
};

use super::bench::{Bench, leave, once, refresh, release, terms, wait};
use crate::{
    FencingToken, Result,
    record::{BatchRequest, LeaseSpec, Record, Request, Revoke},
    store::RecordState,
};

/// What is told of a record.
struct Follower {
    states: Receiver<RecordState>,
    following: JoinHandle<Result<()>>,
}

/// Follows the record of the key. `None` where the store cannot, and says so.
async fn follow(bench: &Bench, room: usize) -> Option<(Follower, RecordState)> {
    let (tell, mut states) = mpsc::channel(room);
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    let following = tokio::spawn(bench.store.follow(&bench.key, tell));
    let first = tokio::time::timeout(Duration::from_secs(10), states.recv()).await;
    if let Some(first) = first.expect("it begins within 10 seconds") {
        return Some((Follower { states, following }, first));
    }
    let ended = following.await.expect("it does not panic");
    assert!(matches!(ended, Err(crate::Error::Invalid { .. })), "a store that cannot tell says so: {ended:?}");
    None
}

impl Follower {
    async fn next(&mut self) -> RecordState {
        let next = tokio::time::timeout(Duration::from_secs(10), self.states.recv()).await;
        next.expect("it is told within 10 seconds").expect("somebody tells")
    }
}

/// As it is told: the queue may be left out.
fn told(record: Option<Record>) -> Option<Box<Record>> {
    record.map(|record| Box::new(Record { queue: Vec::new(), ..record }))
}

fn without_queue(state: &RecordState) -> Option<Box<Record>> {
    told(state.record.as_deref().cloned())
}

pub(super) async fn what_each_change_makes_of_a_record_is_told_in_order(bench: Bench) {
    let Some((mut follower, first)) = follow(&bench, 1).await else { return };
    assert_eq!(first.record, None, "first it is told that there is no record");
    let neighbour = bench.beside("neighbour");
    let waiters: Vec<LeaseSpec> = (0..20).map(|number| LeaseSpec { limit: number % 3, ..terms() }).collect();
    let revoke = || Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX });
    let mut requests: Vec<Request> = waiters.iter().map(|waiter| wait(waiter).into()).collect();
    requests.extend(waiters[..8].iter().flat_map(|waiter| [refresh(waiter), leave(waiter)]));
    requests.push(revoke());
    requests.extend(waiters[8..].iter().map(leave));
    // All of it before anything is read, so that nothing can be looked up meanwhile.
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
    // And what is done to many keys at once.
    let token = bench.granted(once(&terms())).await;
    expected.push(Some(bench.record().await));
    let leases = [(bench.key.clone(), vec![token])].into();
    assert!(bench.store.apply_batch(&leases, &BatchRequest::Release, bench.deadline()).await.expect("it is done"));
    expected.push(Some(bench.record().await));
    let mut tick = first.at.tick;
    for (number, after) in expected.into_iter().enumerate() {
        let state = follower.next().await;
        assert_eq!(without_queue(&state), told(after.clone()), "change {number}");
        let last_seen = after.expect("there is a record").last_seen;
        let late = state.at.now.since(last_seen);
        assert!(
            state.at.now >= last_seen && late < Duration::from_secs(5),
            "change {number} says when it was made: {late:?}"
        );
        assert!(state.at.tick > tick, "and on the hybrid clock, which grows");
        tick = state.at.tick;
    }
    let more = tokio::time::timeout(Duration::from_millis(200), follower.states.recv()).await;
    assert!(more.is_err(), "no more than happened is told, and nothing of other keys: {more:?}");
}

pub(super) async fn a_record_that_is_there_is_told_first(bench: Bench) {
    let holder = terms();
    let token = bench.granted(once(&holder)).await;
    bench.send(wait(&terms())).await;
    let Some((mut follower, first)) = follow(&bench, 64).await else { return };
    let (record, at) = bench.seen().await;
    assert_eq!(without_queue(&first), told(record));
    let at = at.expect("there is a record");
    assert!(first.at.now <= at.now && first.at.tick <= at.tick, "seen before the call returned");
    bench.send(release(&holder, token)).await;
    assert_eq!(without_queue(&follower.next().await), told(Some(bench.record().await)));
}

pub(super) async fn who_follows_no_more_is_told_no_more(bench: Bench) {
    let Some((Follower { states, following }, _)) = follow(&bench, 64).await else { return };
    drop(states);
    let ended = tokio::time::timeout(Duration::from_secs(10), following).await;
    let ended = ended.expect("it ends within 10 seconds").expect("it does not panic");
    assert!(ended.is_ok(), "and that is no error: {ended:?}");
}

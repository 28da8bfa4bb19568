//! A clause on following the records of a prefix. A store that cannot follow many keys must return `Invalid`.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
};

use super::bench::{Bench, leave, once, refresh, release, terms, wait};
use crate::{
    FencingToken, HybridTime, Key, Result,
    record::{Holder, KeyFilter, Record, Request, Revoke, StoreTime},
    store::{FollowedState, RecordState},
};

/// How long a state may take.
const STATE_TIMEOUT: Duration = Duration::from_secs(10);

/// The part of a record that must be right: holders, version, time, and the tokens that the last revocation ended.
type Visible = Option<(Vec<Holder>, FencingToken, StoreTime, Vec<FencingToken>)>;

fn visible(record: Option<&Record>) -> Visible {
    record.map(|record| {
        let revoked = record.history.last().filter(|revocation| revocation.at == record.last_seen);
        let revoked = revoked.map(|revocation| revocation.tokens.clone()).unwrap_or_default();
        (record.holders.clone(), record.version, record.last_seen, revoked)
    })
}

struct Follower {
    states: Receiver<FollowedState>,
    following: JoinHandle<Result<()>>,
    tick: HybridTime,
}

impl Follower {
    async fn next(&mut self) -> Option<(Key, RecordState)> {
        let next = tokio::time::timeout(STATE_TIMEOUT, self.states.recv()).await;
        let (tick, state) = match next.expect("a state must come within 10 seconds")? {
            FollowedState::Record { key, state } => (state.at.tick, Some((key, state))),
            FollowedState::Complete { at } => (at.tick, None),
        };
        assert!(tick >= self.tick, "the hybrid time must not go back");
        self.tick = tick;
        state
    }
}

pub(super) async fn the_records_of_a_prefix_are_sent_first_and_then_each_change_in_order(bench: Bench) {
    let [held, idle, never, new] = ["held", "idle", "never", "new"].map(|name| bench.beside(name));
    let (first, shared) = (terms(), terms());
    let token = held.granted(once(&first)).await;
    let before = idle.granted(once(&shared)).await;
    idle.send(release(&shared, before)).await;
    bench.granted(once(&terms())).await;

    let (sender, states) = mpsc::channel(1);
    let known = vec![idle.key.clone(), never.key.clone()];
    #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
    let following = tokio::spawn(bench.store.follow(&KeyFilter::Prefix(format!("{}/", bench.key)), known, sender));
    let mut follower = Follower { states, following, tick: HybridTime { seconds: 0, ordinal: 0 } };
    let mut present = BTreeMap::new();
    while let Some((key, state)) = follower.next().await {
        let again = present.insert(key, visible(state.record.as_deref()));
        assert!(again.is_none(), "each record must be sent once at the beginning");
    }
    if present.is_empty() {
        let ended = follower.following.await.expect("following must not panic");
        assert!(
            matches!(ended, Err(crate::Error::Invalid { .. })),
            "a store that cannot follow many keys must return Invalid: {ended:?}"
        );
        return;
    }
    let expected = [
        (held.key.clone(), visible(Some(&held.record().await))),
        (idle.key.clone(), visible(Some(&idle.record().await))),
        (never.key.clone(), None),
    ];
    assert_eq!(present, BTreeMap::from(expected), "records with holders and known keys must be sent first");

    let waiter = terms();
    let revoke = || Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX });
    let steps: [(&Bench, Request); 9] = [
        (&held, wait(&waiter).into()),
        (&idle, once(&shared).into()),
        (&idle, refresh(&shared)),
        (&new, once(&terms()).into()),
        (&held, release(&first, token)),
        (&new, revoke()),
        (&idle, leave(&shared)),
        (&held, revoke()),
        (&idle, once(&terms()).into()),
    ];
    // All of them before any state is received, so that the store cannot look up a state late.
    let mut expected = Vec::new();
    for (of, request) in steps {
        bench.send(once(&terms())).await;
        of.send(request).await;
        expected.push((of.key.clone(), visible(Some(&of.record().await))));
    }
    for (number, (key, after)) in expected.into_iter().enumerate() {
        let (changed, state) = follower.next().await.expect("the beginning must end once");
        assert_eq!((changed, visible(state.record.as_deref())), (key, after), "change {number}");
        let late = state.record.map_or(Duration::MAX, |record| state.at.now.since(record.last_seen));
        assert!(late < Duration::from_secs(5), "state {number} must have the time of its change: {late:?}");
    }
    let more = tokio::time::timeout(Duration::from_millis(200), follower.states.recv()).await;
    assert!(more.is_err(), "nothing else must be sent, and nothing of other keys: {more:?}");

    drop(follower.states);
    let ended = tokio::time::timeout(STATE_TIMEOUT, follower.following).await;
    let ended = ended.expect("following must end within 10 seconds").expect("following must not panic");
    assert!(ended.is_ok(), "a dropped receiver is no error: {ended:?}");
}

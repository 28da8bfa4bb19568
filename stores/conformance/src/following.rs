//! Requirements on following the record of a key, or the records of a prefix. A store that cannot follow must return `Invalid`.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
    time::timeout,
};

use super::fixture::{Fixture, leave, once, refresh, release, terms, wait};
use mongoseal::{
    FencingToken, Key, Result, Sharing,
    record::{BatchRequest, Holder, KeyFilter, LeaseSpec, Record, Request, Revoke, StoreTime},
    store::{FollowedState, HybridTime, RecordState},
};

/// Receives the states of records.
struct Follower {
    states: Receiver<FollowedState>,
    following: JoinHandle<Result<()>>,
    hlc: HybridTime,
    /// How long a state may take.
    limit: Duration,
}

impl Follower {
    /// Follows records. Also returns the states of the beginning. `None`: the store cannot follow, and returned `Invalid`.
    async fn begin(
        fixture: &Fixture,
        filter: KeyFilter,
        known: Vec<Key>,
        room: usize,
    ) -> Option<(Self, BTreeMap<Key, RecordState>)> {
        let (sender, states) = mpsc::channel(room);
        #[allow(clippy::disallowed_methods, reason = "ends with the receiver")]
        let following = tokio::spawn(fixture.store.follow(&filter, known, sender));
        let mut follower =
            Self { states, following, hlc: HybridTime { seconds: 0, ordinal: 0 }, limit: fixture.answer_timeout() };
        let mut present = BTreeMap::new();
        while let Some((key, state)) = follower.receive().await {
            let again = present.insert(key, state);
            assert!(again.is_none(), "each record must be sent once at the beginning");
        }
        if !present.is_empty() {
            return Some((follower, present));
        }
        let ended = follower.end().await;
        assert!(
            matches!(ended, Err(mongoseal::Error::Invalid { .. })),
            "a store that cannot follow must return Invalid: {ended:?}"
        );
        None
    }

    /// Follows the record of the key. Also returns its first state.
    async fn begin_key(fixture: &Fixture, room: usize) -> Option<(Self, RecordState)> {
        let (follower, mut present) =
            Self::begin(fixture, KeyFilter::Key(fixture.key.clone()), Vec::new(), room).await?;
        let first = present.remove(&fixture.key);
        assert!(present.is_empty(), "only the states of the key must be sent");
        Some((follower, first.expect("the state of the key must be sent first, whether it has a record or not")))
    }

    /// The next state. `None`: the beginning has ended, or the following.
    async fn receive(&mut self) -> Option<(Key, RecordState)> {
        let next = timeout(self.limit, self.states.recv()).await;
        let next = next.unwrap_or_else(|_| panic!("a state must come within {:?}", self.limit));
        let (hlc, state) = match next? {
            FollowedState::Record { key, state } => (state.at.hlc, Some((key, state))),
            FollowedState::Complete { at } => (at.hlc, None),
        };
        assert!(hlc >= self.hlc, "the hybrid time must not go back");
        self.hlc = hlc;
        state
    }

    async fn next(&mut self) -> (Key, RecordState) {
        self.receive().await.expect("following must go on, and its beginning must end once")
    }

    async fn nothing_more(&mut self) {
        let more = timeout(Duration::from_millis(200), self.states.recv()).await;
        assert!(more.is_err(), "nothing else must be sent, and nothing of other keys: {more:?}");
    }

    /// Drops the receiver. Returns how following ended.
    async fn end(self) -> Result<()> {
        drop(self.states);
        let ended = timeout(self.limit, self.following).await;
        ended
            .unwrap_or_else(|_| panic!("following must end within {:?}", self.limit))
            .expect("following must not panic")
    }
}

/// A state as it is sent: the store may leave out the queue.
fn as_sent(record: Option<Record>) -> Option<Box<Record>> {
    record.map(|record| Box::new(Record { queue: Vec::new(), ..record }))
}

fn without_queue(state: &RecordState) -> Option<Box<Record>> {
    as_sent(state.record.as_deref().cloned())
}

fn revoke() -> Request {
    Request::Revoke(Revoke { by: "ops".into(), reason: "drill".into(), upto: FencingToken::MAX })
}

pub(super) async fn each_state_of_a_record_is_sent_in_order(fixture: Fixture) {
    let Some((mut follower, first)) = Follower::begin_key(&fixture, 1).await else { return };
    assert_eq!(first.record, None, "the first state must be that there is no record");
    let neighbour = fixture.beside("neighbour");
    let waiters: Vec<LeaseSpec> =
        (0..20).map(|number| LeaseSpec { sharing: Sharing::from_limit(number % 3), ..terms() }).collect();
    let mut requests: Vec<Request> = waiters.iter().map(wait).collect();
    requests.extend(waiters[..8].iter().flat_map(|waiter| [refresh(waiter), leave(waiter)]));
    requests.push(revoke());
    requests.extend(waiters[8..].iter().map(leave));
    // All of it before any state is received, so that the store cannot look up a state late.
    let mut expected = Vec::new();
    for request in requests {
        neighbour.send(once(&terms())).await;
        let before = expected.last().cloned();
        fixture.send(request).await;
        let after = Some(fixture.record());
        if before.as_ref() != Some(&after) {
            expected.push(after);
        }
    }
    // A batch request changes records, too.
    let token = fixture.granted(once(&terms())).await;
    expected.push(Some(fixture.record()));
    assert!(fixture.apply_batch(&vec![(fixture.key.clone(), vec![token])], BatchRequest::Release).await);
    expected.push(Some(fixture.record()));
    let mut hlc = first.at.hlc;
    for (number, after) in expected.into_iter().enumerate() {
        let (key, state) = follower.next().await;
        assert_eq!(key, fixture.key, "only the states of the key must be sent");
        assert_eq!(without_queue(&state), as_sent(after.clone()), "change {number}");
        let last_seen = after.expect("there must be a record").last_seen;
        let late = state.at.now.since(last_seen);
        assert!(
            state.at.now >= last_seen && late < fixture.answer_timeout() / 2,
            "state {number} must have the time of its change: {late:?}"
        );
        assert!(state.at.hlc > hlc, "the hybrid time must grow");
        hlc = state.at.hlc;
    }
    follower.nothing_more().await;
}

pub(super) async fn an_existing_record_is_sent_first(fixture: Fixture) {
    let holder = terms();
    let token = fixture.granted(once(&holder)).await;
    fixture.send(wait(&terms())).await;
    let Some((mut follower, first)) = Follower::begin_key(&fixture, 64).await else { return };
    let (record, at) = fixture.seen().await;
    assert_eq!(without_queue(&first), as_sent(record));
    let at = at.expect("there must be a record");
    assert!(first.at.now <= at.now && first.at.hlc <= at.hlc, "the first state must be from before this read");
    fixture.send(release(&holder, token)).await;
    assert_eq!(without_queue(&follower.next().await.1), as_sent(Some(fixture.record())));
}

pub(super) async fn following_ends_with_its_receiver(fixture: Fixture) {
    let Some((follower, _)) = Follower::begin_key(&fixture, 64).await else { return };
    let ended = follower.end().await;
    assert!(ended.is_ok(), "a dropped receiver is no error: {ended:?}");
}

/// The part of a record of a prefix that must be right: holders, version, time, and the tokens that the last revocation
/// ended.
type Visible = Option<(Vec<Holder>, FencingToken, StoreTime, Vec<FencingToken>)>;

fn visible(record: Option<&Record>) -> Visible {
    record.map(|record| {
        let revoked = record.history.last().filter(|revocation| revocation.at == record.last_seen);
        let revoked = revoked.map(|revocation| revocation.tokens.clone()).unwrap_or_default();
        (record.holders.clone(), record.version, record.last_seen, revoked)
    })
}

pub(super) async fn the_records_of_a_prefix_are_sent_first_and_then_each_change_in_order(fixture: Fixture) {
    let [held, idle, never, new] = ["held", "idle", "never", "new"].map(|name| fixture.beside(name));
    let (first, shared) = (terms(), terms());
    let token = held.granted(once(&first)).await;
    let before = idle.granted(once(&shared)).await;
    idle.send(release(&shared, before)).await;
    fixture.granted(once(&terms())).await;

    let (filter, known) = (KeyFilter::Prefix(format!("{}/", fixture.key)), vec![idle.key.clone(), never.key.clone()]);
    let Some((mut follower, present)) = Follower::begin(&fixture, filter, known, 1).await else { return };
    let present: BTreeMap<Key, Visible> =
        present.into_iter().map(|(key, state)| (key, visible(state.record.as_deref()))).collect();
    let expected = [
        (held.key.clone(), visible(Some(&held.record()))),
        (idle.key.clone(), visible(Some(&idle.record()))),
        (never.key.clone(), None),
    ];
    assert_eq!(present, BTreeMap::from(expected), "records with holders and known keys must be sent first");

    let waiter = terms();
    let steps: [(&Fixture, Request); 9] = [
        (&held, wait(&waiter)),
        (&idle, once(&shared)),
        (&idle, refresh(&shared)),
        (&new, once(&terms())),
        (&held, release(&first, token)),
        (&new, revoke()),
        (&idle, leave(&shared)),
        (&held, revoke()),
        (&idle, once(&terms())),
    ];
    // All of them before any state is received, so that the store cannot look up a state late.
    let mut expected = Vec::new();
    for (of, request) in steps {
        fixture.send(once(&terms())).await;
        of.send(request).await;
        expected.push((of.key.clone(), visible(Some(&of.record()))));
    }
    for (number, expected) in expected.into_iter().enumerate() {
        let (changed, state) = follower.next().await;
        assert_eq!((changed, visible(state.record.as_deref())), expected, "change {number}");
        let late = state.record.map_or(Duration::MAX, |record| state.at.now.since(record.last_seen));
        assert!(late < fixture.answer_timeout() / 2, "state {number} must have the time of its change: {late:?}");
    }
    follower.nothing_more().await;
    let ended = follower.end().await;
    assert!(ended.is_ok(), "a dropped receiver is no error: {ended:?}");
}

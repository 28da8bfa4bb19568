//! The followers of records: each gets the states of its record, or of the records of a prefix.

use tokio::sync::mpsc::{self, Sender, UnboundedReceiver, UnboundedSender};

use crate::{
    record::{KeyFilter, Record, StoreClock},
    store::answers::{FollowedState, RecordState},
    types::key::Key,
};

/// The followers. States that a follower has not received are kept for it, without a limit.
#[derive(Debug, Default)]
pub(super) struct Followers(Vec<(KeyFilter, UnboundedSender<FollowedState>)>);

impl Followers {
    /// Sends the state of a record to its followers. Removes followers that are gone.
    pub(super) fn send(&mut self, key: &Key, record: Option<&Record>, at: StoreClock) {
        self.0.retain(|(_, states)| !states.is_closed());
        for (_, states) in self.0.iter().filter(|(filter, _)| filter.admits(key)) {
            // A receiver that is dropped now is removed the next time.
            drop(states.send(state(key, record, at)));
        }
    }

    /// Adds a follower, to which these records are sent first. Returns a future that passes the states on until the
    /// receiver is dropped.
    pub(super) fn join(
        &mut self,
        filter: KeyFilter,
        first: &mut dyn Iterator<Item = (&Key, Option<&Record>)>,
        at: StoreClock,
        receiver: Sender<FollowedState>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (states, queued) = mpsc::unbounded_channel();
        for (key, record) in first {
            drop(states.send(state(key, record, at)));
        }
        drop(states.send(FollowedState::Complete { at }));
        self.0.push((filter, states));
        pass_on(queued, receiver)
    }
}

/// Passes states on until the receiver is dropped.
async fn pass_on(mut queued: UnboundedReceiver<FollowedState>, receiver: Sender<FollowedState>) {
    while let Some(state) = tokio::select! {
        biased;
        state = queued.recv() => state,
        () = receiver.closed() => None,
    } {
        // If the receiver is dropped now, this is the last state.
        drop(receiver.send(state).await);
    }
}

/// The state without the queue, which may be long and is not needed.
fn state(key: &Key, record: Option<&Record>, at: StoreClock) -> FollowedState {
    let seen = |record: &Record| Box::new(Record { queue: Vec::new(), ..record.clone() });
    FollowedState::Record { key: key.clone(), state: RecordState { record: record.map(seen), at } }
}

//! The followers of records: each gets the states of its record, or of the records of a prefix.

use tokio::sync::mpsc::{self, Sender, UnboundedReceiver, UnboundedSender};

use super::{PrefixState, RecordState};
use crate::{
    Key,
    record::{Record, StoreClock},
};

/// The followers. States that a follower has not received are kept for it, without a limit.
#[derive(Debug, Default)]
pub(super) struct Followers {
    of_keys: Vec<(Key, UnboundedSender<RecordState>)>,
    of_prefixes: Vec<(String, UnboundedSender<PrefixState>)>,
}

impl Followers {
    /// Sends the state of a record to its followers. Removes followers that are gone.
    pub(super) fn send(&mut self, key: &Key, record: Option<&Record>, at: StoreClock) {
        self.of_keys.retain(|(_, states)| !states.is_closed());
        for (_, states) in self.of_keys.iter().filter(|(theirs, _)| theirs == key) {
            // A receiver that is dropped now is removed the next time.
            drop(states.send(state(record, at)));
        }
        self.of_prefixes.retain(|(_, states)| !states.is_closed());
        for (_, states) in self.of_prefixes.iter().filter(|(prefix, _)| key.as_str().starts_with(prefix)) {
            drop(states.send(PrefixState::Record { key: key.clone(), state: state(record, at) }));
        }
    }

    /// Adds a follower of a key, whose record is this. Returns a future that passes the states on until the receiver is
    /// dropped.
    pub(super) fn join(
        &mut self,
        key: Key,
        record: Option<&Record>,
        at: StoreClock,
        receiver: Sender<RecordState>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (states, queued) = mpsc::unbounded_channel();
        drop(states.send(state(record, at)));
        self.of_keys.push((key, states));
        pass_on(queued, receiver)
    }

    /// Adds a follower of a prefix, to whom these records are sent first. Returns a future that passes the states on
    /// until the receiver is dropped.
    pub(super) fn join_prefix(
        &mut self,
        prefix: String,
        first: &mut dyn Iterator<Item = (&Key, Option<&Record>)>,
        at: StoreClock,
        receiver: Sender<PrefixState>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (states, queued) = mpsc::unbounded_channel();
        for (key, record) in first {
            drop(states.send(PrefixState::Record { key: key.clone(), state: state(record, at) }));
        }
        drop(states.send(PrefixState::Complete { at }));
        self.of_prefixes.push((prefix, states));
        pass_on(queued, receiver)
    }
}

/// Passes states on until the receiver is dropped.
async fn pass_on<T>(mut queued: UnboundedReceiver<T>, receiver: Sender<T>) {
    let pass_on = async {
        while let Some(state) = queued.recv().await {
            if receiver.send(state).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = pass_on => {}
        () = receiver.closed() => {}
    }
}

/// The state without the queue, which may be long and is not needed.
fn state(record: Option<&Record>, at: StoreClock) -> RecordState {
    let seen = |record: &Record| Box::new(Record { queue: Vec::new(), ..record.clone() });
    RecordState { record: record.map(seen), at }
}

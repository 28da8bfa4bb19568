//! The followers of records: each gets the states of its record.

use tokio::sync::mpsc::{self, Sender, UnboundedSender};

use super::RecordState;
use crate::{
    Key,
    record::{Record, StoreClock},
};

/// The followers, by key. States that a follower has not received are kept for it, without a limit.
#[derive(Debug, Default)]
pub(super) struct Followers(Vec<(Key, UnboundedSender<RecordState>)>);

impl Followers {
    /// Sends the state of a record to its followers. Removes followers that are gone.
    pub(super) fn send(&mut self, key: &Key, record: Option<&Record>, at: StoreClock) {
        self.0.retain(|(_, states)| !states.is_closed());
        for (_, states) in self.0.iter().filter(|(theirs, _)| theirs == key) {
            // A receiver that is dropped now is removed the next time.
            drop(states.send(state(record, at)));
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
        let (states, mut queued) = mpsc::unbounded_channel();
        drop(states.send(state(record, at)));
        self.0.push((key, states));
        async move {
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
    }
}

/// The state without the queue, which may be long and is not needed.
fn state(record: Option<&Record>, at: StoreClock) -> RecordState {
    let seen = |record: &Record| Box::new(Record { queue: Vec::new(), ..record.clone() });
    RecordState { record: record.map(seen), at }
}

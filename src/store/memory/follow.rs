//! Who is told what becomes of which record.

use tokio::sync::mpsc::{self, Sender, UnboundedSender};

use super::RecordState;
use crate::{
    Key,
    record::{Record, StoreClock},
};

/// Those who follow a key. What they have not taken yet is kept for them, however much it is.
#[derive(Debug, Default)]
pub(super) struct Followers(Vec<(Key, UnboundedSender<RecordState>)>);

impl Followers {
    /// Tells those who follow this key what has become of its record, and forgets who is gone.
    pub(super) fn tell(&mut self, key: &Key, record: Option<&Record>, at: StoreClock) {
        self.0.retain(|(_, states)| !states.is_closed());
        for (_, states) in self.0.iter().filter(|(theirs, _)| theirs == key) {
            // One that goes at this moment is forgotten the next time.
            drop(states.send(state(record, at)));
        }
    }

    /// From now on somebody follows this key, whose record is this. What is given passes the states on
    /// until nobody listens.
    pub(super) fn join(
        &mut self,
        key: Key,
        record: Option<&Record>,
        at: StoreClock,
        tell: Sender<RecordState>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (states, mut told) = mpsc::unbounded_channel();
        drop(states.send(state(record, at)));
        self.0.push((key, states));
        async move {
            let pass_on = async {
                while let Some(state) = told.recv().await {
                    if tell.send(state).await.is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                () = pass_on => {}
                () = tell.closed() => {}
            }
        }
    }
}

/// Without the queue, which may be long and which nobody looks at.
fn state(record: Option<&Record>, at: StoreClock) -> RecordState {
    let seen = |record: &Record| Box::new(Record { queue: Vec::new(), ..record.clone() });
    RecordState { record: record.map(seen), at }
}

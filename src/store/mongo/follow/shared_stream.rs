//! One change stream for all records of a store that are followed on one runtime.
//!
//! Purpose: each open change stream keeps a connection of the client, so a thousand subscribers cannot have a thousand
//! streams.
//!
//! Mechanism: one task reads a stream of the changes of all followed keys and passes each change on to the subscribers
//! of its key. If a subscriber comes whose key the stream does not have, the task opens another stream with it, behind
//! the last change that it has passed on. The stream before it ends with its pending request.
//!
//! If another stream cannot be opened, only the subscribers that wait for it get the error. The stream before goes on.
//!
//! Invariant: see `follow/subscribers.rs`.

use std::sync::Arc;

use super::{
    super::{context::MongoContext, stream_error::StreamEnd, task},
    key_streams::KeyStreams,
    subscribers::{Subscribers, Subscription},
};
use crate::Key;

/// Follows the changes of a key. Starts the task that reads them if it does not run.
pub(super) fn subscribe(store: &Arc<MongoContext>, key: &Key) -> Subscription {
    let subscribers = Arc::clone(&store.by_runtime.here().subscribers);
    let (subscription, has_to_run) = Subscription::begin(Arc::clone(&subscribers), key);
    if has_to_run {
        task::spawn(run(Arc::clone(store), subscribers));
    }
    subscription
}

/// Reads the changes of the followed keys until no subscriber is left or the stream ends.
async fn run(store: Arc<MongoContext>, subscribers: Arc<Subscribers>) {
    // If this task is dropped with its runtime, so are its subscribers.
    let end = match read_all(&store, &subscribers).await {
        Ok(()) => return,
        Err(end) => end,
    };
    subscribers.end(&end);
}

async fn read_all(store: &Arc<MongoContext>, subscribers: &Subscribers) -> std::result::Result<(), StreamEnd> {
    let mut streams = KeyStreams::new(store)?;
    let mut changes = None;
    while let Some(keys) = subscribers.keys() {
        match streams.open(&keys).await {
            Ok((opened, from)) => {
                subscribers.opened(keys, from);
                changes = Some(opened);
            }
            // The other subscribers still have the stream before.
            Err(end) if changes.is_some() => subscribers.end_waiting(&end),
            Err(end) => return Err(end),
        }
        let Some(changes) = &mut changes else { return Err(StreamEnd::Closed) };
        loop {
            tokio::select! {
                read = changes.recv() => {
                    let Some((change, token)) = read else { return Err(StreamEnd::Closed) };
                    if let Some(token) = token {
                        streams.read_up_to(token);
                    }
                    if let Some(change) = change? {
                        subscribers.pass_on(change);
                    }
                }
                () = subscribers.changed.notified() => {
                    if subscribers.has_changed() {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

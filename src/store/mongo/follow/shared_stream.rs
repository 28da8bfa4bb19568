//! One change stream for all records of a store that are followed on one runtime.
//!
//! Purpose: each open change stream keeps a connection of the client, so a thousand subscribers cannot have a thousand
//! streams.
//!
//! Mechanism: one task reads a stream of the changes of all followed keys and passes each change on to the subscribers
//! of its key. If a subscriber comes whose key the stream does not have, the task opens another stream with it, behind
//! the last change that it has passed on. The stream before it ends with its pending request.
//!
//! If another stream cannot be opened, only the subscribers that wait for it get the error. The stream before goes on. A
//! stream that fails is opened again where it was: `follow/streams.rs`. The subscribers get an error if it cannot be.
//!
//! Invariant: see `follow/subscribers.rs`.

use std::sync::Arc;

use mongodb::bson::{Bson, doc};

use super::{
    super::{context::MongoContext, stream_error::StreamEnd, task},
    streams::Streams,
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
    let mut streams = Streams::new(store)?;
    let mut is_open = false;
    while let Some(keys) = subscribers.keys() {
        let ids: Vec<Bson> = keys.iter().map(|key| key.as_str().into()).collect();
        match streams.open(doc! { "$in": ids }).await {
            Ok(from) => {
                subscribers.opened(keys, from);
                is_open = true;
            }
            // The other subscribers still have the stream before.
            Err(end) if is_open && !end.is_definite() => subscribers.end_waiting(&end),
            Err(end) => return Err(end),
        }
        loop {
            tokio::select! {
                change = streams.next() => subscribers.pass_on(change?),
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

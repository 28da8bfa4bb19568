//! One change stream for all records of a store that are followed.
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
//! Invariant: see `state/subscribers.rs`.

use std::{collections::HashSet, sync::Arc};

use mongodb::bson::{Bson, Timestamp, doc};

use super::{
    super::{context::MongoContext, state::subscribers::Subscription, stream_error::StreamEnd, task},
    streams::Streams,
};
use crate::types::key::Key;

/// Follows the changes of a key. Starts the task that reads them if it does not run.
pub(super) fn subscribe(store: &Arc<MongoContext>, key: &Key) -> Subscription {
    let (subscription, has_to_run) = store.subscribers.join(key);
    if has_to_run {
        let reader = Arc::clone(store);
        task::spawn(store.runtime(), async move {
            if let Err(end) = read_all(&reader).await {
                reader.subscribers.end(&end, true);
            }
        });
    }
    subscription
}

/// Reads the changes of the followed keys until no subscriber is left or the stream ends.
async fn read_all(store: &Arc<MongoContext>) -> std::result::Result<(), StreamEnd> {
    let (mut streams, subscribers) = (Streams::new(store)?, &store.subscribers);
    // The keys of the open stream, and the time until which all changes were passed on.
    let (mut open, mut passed_on) = (HashSet::new(), Timestamp { time: 0, increment: 0 });
    while let Some(keys) = subscribers.keys() {
        let ids: Vec<Bson> = keys.iter().map(|key| key.as_str().into()).collect();
        match streams.open(doc! { "$in": ids }).await {
            Ok(from) => (open, passed_on) = (keys, from),
            // The other subscribers still have the stream before.
            Err(end) if !open.is_empty() && !end.is_definite() => subscribers.end(&end, false),
            Err(end) => return Err(end),
        }
        while subscribers.begin(&open, passed_on) {
            tokio::select! {
                change = streams.next() => if let Some(change) = change? {
                    passed_on = change.get_timestamp("clusterTime").map_or(passed_on, |time| time.max(passed_on));
                    subscribers.pass_on(change);
                },
                () = subscribers.changed.notified() => {}
            }
        }
    }
    Ok(())
}

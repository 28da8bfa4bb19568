//! Change streams of some keys, each of which replaces the one before, and of all keys with a prefix.
//!
//! Purpose: the keys of an open change stream cannot be changed.
//!
//! Mechanism: a new stream begins behind the last change that the task has read. The stream before it ends with its
//! pending request.
//!
//! Invariant: no change is lost between two streams.

use std::{collections::HashSet, sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, Document, Timestamp, doc},
    change_stream::{ChangeStream, event::ResumeToken},
    error::Result as DriverResult,
    options::{ChangeStreamOptions, ReadConcern},
};
use tokio::sync::{
    OwnedSemaphorePermit, Semaphore,
    mpsc::{self, Receiver, Sender},
};

use super::super::{
    context::{MongoContext, PRIMARY},
    stream_error::StreamEnd,
    task,
};
use crate::Key;

/// How long the server holds a request for changes if there is none. A replaced stream ends after this time, too.
const CHANGES_AWAIT: Duration = Duration::from_millis(250);

/// How many replaced streams may be open at a time.
const MAX_REPLACED: usize = 3;

/// The streams of one task. Each but the last is replaced.
pub(super) struct KeyStreams {
    store: Arc<MongoContext>,
    /// Held while any of them is open.
    permit: Arc<OwnedSemaphorePermit>,
    slots: Arc<Semaphore>,
    /// Where the next stream begins.
    position: Option<StreamStart>,
}

impl KeyStreams {
    pub(super) fn new(store: &Arc<MongoContext>) -> std::result::Result<Self, StreamEnd> {
        Ok(Self {
            store: Arc::clone(store),
            permit: Arc::new(store.client.take_stream_permit().map_err(StreamEnd::TooMany)?),
            slots: Arc::new(Semaphore::new(MAX_REPLACED.saturating_add(1))),
            position: None,
        })
    }

    /// Sets that the next stream begins behind this token.
    pub(super) fn read_up_to(&mut self, token: ResumeToken) {
        self.position = Some(StreamStart::Behind(token));
    }

    /// Opens a stream of these keys. Returns what is read from it, and a time after which it has all changes of each
    /// key.
    pub(super) async fn open(
        &mut self,
        keys: &HashSet<Key>,
    ) -> std::result::Result<(Receiver<StreamRead>, Timestamp), StreamEnd> {
        // The semaphore is never closed.
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|_closed| StreamEnd::Closed)?;
        // After the answer that had the last token. So a change of a new key cannot be between that token and a
        // snapshot as of this time.
        let now = self.store.operation_time().await.map_err(StreamEnd::NotOpened)?;
        let start = self.position.clone().unwrap_or_else(|| StreamStart::after(now));
        let ids: Vec<Bson> = keys.iter().map(|key| key.as_str().into()).collect();
        let held = (slot, Arc::clone(&self.permit));
        let changes = read_stream(&self.store, doc! { "$in": ids }, start.clone(), held).await?;
        self.position = Some(start);
        Ok((changes, now))
    }
}

/// Opens a stream of the documents whose `_id`s match, for one reader. Returns what is read from it, and a time after
/// which it has all changes.
pub(super) async fn open(
    store: &Arc<MongoContext>,
    ids: Document,
) -> std::result::Result<(Receiver<StreamRead>, Timestamp), StreamEnd> {
    let permit = store.client.take_stream_permit().map_err(StreamEnd::TooMany)?;
    let now = store.operation_time().await.map_err(StreamEnd::NotOpened)?;
    Ok((read_stream(store, ids, StreamStart::after(now), permit).await?, now))
}

/// Opens a stream of the documents whose `_id`s match, and starts a task that reads it. The task has `held` until it
/// ends.
async fn read_stream(
    store: &Arc<MongoContext>,
    ids: Document,
    start: StreamStart,
    held: impl Send + 'static,
) -> std::result::Result<Receiver<StreamRead>, StreamEnd> {
    let stages = filter_stages(ids, &store.collection);
    let events = store.open_change_stream(&stages, start).await.map_err(StreamEnd::NotOpened)?;
    let (pass_on, changes) = mpsc::channel(1);
    let store = Arc::clone(store);
    task::spawn(async move {
        read(&store, &stages, events, pass_on).await;
        drop(held);
    });
    Ok(changes)
}

/// A change, if there is one, and the token behind which the stream goes on.
pub(super) type StreamRead = (std::result::Result<Option<Document>, StreamEnd>, Option<ResumeToken>);

/// Reads a stream until its receiver is dropped or it ends.
async fn read(
    store: &MongoContext,
    stages: &[Document; 2],
    mut events: ChangeStream<Document>,
    pass_on: Sender<StreamRead>,
) {
    // A stream that ends is resumed once. If the resumed stream ends without a change, it is not resumed.
    let mut is_resumed = false;
    loop {
        let change = match events.next_if_any().await {
            Ok(change) if change.is_some() || events.is_alive() => {
                is_resumed = false;
                Ok(change)
            }
            Ok(_) => Err(StreamEnd::Closed),
            Err(error) => match events.resume_token() {
                Some(token) if !is_resumed => {
                    match store.open_change_stream(stages, StreamStart::Behind(token)).await {
                        Ok(again) => {
                            (events, is_resumed) = (again, true);
                            continue;
                        }
                        Err(error) => Err(StreamEnd::Failed(error)),
                    }
                }
                _ => Err(StreamEnd::Failed(error)),
            },
        };
        let has_ended = change.is_err();
        if pass_on.send((change, events.resume_token())).await.is_err() || has_ended {
            return;
        }
    }
}

/// Where a change stream begins.
#[derive(Clone)]
enum StreamStart {
    At(Timestamp),
    Behind(ResumeToken),
}

impl StreamStart {
    /// After the time itself: if the last event is the drop of the collection, a stream from that time on would end with
    /// it again and again.
    fn after(time: Timestamp) -> Self {
        Self::At(Timestamp { increment: time.increment.saturating_add(1), ..time })
    }
}

impl MongoContext {
    /// Opens a change stream with these stages.
    async fn open_change_stream(
        &self,
        stages: &[Document; 2],
        start: StreamStart,
    ) -> DriverResult<ChangeStream<Document>> {
        let (from, behind) = match start {
            StreamStart::At(from) => (Some(from), None),
            StreamStart::Behind(token) => (None, Some(token)),
        };
        let options = ChangeStreamOptions::builder()
            .start_at_operation_time(from)
            .resume_after(behind)
            .max_await_time(CHANGES_AWAIT)
            .read_concern(ReadConcern::majority())
            .selection_criteria(PRIMARY)
            .build();
        let collection = self.database.collection::<Document>(&self.collection);
        let events = collection.watch().pipeline(stages.clone()).with_options(options).await?;
        Ok(events.with_type::<Document>())
    }
}

/// Selects the events of the documents whose `_id`s match, and those of the whole collection. Without the queue, which
/// may be long.
fn filter_stages(ids: Document, collection: &str) -> [Document; 2] {
    [
        doc! { "$match": { "$or": [
            {
                "operationType": { "$in": ["insert", "replace", "update", "delete"] },
                "documentKey._id": ids,
            },
            { "operationType": { "$in": ["drop", "rename"] }, "ns.coll": { "$eq": collection } },
        ] } },
        doc! { "$project": { "fullDocument.queue": 0, "updateDescription.updatedFields.queue": 0 } },
    ]
}

//! Change streams of some keys, each of which replaces the one before.
//!
//! Purpose: the keys of an open change stream cannot be changed.
//!
//! Mechanism: a new stream begins behind the last change that the task has read. The stream before it ends with its pending
//! request.
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

/// How long the server holds a request for changes when there is none: also how long a stream lives on that another one has
/// replaced.
const CHANGES_AWAIT: Duration = Duration::from_millis(250);

/// How many streams may live on at the same time that others have replaced.
const MAX_REPLACED: usize = 3;

/// The streams of one task, of which each but the last was replaced.
pub(super) struct KeyStreams {
    store: Arc<MongoContext>,
    /// Held as long as any of them is open.
    permit: Arc<OwnedSemaphorePermit>,
    slots: Arc<Semaphore>,
    /// Where the next one begins.
    position: Option<StreamStart>,
}

impl KeyStreams {
    pub(super) fn new(store: &Arc<MongoContext>) -> std::result::Result<Self, StreamEnd> {
        Ok(Self {
            store: Arc::clone(store),
            permit: Arc::new(store.client.stream_permit().map_err(StreamEnd::TooMany)?),
            slots: Arc::new(Semaphore::new(MAX_REPLACED.saturating_add(1))),
            position: None,
        })
    }

    /// The next one begins behind this token.
    pub(super) fn read_up_to(&mut self, token: ResumeToken) {
        self.position = Some(StreamStart::Behind(token));
    }

    /// Opens a stream of these keys. Gives what is read from it, and a time after which it has all changes of each key.
    pub(super) async fn open(
        &mut self,
        keys: &HashSet<Key>,
    ) -> std::result::Result<(Receiver<StreamRead>, Timestamp), StreamEnd> {
        // Closed by nobody.
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|_closed| StreamEnd::Closed)?;
        // After the answer that the last token came with. So no change of a key that is new can be between that token and a
        // snapshot as of this time.
        let now = self.store.operation_time().await.map_err(StreamEnd::NotOpened)?;
        // Not what happened at that time itself: where it is the last thing that happened, and that was the drop of the
        // collection, the stream would end with it again and again.
        let after = StreamStart::At(Timestamp { increment: now.increment.saturating_add(1), ..now });
        let start = self.position.clone().unwrap_or(after);
        let events = self.store.changes(keys, start.clone()).await.map_err(StreamEnd::NotOpened)?;
        self.position = Some(start);
        let (pass_on, changes) = mpsc::channel(1);
        let (store, keys, permit) = (Arc::clone(&self.store), keys.clone(), Arc::clone(&self.permit));
        task::spawn(async move {
            read(&store, &keys, events, pass_on).await;
            drop((slot, permit));
        });
        Ok((changes, now))
    }
}

/// A change, if there was one meanwhile, and behind which token the stream goes on.
pub(super) type StreamRead = (std::result::Result<Option<Document>, StreamEnd>, Option<ResumeToken>);

/// Reads a stream until its receiver is dropped or it ends.
async fn read(
    store: &MongoContext,
    keys: &HashSet<Key>,
    mut events: ChangeStream<Document>,
    pass_on: Sender<StreamRead>,
) {
    // One that ends is taken up where it ended. One that then ends at once is not.
    let mut is_taken_up = false;
    loop {
        let change = match events.next_if_any().await {
            Ok(change) if change.is_some() || events.is_alive() => {
                is_taken_up = false;
                Ok(change)
            }
            Ok(_) => Err(StreamEnd::Closed),
            Err(error) => match events.resume_token() {
                Some(token) if !is_taken_up => match store.changes(keys, StreamStart::Behind(token)).await {
                    Ok(again) => {
                        (events, is_taken_up) = (again, true);
                        continue;
                    }
                    Err(error) => Err(StreamEnd::Failed(error)),
                },
                _ => Err(StreamEnd::Failed(error)),
            },
        };
        let is_over = change.is_err();
        if pass_on.send((change, events.resume_token())).await.is_err() || is_over {
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

impl MongoContext {
    /// What happens to the documents of these keys.
    async fn changes(&self, keys: &HashSet<Key>, start: StreamStart) -> DriverResult<ChangeStream<Document>> {
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
        let events = collection.watch().pipeline(concerning(keys, &self.collection)).with_options(options).await?;
        Ok(events.with_type::<Document>())
    }
}

/// The events that concern these keys, and those that concern all keys of the collection. Without the queue, which may be
/// long.
fn concerning(keys: &HashSet<Key>, collection: &str) -> [Document; 2] {
    let keys: Vec<Bson> = keys.iter().map(|key| key.as_str().into()).collect();
    [
        doc! { "$match": { "$or": [
            {
                "operationType": { "$in": ["insert", "replace", "update", "delete"] },
                "documentKey._id": { "$in": keys },
            },
            { "operationType": { "$in": ["drop", "rename"] }, "ns.coll": { "$eq": collection } },
        ] } },
        doc! { "$project": { "fullDocument.queue": 0, "updateDescription.updatedFields.queue": 0 } },
    ]
}

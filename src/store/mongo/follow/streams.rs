//! Change streams of documents, one after the other, which together leave out no change.
//!
//! Purpose: the documents of an open change stream cannot be changed, and a stream can fail. The next stream goes on where
//! the one before was.
//!
//! Mechanism: the position is behind the last change, or the last empty answer, that was received. A task opens one stream
//! at this position and reads it until it fails or its receiver is dropped. After a failure, [`Streams::next`] starts
//! another task, after pauses that grow, until the server says that it no longer has the history behind the position. A
//! position that stays the same for [`MAX_SILENCE`] counts as a failure, too: a healthy server moves it every ten seconds,
//! and a server that was cut off from its set, or a connection that lost its peer, does not.
//!
//! Invariant: no change is lost between two streams. If changes may be lost, [`Streams::next`] returns an error, and these
//! streams are not used again.

use std::{sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, Document, Timestamp, doc},
    change_stream::event::ResumeToken,
};
use tokio::sync::{
    Semaphore,
    mpsc::{self, Receiver, Sender},
};
use tracing::debug;

use super::super::{
    context::MongoContext,
    error::{self, Meaning},
    state::client::StreamPermit,
    stream_error::StreamEnd,
    task,
};
use crate::types::{backoff::Backoff, clock::Clock, instant::Instant};

/// How long the server holds a request for changes if there is none. A replaced stream ends after this time, too.
const CHANGES_AWAIT: Duration = Duration::from_millis(250);

/// How many replaced streams may be open at a time.
const MAX_REPLACED: usize = 3;

/// How long the position may stay the same. An idle primary writes to its oplog every 10 seconds. Each time without
/// progress the limit doubles, because a server that reads a long oplog may need longer.
const MAX_SILENCE: Duration = Duration::from_secs(20);

/// The change streams of one reader. All but the last are replaced.
pub(super) struct Streams {
    store: Arc<MongoContext>,
    /// Held while any of them is open.
    permit: Arc<StreamPermit>,
    slots: Arc<Semaphore>,
    /// The filter of the `_id`s.
    ids: Document,
    /// Where the next stream begins. `None` before the first.
    position: Option<Position>,
    /// What is read from the last stream, unless it has failed.
    reads: Option<Receiver<Read>>,
    /// When the next stream is opened, or the present one counts as failed.
    due: Instant,
    /// How long the position may stay the same now.
    max_silence: Duration,
    backoff: Backoff,
}

/// Where a change stream begins.
#[derive(Clone, Debug, PartialEq)]
enum Position {
    At(Timestamp),
    Behind {
        token: ResumeToken,
        /// The `_id` of the document whose change has this token, if it is that of a change. The server resumes a stream
        /// behind a change only if the stream has that change, whatever it is otherwise about.
        id: Option<Bson>,
    },
}

impl Position {
    /// After the time itself: if the event at this time is a drop of the collection, a stream from that time on would end
    /// with it again.
    fn after(time: Timestamp) -> Self {
        Self::At(Timestamp { increment: time.increment.saturating_add(1), ..time })
    }
}

/// A change, if there was one, and the position behind it. Or why the stream has ended.
type Read = Result<(Option<Document>, Position), StreamEnd>;

impl Streams {
    pub(super) fn new(store: &Arc<MongoContext>) -> Result<Self, StreamEnd> {
        Ok(Self {
            store: Arc::clone(store),
            permit: Arc::new(store.client.take_stream_permit(store.runtime()).map_err(StreamEnd::TooMany)?),
            slots: Arc::new(Semaphore::new(MAX_REPLACED.saturating_add(1))),
            ids: Document::new(),
            position: None,
            reads: None,
            due: Instant::ORIGIN,
            max_silence: MAX_SILENCE,
            backoff: Backoff::new(),
        })
    }

    /// Opens a stream of the documents whose `_id`s match, in place of the one before. Returns a time after which it has
    /// all changes of each of them. If this fails, the stream before goes on.
    pub(super) async fn open(&mut self, ids: Document) -> Result<Timestamp, StreamEnd> {
        // After the answer that had the last position. So a change of a new document cannot be between that position and
        // a snapshot as of this time.
        let now = self.store.operation_time().await.map_err(StreamEnd::NotOpened)?;
        let position = self.position.clone().unwrap_or_else(|| Position::after(now));
        let mut reads = self.start(ids.clone(), position.clone());
        reads.recv().await.unwrap_or(Err(StreamEnd::Closed))?;
        (self.ids, self.position, self.reads) = (ids, Some(position), Some(reads));
        self.record_progress();
        Ok(now)
    }

    /// Waits for the next change. `None`: the server has answered that there is none, or the stream has to be opened again.
    /// Fails if changes may be lost, or if the stream cannot be opened again.
    ///
    /// Dropping the future loses nothing, and drops no future of the driver.
    pub(super) async fn next(&mut self) -> Result<Option<Document>, StreamEnd> {
        let Some(reads) = &mut self.reads else {
            Clock::Boot.sleep_until(self.due).await;
            let position = self.position.clone().ok_or(StreamEnd::Closed)?;
            self.reads = Some(self.start(self.ids.clone(), position));
            self.due = Clock::Boot.now().after(self.max_silence);
            return Ok(None);
        };
        let read = tokio::select! {
            biased;
            read = reads.recv() => read.unwrap_or(Err(StreamEnd::Silent)),
            () = Clock::Boot.sleep_until(self.due) => {
                self.max_silence = self.max_silence.saturating_mul(2);
                Err(StreamEnd::Silent)
            }
        };
        match read {
            Ok((change, position)) => {
                if self.position.as_ref() != Some(&position) {
                    self.position = Some(position);
                    self.record_progress();
                }
                Ok(change)
            }
            // A stream from another position may still be opened.
            Err(StreamEnd::NotOpened(error)) if error::meaning(&error) != Meaning::Transient => {
                Err(StreamEnd::Failed(error))
            }
            Err(end) if end.is_definite() => Err(end),
            Err(end) => {
                let error = end.into_error(self.store.database.name(), &self.store.collection);
                debug!(%error, "a change stream failed: it is opened again where it was");
                self.reads = None;
                self.due = Clock::Boot.now().after(self.backoff.next());
                Ok(None)
            }
        }
    }

    fn record_progress(&mut self) {
        self.max_silence = MAX_SILENCE;
        self.due = Clock::Boot.now().after(self.max_silence);
        self.backoff = Backoff::new();
    }

    /// Starts a task that opens a stream and reads it. The first read is that it is open.
    fn start(&self, ids: Document, position: Position) -> Receiver<Read> {
        let (pass_on, reads) = mpsc::channel(1);
        let (store, slots, permit) = (Arc::clone(&self.store), Arc::clone(&self.slots), Arc::clone(&self.permit));
        task::spawn(self.store.runtime(), async move {
            // The semaphore is never closed.
            let slot = tokio::select! {
                slot = slots.acquire_owned() => slot,
                () = pass_on.closed() => return,
            };
            if let Err(end) = read_stream(&store, ids, position, &pass_on).await {
                // The receiver may be gone.
                let _sent = pass_on.send(Err(end)).await;
            }
            drop((slot, permit));
        });
        reads
    }
}

/// Opens a stream, and reads it until its receiver is dropped or it ends.
async fn read_stream(
    store: &MongoContext,
    ids: Document,
    mut position: Position,
    pass_on: &Sender<Read>,
) -> Result<(), StreamEnd> {
    let (from, behind, id) = match position.clone() {
        Position::At(from) => (Some(from), None, None),
        Position::Behind { token, id } => (None, Some(token), id),
    };
    let mut events =
        store.open_stream(filter_stages(ids, id, &store.collection), (from, behind), CHANGES_AWAIT).await?;
    let (mut change, mut is_dropped) = (None, false);
    while pass_on.send(Ok((change, position.clone()))).await.is_ok() {
        change = events.next_if_any().await.map_err(StreamEnd::Failed)?;
        if change.is_none() && !events.is_alive() {
            return Err(if is_dropped { StreamEnd::Dropped } else { StreamEnd::Closed });
        }
        if let Some(change) = &change
            && matches!(change.get_str("operationType"), Ok("drop" | "rename"))
            && let Ok(time) = change.get_timestamp("clusterTime")
        {
            // The stream ends then, and the next one begins behind that.
            (position, is_dropped) = (Position::after(time), true);
        }
        if let Some(token) = events.resume_token().filter(|_| !is_dropped)
            && !matches!(&position, Position::Behind { token: before, .. } if *before == token)
        {
            let changed = change.as_ref().and_then(|change| change.get_document("documentKey").ok());
            position = Position::Behind { token, id: changed.and_then(|key| key.get("_id")).cloned() };
        }
    }
    Ok(())
}

/// Selects the events of the documents whose `_id`s match, of the document with the other `_id`, if there is one, and
/// those of the whole collection. Without the queue and the value if the event
/// has them whole, because they may be long. The names of their parts have dots, which a projection cannot leave out; the
/// reader does.
fn filter_stages(ids: Document, other: Option<Bson>, collection: &str) -> [Document; 2] {
    let of_documents = |ids: Document| {
        doc! { "operationType": { "$in": ["insert", "replace", "update", "delete"] }, "documentKey._id": ids }
    };
    let mut selected = vec![
        of_documents(ids),
        doc! { "operationType": { "$in": ["drop", "rename"] }, "ns.coll": { "$eq": collection } },
    ];
    selected.extend(other.map(|id| of_documents(doc! { "$eq": id })));
    [
        doc! { "$match": { "$or": selected } },
        doc! { "$project": {
            "fullDocument.queue": 0, "updateDescription.updatedFields.queue": 0,
            "fullDocument.value": 0, "updateDescription.updatedFields.value": 0,
        } },
    ]
}

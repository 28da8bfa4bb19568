//! The notifications of a handle: its grants and its revocations.
//!
//! Purpose: an open change stream keeps a connection of the client, so the handles of a hundred tenants cannot have one
//! each.
//!
//! Mechanism: the ids of the handles of a store begin with the same digits, and the server filters by them. So the
//! filter does not change when a handle comes or goes. One task reads the stream and sends each handle its
//! notifications. A handle whose id begins with other digits has a stream of its own. `state/notification_streams.rs`
//! has the streams.
//!
//! Invariant: a handle gets a time first, and then each later hand-over to it. The stream keeps its last hand-overs for
//! handles that join. If it has dropped some that a handle needs, the handle reads the time of the primary. The stream
//! cannot have read an event after that time before the handle had joined.

use std::sync::Arc;

use mongodb::{
    bson::{Document, Timestamp, doc},
    change_stream::ChangeStream,
    error::Result as DriverResult,
    options::ReadConcern,
};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::{
    context::{MongoContext, PRIMARY},
    document::hybrid_time,
    error::needs,
    state::notification_streams::{Delivery, Joined, NOTIFICATION_AWAIT, NotificationStreams, StreamReader},
    stream_error::{StreamEnd, ended_early},
    task,
};
use crate::{
    store::answers::Notification,
    types::{acquire_id::HandleId, error::Result, token::HybridTime},
};

/// Sends the grants and revocations of this handle, until the receiver is dropped. They begin at `since`, or at a later
/// time that is sent first.
pub(super) async fn watch(
    store: &Arc<MongoContext>,
    handle: HandleId,
    since: HybridTime,
    notifications: &UnboundedSender<Notification>,
) -> Result<()> {
    let mut deliveries = join(store, handle, since, notifications).await?;
    loop {
        let delivery = tokio::select! {
            delivery = deliveries.recv() => delivery,
            () = notifications.closed() => return Ok(()),
        };
        match delivery {
            Some(Ok(notification)) => drop(notifications.send(notification)),
            Some(Err(end)) => return Err(end.into_error(store.database.name(), &store.collection)),
            None => return Err(ended_early()),
        }
    }
}

/// Joins the stream of this handle, and opens it if there is none. Returns what the stream delivers.
async fn join(
    store: &Arc<MongoContext>,
    handle: HandleId,
    since: HybridTime,
    notifications: &UnboundedSender<Notification>,
) -> Result<UnboundedReceiver<Delivery>> {
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let from = Timestamp { time: number(since.seconds), increment: number(since.ordinal) };
    let streams = store.notification_streams.here(NotificationStreams::default);
    let digits = store.handles.common_digits(handle);
    let (pass_on, deliveries) = mpsc::unbounded_channel();
    match streams.join(&digits, handle, from, &pass_on) {
        Joined::First { number } => {
            let reader = StreamReader { streams, digits, number };
            task::spawn(run(Arc::clone(store), reader, from, pass_on));
        }
        Joined::Open { has_all: true } => {}
        Joined::Open { has_all: false } => {
            let now = store.operation_time().await.map_err(|error| store.translate(error, needs::WATCH))?;
            let _sent = notifications.send(Notification::Started { since: hybrid_time(now) });
        }
    }
    Ok(deliveries)
}

/// Reads a stream until it has no listener or ends.
async fn run(store: Arc<MongoContext>, reader: StreamReader, from: Timestamp, first: UnboundedSender<Delivery>) {
    if let Err(end) = read(&store, &reader, from, first).await {
        reader.end(&end);
    }
}

async fn read(
    store: &MongoContext,
    reader: &StreamReader,
    from: Timestamp,
    first: UnboundedSender<Delivery>,
) -> std::result::Result<(), StreamEnd> {
    let _permit = store.client.take_stream_permit().map_err(StreamEnd::TooMany)?;
    let mut events = store.open_hand_over_stream(&reader.digits, from).await.map_err(StreamEnd::NotOpened)?;
    let _sent = first.send(Ok(Notification::Started { since: hybrid_time(from) }));
    drop(first);
    while reader.has_listeners() {
        // A stream that was opened can be opened again after any error.
        match events.next_if_any().await.map_err(StreamEnd::Failed)? {
            Some(event) => reader.pass_on(&event),
            None if events.is_alive() => {}
            None => return Err(StreamEnd::Closed),
        }
    }
    Ok(())
}

impl MongoContext {
    /// Opens a change stream of the hand-overs to the handles whose ids begin with these digits.
    async fn open_hand_over_stream(&self, digits: &str, from: Timestamp) -> DriverResult<ChangeStream<Document>> {
        let collection = self.database.collection::<Document>(&self.collection);
        let events = collection
            .watch()
            .pipeline(filter_stages(digits))
            .start_at_operation_time(from)
            .max_await_time(NOTIFICATION_AWAIT)
            .read_concern(ReadConcern::majority())
            .selection_criteria(PRIMARY)
            .await?;
        Ok(events.with_type::<Document>())
    }
}

/// Selects the events of handles whose ids begin with these digits. The oplog has an update of a small document as a
/// replacement, and of a larger document as its difference. With the type of the operation in the filter, the server
/// applies the filter to the oplog itself. Otherwise it would first make an event of each change of a larger document.
fn filter_stages(digits: &str) -> [Document; 2] {
    let theirs = doc! { "$regex": format!("(^|;){digits}") };
    [
        doc! { "$match": { "$or": [
            { "operationType": "replace", "fullDocument.handover": theirs.clone() },
            { "operationType": "update", "updateDescription.updatedFields.handover": theirs },
        ] } },
        doc! { "$project": {
            "clusterTime": 1, "fullDocument.handover": 1, "fullDocument.last_seen": 1,
            "updateDescription.updatedFields.handover": 1, "updateDescription.updatedFields.last_seen": 1,
        } },
    ]
}

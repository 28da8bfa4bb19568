//! The notifications of a handle: its grants and its revocations.
//!
//! Mechanism: a change stream of the records, which the server filters by the id of the handle. A handle and its siblings
//! have one id, so they have one stream.
//!
//! Invariant: a handle gets a time first, and then each later hand-over to it, until its stream ends.

use std::time::Duration;

use mongodb::bson::{Document, Timestamp, doc};
use tokio::sync::mpsc::UnboundedSender;

use super::{context::MongoContext, document, stream_error::StreamEnd};
use crate::{
    record::StoreTime,
    store::answers::Notification,
    types::{acquire_id::HandleId, error::Result, token::HybridTime},
};

/// How long the server holds a request for events if there is none. A stream also stays open this long after its receiver
/// was dropped.
const NOTIFICATION_AWAIT: Duration = Duration::from_secs(2);

/// Sends the grants and revocations of this handle since a time, until the receiver is dropped.
pub(super) async fn watch(
    store: &MongoContext,
    handle: HandleId,
    since: HybridTime,
    notifications: &UnboundedSender<Notification>,
) -> Result<()> {
    let into_error = |end: StreamEnd| end.into_error(store.database.name(), &store.collection);
    let permit = store.client.take_stream_permit(store.runtime());
    let _permit = permit.map_err(|limit| into_error(StreamEnd::TooMany(limit)))?;
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let from = Timestamp { time: number(since.seconds), increment: number(since.ordinal) };
    let opened = store.open_stream(filter_stages(handle), (Some(from), None), NOTIFICATION_AWAIT).await;
    let mut events = opened.map_err(into_error)?;
    let _sent = notifications.send(Notification::Started { since });
    while !notifications.is_closed() {
        // A stream that was opened can be opened again after any error.
        match events.next_if_any().await.map_err(|error| into_error(StreamEnd::Failed(error)))? {
            Some(event) => {
                for notification in hand_overs_of(&event, handle) {
                    let _sent = notifications.send(notification);
                }
            }
            None if events.is_alive() => {}
            None => return Err(into_error(StreamEnd::Closed)),
        }
    }
    Ok(())
}

/// Selects the events of a handle. The oplog has an update of a small document as a replacement, and of a larger document
/// as its difference. With the type of the operation in the filter, the server applies the filter to the oplog itself.
/// Otherwise it would first make an event of each change of a larger document.
fn filter_stages(handle: HandleId) -> [Document; 2] {
    let own = doc! { "$regex": format!("(^|;){handle}/") };
    [
        doc! { "$match": { "$or": [
            { "operationType": "replace", "fullDocument.handover": own.clone() },
            { "operationType": "update", "updateDescription.updatedFields.handover": own },
        ] } },
        doc! { "$project": {
            "fullDocument.handover": 1, "fullDocument.last_seen": 1,
            "updateDescription.updatedFields.handover": 1, "updateDescription.updatedFields.last_seen": 1,
        } },
    ]
}

/// The grants and revocations of an event that concern a handle.
pub(super) fn hand_overs_of(event: &Document, handle: HandleId) -> Vec<Notification> {
    let replaced = event.get_document("fullDocument");
    let updated = event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let Ok(fields) = replaced.or(updated) else { return Vec::new() };
    let handover = fields.get_str("handover").ok().and_then(document::decode_handover).unwrap_or_default();
    // An update within the millisecond of the update before leaves the time as it is.
    let at = fields.get_datetime("last_seen").ok().map(|time| StoreTime::from_millis(time.timestamp_millis()));
    let own = handover.into_iter().filter(|(acquire_id, _)| acquire_id.handle == handle);
    own.map(|(acquire_id, token)| Notification::of(acquire_id, token, at)).collect()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::DateTime;

    use super::*;
    use crate::types::{acquire_id::AcquireId, token::FencingToken};

    /// The oplog logs a change of a larger record as a difference, which a filter of whole fields does not match.
    #[test]
    fn an_event_of_either_form_has_the_hand_overs_of_the_handle_and_no_others() {
        let (own, other) = (HandleId::random(), HandleId::random());
        let to = |handle, number| AcquireId { handle, number };
        let handover = format!("{}=9;{}=9;{}=9;", to(other, 1), to(own, 2), to(own, 3));
        let fields = doc! { "handover": handover, "last_seen": DateTime::from_millis(5) };
        let at = Some(StoreTime::from_millis(5));
        let granted = |number| Notification::Granted { number, token: FencingToken::new(9).unwrap(), at };
        // With fields that no server sends, as a later one may.
        for event in [
            doc! { "fullDocument": fields.clone(), "ofALaterServer": { "handover": "x" } },
            doc! { "updateDescription": { "updatedFields": fields }, "ofALaterServer": { "handover": "x" } },
        ] {
            assert_eq!(hand_overs_of(&event, own), [2, 3].map(granted));
        }
        for strange in
            [doc! {}, doc! { "fullDocument": { "handover": 1 } }, doc! { "fullDocument": { "handover": "x=y;" } }]
        {
            assert_eq!(hand_overs_of(&strange, own), []);
        }
    }
}

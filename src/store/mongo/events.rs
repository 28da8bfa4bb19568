//! How a handle hears of what it is handed: a change stream, filtered on the server.

use std::time::Duration;

use mongodb::{
    bson::{Document, Timestamp, doc},
    options::ReadConcern,
};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    super::Told,
    Inner, document,
    execute::PRIMARY,
    fault::{self, needs},
    watch_stream,
};
use crate::{Error, HandleId, Result, Tick};

/// How long the server holds a request for events when there is none: also how long a stream lives on
/// after nobody listens any more.
const AWAIT: Duration = Duration::from_secs(2);

/// Tells what is handed to this handle from `since` on, until nobody listens.
pub(super) async fn watch(store: &Inner, handle: HandleId, since: Tick, tell: &UnboundedSender<Told>) -> Result<()> {
    let _permit = store.client.stream_permit().map_err(watch_stream::too_many)?;
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut events = store
        .database
        .collection::<Document>(&store.collection)
        .watch()
        .pipeline(concerning(handle))
        .start_at_operation_time(Timestamp { time: number(since.seconds), increment: number(since.ordinal) })
        .max_await_time(AWAIT)
        .read_concern(ReadConcern::majority())
        .selection_criteria(PRIMARY)
        .await
        .map_err(|error| store.meaning(error, needs::WATCH))?
        .with_type::<Document>();
    let mut heard = tell.send(Told::Watching { since }).is_ok();
    while heard && !tell.is_closed() {
        // One that was opened can be opened again, whatever ended it.
        match events.next_if_any().await.map_err(fault::watch_ended)? {
            Some(event) => heard = told(&event, handle).into_iter().all(|told| tell.send(told).is_ok()),
            None if events.is_alive() => {}
            None => {
                return Err(Error::unavailable("the change stream ended, as it does when its collection is dropped"));
            }
        }
    }
    Ok(())
}

/// The events that concern a handle. An update of a small document is logged as a replacement, one
/// of a larger document as what changed in it. With the type of the operation in it the server applies
/// this to the oplog itself; without, it makes an event of every change of a larger document first.
fn concerning(handle: HandleId) -> [Document; 2] {
    let theirs = doc! { "$regex": format!("(^|;){handle}/") };
    [
        doc! { "$match": { "$or": [
            { "operationType": "replace", "fullDocument.handover": theirs.clone() },
            { "operationType": "update", "updateDescription.updatedFields.handover": theirs },
        ] } },
        doc! { "$project": { "fullDocument.handover": 1, "updateDescription.updatedFields.handover": 1 } },
    ]
}

/// What an event tells a handle.
pub(super) fn told(event: &Document, handle: HandleId) -> Vec<Told> {
    let replaced = event.get_document("fullDocument");
    let updated = event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let handover = replaced.or(updated).and_then(|fields| fields.get_str("handover")).unwrap_or_default();
    let handed = document::handed(handover).unwrap_or_default().into_iter();
    let theirs = handed.filter(|(caller, _)| caller.handle == handle);
    theirs.map(|(caller, token)| Told::of(caller, token)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, FencingToken};

    #[test]
    fn an_event_tells_a_handle_of_what_is_its_own_in_either_form() {
        let (own, other) = (HandleId::random(), HandleId::random());
        let handed =
            [(other, 1), (own, 2), (own, 3)].map(|(handle, number)| format!("{}=9;", Caller { handle, number }));
        let handed = handed.concat();
        let both = [2, 3].map(|number| Told::Handed { number, token: FencingToken::new(9).unwrap() });
        let replacement = doc! { "fullDocument": { "handover": &handed } };
        let update = doc! { "updateDescription": { "updatedFields": { "handover": &handed } } };
        assert_eq!(told(&replacement, own), both);
        assert_eq!(told(&update, own), both);
        for strange in
            [doc! {}, doc! { "fullDocument": { "handover": 1 } }, doc! { "fullDocument": { "handover": "x=y;" } }]
        {
            assert_eq!(told(&strange, own), []);
        }
    }
}

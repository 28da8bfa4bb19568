//! Events of a change stream.

use std::time::Duration;

pub(in crate::command) use mongoseal::mongodb::change_stream::event::ResumeToken;
use mongoseal::{
    mongodb::{
        bson::{Document, Timestamp},
        options::ReadConcern,
    },
    store::Clock,
};

use super::{Answer, Deployment, ReadPreference, SelectionCriteria, TIMEOUT, with_timeout};

/// Where a change stream begins.
pub(in crate::command) enum StreamStart {
    /// With the events from this cluster time on.
    At(Timestamp),
    /// After the event with this token.
    After(ResumeToken),
}

/// The first events of a change stream.
pub(in crate::command) struct Events {
    pub(in crate::command) events: Vec<Document>,
    /// The token of the last event.
    pub(in crate::command) token: Option<ResumeToken>,
}

impl Deployment {
    /// Reads the first events of a change stream of a collection that pass these stages. Returns fewer if no more come
    /// within `patience`.
    pub(in crate::command) async fn events(
        &self,
        collection: &str,
        stages: Vec<Document>,
        start: StreamStart,
        count: usize,
        patience: Duration,
    ) -> Answer<Events> {
        let collection = self.database.collection::<Document>(collection);
        with_timeout(TIMEOUT.saturating_add(patience), async move {
            let watch = collection
                .watch()
                .pipeline(stages)
                .max_await_time(Duration::from_millis(250))
                .read_concern(ReadConcern::majority())
                .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
            let opened = match start {
                StreamStart::At(time) => watch.start_at_operation_time(time).await?,
                StreamStart::After(token) => watch.start_after(token).await?,
            };
            let (mut stream, mut read) = (opened.with_type::<Document>(), Events { events: Vec::new(), token: None });
            let until = Clock::Boot.now().after(patience);
            while read.events.len() < count && stream.is_alive() && Clock::Boot.now() < until {
                if let Some(event) = stream.next_if_any().await? {
                    read.events.push(event);
                    read.token = stream.resume_token();
                }
            }
            Ok(read)
        })
        .await
    }
}

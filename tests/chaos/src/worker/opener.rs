//! A client in a worker: opens handles on a collection that must be refused.

use std::time::Duration;

use mongoseal::Error;
use tokio::time::sleep;

use super::{COLLATED, OPERATION_TIMEOUT, RETENTION, Worker, handles, say};
use crate::{
    crew::DATABASE,
    words::{Call, Event, micros, now},
};

const EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(worker: &Worker) {
    let documents = worker.handles.documents.as_ref().expect("it runs on MongoDB only");
    let database = documents.client().database(DATABASE);
    while !worker.is_ending() {
        let builder = handles::builder(&worker.spec).retention(RETENTION).collection(COLLATED);
        let seal = builder.on_shared_client(&database).expect("the settings are valid");
        let begin = now();
        let outcome = match seal.prepare().await {
            Ok(()) => "opened".into(),
            Err(Error::Unavailable { .. }) => "unavailable".into(),
            Err(error) if error.to_string().contains("collation") => "refused".into(),
            Err(error) => error.to_string(),
        };
        let (worker, key, verb, within) =
            (worker.spec.worker, COLLATED.into(), "prepare".into(), micros(OPERATION_TIMEOUT));
        say(&Event::Call(Call { worker, key, verb, begin, end: now(), within, outcome, ..Call::default() }));
        sleep(EVERY).await;
    }
}

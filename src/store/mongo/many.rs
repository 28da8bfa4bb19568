//! How those who do not wait travel together, whatever their keys.

use std::{sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, doc},
    options::{ReadPreference, SelectionCriteria},
};

use super::{
    Inner, MongoStore,
    combine::{MOST, Queued, Turn, in_step, longest, tell, tell_all},
    document::{self, Seen},
    fault::{self, needs},
    server_limit, template,
    verb::Verb,
};
use crate::{
    Error, Key, Result, Tick,
    record::{Joint, Moment, Outcome, Release, Request, named},
    store::Applied,
};

/// Sends acquires and releases, and tells each what came of it.
pub(super) async fn send(inner: &Arc<Inner>, requests: Vec<Queued>) {
    let (releases, acquires): (Vec<_>, Vec<_>) =
        requests.into_iter().partition(|queued| matches!(queued.request, Request::Release(_)));
    // Each kind by itself: a release is given less time at first than an acquire.
    let (releases, acquires) = (in_step(releases), in_step(acquires));
    tokio::join!(acquire(inner, acquires), release(inner, releases));
}

async fn acquire(inner: &Arc<Inner>, requests: Vec<Queued>) {
    if requests.is_empty() {
        return;
    }
    let within = longest(&requests);
    let asked: Vec<(Key, Request)> =
        requests.iter().map(|queued| (queued.key.clone(), queued.request.clone())).collect();
    let inner = Arc::clone(inner);
    let granted = MongoStore::run(within, async move { inner.acquire_many(&asked, within).await }).await;
    match granted {
        Ok(granted) => {
            for (queued, granted) in requests.into_iter().zip(granted) {
                tell(queued, granted.map_or(Turn::Apart, |applied| Turn::Together(Ok(applied))));
            }
        }
        Err(error @ Error::Unavailable { .. }) => tell_all(requests, error),
        // What asking again does not mend each hears by itself.
        Err(_definite) => requests.into_iter().for_each(|queued| tell(queued, Turn::Apart)),
    }
}

async fn release(inner: &Arc<Inner>, requests: Vec<Queued>) {
    if requests.is_empty() {
        return;
    }
    let within = longest(&requests);
    let leases = named(requests.iter().filter_map(|queued| match &queued.request {
        Request::Release(Release { token: Some(token), .. }) => Some((queued.key.clone(), *token)),
        _ => None,
    }));
    let released = {
        let inner = Arc::clone(inner);
        MongoStore::run(within, async move { inner.apply_jointly(&leases, &Joint::Release, within).await }).await
    };
    let error = match released {
        Ok(true) => {
            for queued in requests {
                tell(queued, Turn::Together(Ok(Applied { outcome: Outcome::Released, at: None })));
            }
            return;
        }
        // Some were made, and which cannot be told: as after a lost answer.
        Ok(false) => Error::unavailable("one of several leases was not held: ask again"),
        Err(error) => error,
    };
    inner.lanes.spoil(requests.iter().filter_map(|queued| queued.request.lease()));
    tell_all(requests, error);
}

impl Inner {
    /// Sends many acquires that do not wait; gives what came of them, as far as it can be told.
    async fn acquire_many(&self, asked: &[(Key, Request)], within: Duration) -> Result<Vec<Option<Applied>>> {
        let _no_transaction = self.no_transaction(within).await?;
        let head = doc! {
            "update": &self.collection,
            "ordered": false,
            "writeConcern": { "w": "majority", "wtimeout": server_limit(within) },
            "maxTimeMS": server_limit(within),
        };
        let written = self.database.run_raw_command(template::acquires(&head, asked)?);
        let written = written.selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary)).await;
        let written = written.map_err(|error| self.meaning(error, needs::HOLD))?;
        if let Some(error) = written.get("writeConcernError") {
            return Err(fault::unconfirmed(error));
        }
        let keys: Bson = asked.iter().map(|(key, _)| key.as_str()).collect();
        let after = written.get_timestamp("operationTime").map_err(fault::unreadable)?;
        let find = doc! {
            "find": &self.collection,
            "filter": { "_id": { "$in": keys } },
            "projection": document::view(Verb::Acquire),
            "batchSize": i64::try_from(MOST).unwrap_or(i64::MAX),
            "singleBatch": true,
            "readConcern": { "level": "majority", "afterClusterTime": after },
            "maxTimeMS": server_limit(within),
        };
        let found = self.command(find, needs::READ).await?;
        let found = found
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"))
            .map_err(fault::unreadable)?;
        // A statement that failed has written nothing, though the lease may hold by an earlier request.
        let failed: Vec<usize> = written
            .get_array("writeErrors")
            .into_iter()
            .flatten()
            .filter_map(|error| usize::try_from(error.as_document()?.get_i32("index").ok()?).ok())
            .collect();
        // Of the update, which is before whatever became of the leases since.
        let tick = Tick { seconds: after.time.into(), ordinal: after.increment.into() };
        let came_to = |(number, (key, request)): (usize, &(Key, Request))| {
            let mut found = found.iter().filter_map(Bson::as_document);
            let record = found.find(|record| record.get_str("_id").is_ok_and(|id| id == key.as_str()))?;
            let Seen { view, at, .. } = document::decode_view(key, record).ok()?;
            let outcome = request.outcome(Some(&view), at.now);
            let lasts = match &outcome {
                Outcome::Granted { token } => {
                    view.holders.iter().any(|holder| holder.version == *token && holder.expires_at > at.now)
                }
                // A hint, as that of an update which changed nothing.
                Outcome::Refused { holder } => holder.expires_at > at.now,
                _ => false,
            };
            (lasts && !failed.contains(&number)).then_some(Applied { outcome, at: Some(Moment { tick, ..at }) })
        };
        Ok(asked.iter().enumerate().map(came_to).collect())
    }
}

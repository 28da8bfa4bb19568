//! The fault that locks a record by an open transaction.

use std::time::Duration;

use fastrand::Rng;
use mongodb::{
    Client, ClientSession,
    bson::{Document, doc},
    error::Result,
};
use mongoseal_test_support::ReplicaSet;
use tokio::time::sleep;

use super::{Chaos, Done, millis};
use crate::{
    crew::DATABASE,
    worker::{CROWDED_KEY, HOT_KEYS, OUTSTAYED_KEYS, cold_key},
};

/// How often a record is looked for that can be locked.
const TRIES: usize = 200;

impl Chaos<ReplicaSet> {
    /// A transaction has written the record of a key, and is open for a while. It writes a field that is not the
    /// library's, and is aborted.
    pub(super) async fn lock_record(&self, rng: &mut Rng) -> Done {
        let client = self.servers.client().await;
        for _ in 0..TRIES {
            let key = lockable(rng);
            match locked(&client, &key).await {
                Ok(Some(mut session)) => {
                    let length = millis(rng, 1000..6000);
                    sleep(length).await;
                    // The server ends it by itself after a while, see `transactionLifetimeLimitSeconds`.
                    session.abort_transaction().await.ok();
                    return Done { what: format!("{key} for {length:?}"), key: Some(key), ..Done::default() };
                }
                // The record is not there, or a worker is writing it.
                Ok(None) | Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
        String::from("no record").into()
    }
}

/// A key for which many ask, or few.
fn lockable(rng: &mut Rng) -> String {
    match rng.u8(..8) {
        0..4 => OUTSTAYED_KEYS[rng.usize(..OUTSTAYED_KEYS.len())].into(),
        4..6 => HOT_KEYS[rng.usize(..3)].into(),
        6 => CROWDED_KEY.into(),
        _ => cold_key(rng),
    }
}

/// The open transaction that has written the record of this key, if there is a record.
async fn locked(client: &Client, key: &str) -> Result<Option<ClientSession>> {
    let records = client.database(DATABASE).collection::<Document>("mongoseal");
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    let update = doc! { "$set": { "beside": true } };
    let written = records.update_one(doc! { "_id": key }, update).session(&mut session).await;
    if written.as_ref().is_ok_and(|written| written.matched_count == 1) {
        return Ok(Some(session));
    }
    session.abort_transaction().await.ok();
    written.map(|_| None)
}

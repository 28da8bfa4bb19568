//! The faults that lock records by an open transaction.

use std::time::Duration;

use fastrand::Rng;
use mongodb::{
    Client, ClientSession,
    bson::{Document, doc},
    error::Result,
};
use mongoseal_test_support::ReplicaSet;
use tokio::time::sleep;

use super::{Chaos, millis};
use crate::{
    crew::DATABASE,
    words::Fault,
    worker::{BUSY_KEY, BUSY_KEYS, CROWDED_KEY, FLEET, HOT_KEYS, OUTSTAYED_KEYS, busy_key, cold_key, fleet_key},
};

/// How often a record is looked for that can be locked.
const TRIES: usize = 200;

impl Chaos<ReplicaSet> {
    /// A transaction has written the record of a key, and is open for a while. It writes a field that is not the
    /// library's, and is aborted.
    pub(super) async fn lock_record(&self, rng: &mut Rng) -> Fault {
        let length = millis(rng, 1000..6000);
        self.lock(|| vec![lockable(rng)], length).await
    }

    /// The same of many records, for longer than a call may take. Either one of each few of the fleet in the order of the
    /// keys, so that each part of a batch has locked records. Or all that are acquired in bursts, so that many acquires wait
    /// for locked records at once.
    pub(super) async fn lock_records(&self, rng: &mut Rng) -> Fault {
        let (first, every, length) = (rng.usize(..10), rng.usize(10..40), millis(rng, 3500..4700));
        let keys: Vec<_> = if rng.bool() {
            (0..FLEET).skip(first).step_by(every).map(fleet_key).collect()
        } else {
            (0..BUSY_KEYS).map(busy_key).collect()
        };
        self.lock(|| keys.clone(), length).await
    }

    /// Locks such records for so long. The server ends the transaction by itself after a while, see
    /// `transactionLifetimeLimitSeconds`.
    async fn lock(&self, mut draw: impl FnMut() -> Vec<String>, length: Duration) -> Fault {
        let client = self.servers.client().await;
        for _ in 0..TRIES {
            let keys = draw();
            if let Ok(Some(mut session)) = locked(&client, &keys).await {
                sleep(length).await;
                session.abort_transaction().await.ok();
                let what = format!("{} from {} on, for {length:?}", keys.len(), keys[0]);
                return Fault { what, keys, ..Fault::default() };
            }
            // A record is not there, or a worker is writing it.
            sleep(Duration::from_millis(10)).await;
        }
        String::from("no record, or not all").into()
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

/// The open transaction that has written the records of these keys, if those are there that have to be.
async fn locked(client: &Client, keys: &[String]) -> Result<Option<ClientSession>> {
    let records = client.database(DATABASE).collection::<Document>("mongoseal");
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    let update = doc! { "$set": { "beside": true } };
    let written = records.update_many(doc! { "_id": { "$in": keys } }, update).session(&mut session).await;
    // Few ask for a key of a burst, so some of its records may have been collected.
    let least = if keys[0].starts_with(BUSY_KEY) { keys.len() / 2 } else { keys.len() };
    if written.as_ref().is_ok_and(|written| written.matched_count >= least as u64) {
        return Ok(Some(session));
    }
    session.abort_transaction().await.ok();
    written.map(|_| None)
}

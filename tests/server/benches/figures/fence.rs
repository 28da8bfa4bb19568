//! Measures fenced writes beside plain ones.

use std::time::Instant;

use mongodb::{
    Collection,
    bson::{Document, doc},
    options::{Acknowledgment, WriteConcern},
};
use mongoseal::{Fence, Lease, Mongoseal};

use crate::{
    figures::{Figures, Round},
    measured_set::{MeasuredSet, bare_client},
};

/// The documents of a client of its own, one of them there, and a lease.
async fn documents(measured: &MeasuredSet) -> (Mongoseal, Lease, Collection<Document>) {
    let client = bare_client(measured.set).await;
    let seal = Mongoseal::new(&client.database("mongoseal_figures"));
    let lease = seal.acquire("fenced").await.expect("the key is free");
    let documents = client.database("mongoseal_figures").collection::<Document>("fenced");
    let one = documents.fenced(&lease).update_one(doc! { "_id": 1 }, doc! {}).upsert(true).await;
    one.expect("the document is inserted");
    (seal, lease, documents)
}

/// As our own writes are confirmed.
fn confirmed() -> WriteConcern {
    WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build()
}

fn plus() -> Document {
    doc! { "$inc": { "n": 1 } }
}

/// Updates a document with the fence and without.
pub(crate) async fn update(measured: &MeasuredSet) -> Figures {
    let (seal, lease, documents) = documents(measured).await;
    let (mut rounds, mut commands, mut updates) = (Vec::new(), 0, 0);
    for _ in 0..measured.rounds {
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            let began = Instant::now();
            let bare = documents.update_one(doc! { "_id": 1 }, plus()).write_concern(confirmed());
            bare.await.expect("the document is updated");
            floor.push(began.elapsed());
            let began = Instant::now();
            documents.fenced(&lease).update_one(doc! { "_id": 1 }, plus()).await.expect("the document is updated");
            ours.push(began.elapsed());
        }
        let before = measured.commands("update").await + measured.commands("find").await;
        for _ in 0..20 {
            documents.fenced(&lease).update_one(doc! { "_id": 1 }, plus()).await.expect("the document is updated");
            updates += 1;
        }
        commands += measured.commands("update").await + measured.commands("find").await - before;
        rounds.push(Round { ours, floor });
    }
    lease.release().await.expect("it is released");
    seal.shutdown().await;
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let commands = commands as f64 / f64::from(updates);
    let what = "a fenced update, beside the same update without";
    Figures { case: "fenced-update", what, rounds, commands, notes: vec![] }
}

/// Updates a document in a transaction with the lease's record and without.
pub(crate) async fn transaction(measured: &MeasuredSet) -> Figures {
    let (seal, lease, documents) = documents(measured).await;
    let mut rounds = Vec::new();
    for _ in 0..measured.rounds {
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..150 {
            let began = Instant::now();
            let mut session = documents.client().start_session().await.expect("there is a session");
            session.start_transaction().write_concern(confirmed()).await.expect("there is a transaction");
            let bare = documents.update_one(doc! { "_id": 1 }, plus()).session(&mut session);
            bare.await.expect("the document is updated");
            session.commit_transaction().await.expect("it is committed");
            floor.push(began.elapsed());
            let began = Instant::now();
            let own = documents.clone();
            let fenced = lease.transaction(async move |session| -> mongoseal::Result<()> {
                own.update_one(doc! { "_id": 1 }, plus()).session(session).await?;
                Ok(())
            });
            fenced.await.expect("it is committed");
            ours.push(began.elapsed());
        }
        rounds.push(Round { ours, floor });
    }
    lease.release().await.expect("it is released");
    seal.shutdown().await;
    let what = "an update in a transaction under a lease, beside one in a bare transaction";
    Figures { case: "fenced-transaction", what, rounds, commands: 3.0, notes: vec![] }
}

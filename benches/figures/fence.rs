//! Measures fenced writes beside plain ones.

use mongodb::{
    Collection,
    bson::{Document, doc},
    options::{Acknowledgment, WriteConcern},
};
use mongoseal::{Fence, Lease, Mongoseal};

use crate::{
    figures::{Figures, Round, Samples, commands_per_sample, timed},
    measured_set::{BLOCK, MeasuredSet, bare_client},
};

/// The documents of a client of its own, one of them there, and a lease.
async fn documents(measured: &MeasuredSet) -> (Mongoseal, Lease, Collection<Document>) {
    let client = bare_client(measured.set).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_figures"));
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
    let mut rounds = Vec::new();
    for _ in 0..measured.rounds {
        let clocks = measured.clocks().await;
        let (mut ours, mut floor) = (Samples::default(), Samples::default());
        let sent = async || measured.commands("update").await + measured.commands("find").await;
        let before = sent().await;
        for first in (0..300).step_by(BLOCK) {
            let numbers = first..first + BLOCK as u64;
            let updates = timed(numbers.clone(), |_| async {
                let bare = documents.update_one(doc! { "_id": 1 }, plus()).write_concern(confirmed());
                bare.await.expect("the document is updated");
            });
            floor.add(&clocks, updates).await;
            let updates = timed(numbers, |_| async {
                documents.fenced(&lease).update_one(doc! { "_id": 1 }, plus()).await.expect("the document is updated");
            });
            ours.add(&clocks, updates).await;
        }
        floor.commands = 300;
        ours.commands = sent().await - before - floor.commands;
        rounds.push(Round { ours, floor });
    }
    lease.release().await.expect("it is released");
    seal.shutdown().await;
    Figures {
        case: "fenced-update",
        what: "a fenced update, beside the same update without",
        commands: commands_per_sample(&rounds),
        rounds,
        notes: vec![],
    }
}

/// Updates a document in a transaction with the lease's record and without.
pub(crate) async fn transaction(measured: &MeasuredSet) -> Figures {
    let (seal, lease, documents) = documents(measured).await;
    let mut rounds = Vec::new();
    for _ in 0..measured.rounds {
        let clocks = measured.clocks().await;
        let (mut ours, mut floor) = (Samples::default(), Samples::default());
        for first in (0..150).step_by(BLOCK) {
            let numbers = first..first + BLOCK as u64;
            let bare = timed(numbers.clone(), |_| async {
                let mut session = documents.client().start_session().await.expect("there is a session");
                session.start_transaction().write_concern(confirmed()).await.expect("there is a transaction");
                let bare = documents.update_one(doc! { "_id": 1 }, plus()).session(&mut session);
                bare.await.expect("the document is updated");
                session.commit_transaction().await.expect("it is committed");
            });
            floor.add(&clocks, bare).await;
            let fenced = timed(numbers, |_| async {
                let own = documents.clone();
                let fenced = lease.transaction(async move |session| -> mongoseal::Result<()> {
                    own.update_one(doc! { "_id": 1 }, plus()).session(session).await?;
                    Ok(())
                });
                fenced.await.expect("it is committed");
            });
            ours.add(&clocks, Box::pin(fenced)).await;
        }
        // Each is an update and a commit. A fenced one updates the record of the lease, too.
        (ours.commands, floor.commands) = (3 * 150, 2 * 150);
        rounds.push(Round { ours, floor });
    }
    lease.release().await.expect("it is released");
    seal.shutdown().await;
    let what = "an update in a transaction under a lease, beside one in a bare transaction";
    Figures { case: "fenced-transaction", what, rounds, commands: 3.0, notes: vec![] }
}

//! Measures connecting: the time from the start of a process to its first lease.

use std::time::Instant;

use mongodb::{
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal::Mongoseal;
use mongoseal_test_support::noting_client;

use crate::{
    figures::{Figures, Round, Samples},
    measured_set::{MeasuredSet, as_users, bare_client},
};

/// From nothing to the first lease, beside a client from nothing to its first update.
pub(crate) async fn measure(measured: &MeasuredSet) -> Figures {
    let mut rounds = Vec::new();
    for round in 0..measured.rounds {
        let clocks = measured.clocks().await;
        let (mut ours, mut floor) = (Samples::default(), Samples::default());
        for number in 0..10 {
            let began = Instant::now();
            let connecting = async {
                let client = bare_client(measured.set).await;
                let updated = client.database("mongoseal_figures").collection::<Document>("floor");
                let update = updated.find_one_and_update(doc! { "_id": "floor" }, doc! { "$inc": { "n": 1 } });
                update.write_concern(WriteConcern::majority()).await.expect("the floor is updated");
                (client, began.elapsed())
            };
            let ((client, took), servers) = clocks.spent(connecting).await;
            floor.took.push(took);
            floor.servers += servers;
            floor.commands += 1;
            client.shutdown().await;

            let began = Instant::now();
            let connecting = async {
                let seal = measured.handle().await;
                let lease = seal.acquire(format!("first/{round}/{number}")).await.expect("the key is free");
                (seal, lease, began.elapsed())
            };
            let ((seal, lease, took), servers) = clocks.spent(connecting).await;
            ours.took.push(took);
            ours.servers += servers;
            ours.commands += 1;
            lease.release().await.expect("it is released");
            seal.shutdown().await;
        }
        rounds.push(Round { ours, floor });
    }
    let commands = f64::from(commands(measured).await);
    let notes = vec![
        format!("{commands} commands, the acquire among them, where the floor is one"),
        "processor time is per first lease, and per first update".into(),
    ];
    Figures {
        case: "connect",
        what: "from nothing to the first lease, beside the first update",
        rounds,
        commands,
        notes,
    }
}

/// How many commands a handle sends up to its first lease.
async fn commands(measured: &MeasuredSet) -> u32 {
    let (client, sent) = noting_client(&as_users(measured.set)).await;
    let seal = Mongoseal::on_shared_client(&client.database("mongoseal_figures"));
    let lease = seal.acquire("first").await.expect("the key is free");
    let sent = u32::try_from(sent.take().len()).expect("a first lease takes few commands");
    lease.release().await.expect("it is released");
    sent
}

//! Leases of one handle are refreshed in parts.

use mongodb::bson::{Bson, doc};
use mongoseal::{Lease, LeaseState, LossCause, Mongoseal};

use crate::{TestDatabase, acquire_all, by_length, eventually, millis, noting_seal, secs};

/// So many leases of one handle, in the order of their keys, which are as long as they may be.
async fn leases(seal: &Mongoseal, count: usize) -> Vec<Lease> {
    let key = |number| format!("{number:04}{}", "\u{e9}$\"".repeat(255));
    acquire_all((0..count).map(|number| seal.acquire(key(number)).ttl(secs(9)))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: judges the commands of nine seconds"]
async fn a_thousand_leases_of_a_handle_are_refreshed_by_a_few_commands_an_interval() {
    let db = TestDatabase::new("mongoseal_batch").await;
    let (seal, sent) = noting_seal(&db, "appName=noting").await;
    let many = by_length(1_000, 2_000);
    let leases = leases(&seal, many).await;
    // Until each has been refreshed once, and those between two batches have joined one.
    tokio::time::sleep(secs(7)).await;
    sent.take();
    tokio::time::sleep(secs(9)).await;
    let commands: Vec<String> = sent.take_names().into_iter().filter(|name| name != "getMore").collect();
    let parts = commands.iter().filter(|name| *name == "update").count();
    println!("in three intervals: {parts} parts, and {} other commands", commands.len() - parts);
    // A large part has fewer leases if their ttl is short. On a busy machine a part is late now and then: then there are parts of
    // 64 leases for a while, and some are refreshed alone.
    let most = 5 * many.div_ceil(64);
    assert!((3..=most).contains(&parts) && commands.len() <= most + 140, "{parts} of {}", commands.len());
    for lease in &leases {
        assert!(lease.is_valid() && lease.remaining() > secs(4), "{:?}", lease.remaining());
    }
    let lasting = doc! { "$expr": { "$gt": [{ "$first": "$holders.expires_at" }, { "$add": ["$$NOW", 4_000] }] } };
    assert_eq!(db.records().count_documents(lasting).await.unwrap(), many as u64, "the server agrees");
    seal.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: leases of nine seconds must outlast a busy machine"]
async fn what_somebody_did_to_records_of_a_batch_is_told_to_their_holders_and_costs_the_others_nothing() {
    let db = TestDatabase::new("mongoseal_batch_spoilt").await;
    let seal = db.seal();
    let leases = leases(&seal, 200).await;
    let spoil = |number: usize, update| {
        let (records, key) = (db.records(), leases[number].key().as_str().to_owned());
        async move { records.update_one(doc! { "_id": key }, update).await.unwrap() }
    };
    db.records().delete_one(doc! { "_id": leases[7].key().as_str() }).await.unwrap();
    // One that no update of many can touch without failing, one that is none, and one of a backup.
    spoil(20, doc! { "$set": { "holders.0.refreshes": "many" } }).await;
    spoil(150, doc! { "$set": { "holders": Bson::Null } }).await;
    spoil(199, doc! { "$set": { "holders": [] } }).await;
    // A lease can be at risk before its handle finds it lost: the refresh of its part is late, or fails for a spoilt record.
    let told = || async {
        let state = |number: usize| leases[number].state();
        state(7) == LeaseState::Lost { cause: LossCause::Removed }
            && state(199) == LeaseState::Lost { cause: LossCause::Expired }
            // An operator can repair these two records until their leases expire.
            && [20, 150].into_iter().all(|number| state(number) == LeaseState::AtRisk)
    };
    eventually(secs(8), "those four are told", told).await;
    tokio::time::sleep(secs(9)).await;
    for number in [20, 150] {
        assert_eq!(leases[number].state(), LeaseState::Lost { cause: LossCause::Expired });
    }
    let held = leases.iter().filter(|lease| lease.is_valid() && lease.remaining() > secs(3)).count();
    assert_eq!(held, 196);
    seal.shutdown().await;
    tokio::time::sleep(millis(1)).await;
}

//! The library sets the concerns and the read preference that its promises need, whatever the caller's client is set
//! to.

use mongodb::{
    bson::{Document, doc},
    options::{ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};
use mongoseal::Mongoseal;
use mongoseal_test_support::{ReplicaSet, shared};

use crate::secs;

/// What a member received of us for the collection, from its profiler. Members ask each other, too.
async fn received(set: &ReplicaSet, member: usize, database: &str) -> Vec<Document> {
    let client = mongodb::Client::with_uri_str(set.direct_uri(member)).await.unwrap();
    let updates = doc! { "op": "update", "ns": format!("{database}.mongoseal") };
    let of_ours = [doc! { "command.findAndModify": "mongoseal" }, doc! { "command.find": "mongoseal" }, updates];
    let profile = client.database(database).collection::<Document>("system.profile");
    let mut found = profile.find(doc! { "appName": "enforced", "$or": of_ours.to_vec() }).await.unwrap();
    let mut commands = Vec::new();
    while found.advance().await.unwrap() {
        commands.push(found.deserialize_current().unwrap());
    }
    commands
}

#[tokio::test]
async fn concerns_and_preference_of_the_caller_do_not_count() {
    let set = shared(3).await;
    let name = "mongoseal_enforced";
    let weak = set.uri_with(
        "appName=enforced&w=1&journal=false&readConcernLevel=local&readPreference=secondary&retryWrites=true",
    );
    set.client().await.database(name).drop().await.unwrap();
    let primary = set.primary().await;
    for member in 0..3 {
        let client = mongodb::Client::with_uri_str(set.direct_uri(member)).await.unwrap();
        client.database(name).run_command(doc! { "profile": 2 }).await.unwrap();
    }

    let client = mongodb::Client::with_uri_str(&weak).await.unwrap();
    let options = mongodb::options::DatabaseOptions::builder()
        .write_concern(WriteConcern::builder().w(mongodb::options::Acknowledgment::Nodes(1)).build())
        .read_concern(ReadConcern::available())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Secondary { options: None }))
        .build();
    let handles = [
        Mongoseal::builder().database(name).connect(&weak).await.unwrap(),
        Mongoseal::on_shared_client(&client.database_with_options(name, options)),
    ];
    for seal in &handles {
        let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
        lease.refresh().await.unwrap();
        lease.verify().await.unwrap();
        lease.release().await.unwrap();
    }

    for member in (0..3).filter(|member| *member != primary) {
        assert_eq!(received(set, member, name).await, [] as [Document; 0], "only the primary is asked");
    }
    let commands = received(set, primary, name).await;
    let (mut writes, mut updates, mut reads) = (0, 0, 0);
    for entry in &commands {
        let command = entry.get_document("command").unwrap();
        if entry.get_str("op") == Ok("update") {
            // The profile has no concern of an update: `commands.rs` checks that of each write.
            updates += 1;
        } else if command.contains_key("findAndModify") {
            let concern = command.get_document("writeConcern").unwrap();
            assert_eq!(concern.get_str("w").unwrap(), "majority", "{concern}");
            assert!(concern.get_bool("j").is_ok_and(|journal| journal), "{concern}");
            assert!(!command.contains_key("txnNumber"), "sent once, not as a retryable write");
            writes += 1;
        } else {
            let concern = command.get_document("readConcern").unwrap();
            assert_eq!(concern.get_str("level").unwrap(), "linearizable");
            assert!(command.contains_key("maxTimeMS"));
            reads += 1;
        }
    }
    // Acquire, refresh, release and verify, twice. A slow machine sends some of them again.
    assert!(writes >= 4 && updates >= 2 && reads >= 2, "{writes} {updates} {reads}: {commands:#?}");
}

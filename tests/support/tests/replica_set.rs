//! Sets start, have faults, and recover.

use std::time::{Duration, Instant};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal_test_support::{ReplicaSet, shared};

async fn things(set: &ReplicaSet) -> Collection<Document> {
    set.client().await.database("test").collection("things")
}

async fn write(set: &ReplicaSet, id: &str) {
    things(set).await.insert_one(doc! { "_id": id }).write_concern(WriteConcern::majority()).await.unwrap();
}

#[tokio::test]
async fn a_killed_terminated_or_paused_primary_is_replaced_and_comes_back() {
    let quickly = "shutdownTimeoutMillisForSignaledShutdown";
    let set = ReplicaSet::builder().members(3).parameter(quickly, "500").start().await;
    for fault in ["kill", "terminate", "pause"] {
        let old = set.primary().await;
        match fault {
            "kill" => set.kill(old).await,
            "terminate" => set.terminate(old).await,
            _ => set.pause(old).await,
        }
        assert_ne!(set.primary().await, old, "{fault}");
        write(&set, fault).await;
        if fault == "pause" {
            set.resume(old).await;
        } else {
            set.restart(old).await;
        }
        set.settled().await;
    }
    assert_eq!(things(&set).await.count_documents(doc! {}).await.unwrap(), 3);
}

#[tokio::test]
async fn a_fail_point_hits_only_its_client_and_ends() {
    let set = shared(1).await;
    let client = Client::with_uri_str(set.uri_with("appName=victim&retryWrites=false")).await.unwrap();
    let victim = client.database("test").collection::<Document>("victims");
    let bystander = set.client().await.database("test").collection::<Document>("victims");
    let data = doc! { "errorCode": 91 };
    let fault = set.fail_command("victim", &["findAndModify"], data.clone(), 1).await;
    bystander.find_one_and_delete(doc! { "_id": 1 }).await.unwrap();
    victim.find_one_and_delete(doc! { "_id": 1 }).await.unwrap_err();
    fault.hit(1).await;
    assert_eq!(fault.off().await, 1);

    let begin = Instant::now();
    drop(set.fail_command("victim", &["findAndModify"], data, 1_000_000).await);
    while victim.find_one_and_delete(doc! { "_id": 1 }).await.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "a dropped fail point stays armed");
    }
}

#[tokio::test]
async fn those_who_arm_the_same_fail_point_take_turns() {
    let set = shared(1).await;
    let client = Client::with_uri_str(set.uri_with("appName=turns&retryWrites=false")).await.unwrap();
    let things = client.database("test").collection::<Document>("turns");
    let arm = |code: i32| set.fail_command("turns", &["findAndModify"], doc! { "errorCode": code }, 1);
    let first = arm(91).await;
    let second = tokio::spawn(arm(96));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished(), "the second waits for the first");
    things.find_one_and_delete(doc! { "_id": 1 }).await.unwrap_err();
    assert_eq!(first.off().await, 1, "and has not changed it");
    // One that is dropped gives up its turn, too.
    drop(second.await.unwrap());
    drop(arm(91).await);
}

//! Sets start, have faults, and recover.

use std::time::{Duration, Instant};

use mongodb::{
    Client, Collection,
    bson::{Bson, Document, doc},
    options::WriteConcern,
};
use mongoseal_test_support::{ReplicaSet, Standalone, shared};

async fn things(set: &ReplicaSet) -> Collection<Document> {
    set.client().await.database("test").collection("things")
}

async fn write(set: &ReplicaSet, id: &str) {
    things(set).await.insert_one(doc! { "_id": id }).write_concern(WriteConcern::majority()).await.unwrap();
}

#[tokio::test]
async fn a_killed_primary_is_replaced_and_comes_back() {
    let begin = Instant::now();
    let set = ReplicaSet::start(3).await;
    println!("three members started in {:?}", begin.elapsed());
    write(&set, "before").await;

    let old = set.primary().await;
    let begin = Instant::now();
    set.kill(old).await;
    let new = set.primary().await;
    println!("failover after kill -9 took {:?}", begin.elapsed());
    assert_ne!(new, old);
    write(&set, "between").await;

    set.restart(old).await;
    set.settled().await;
    write(&set, "after").await;
    assert_eq!(things(&set).await.count_documents(doc! {}).await.unwrap(), 3);
}

#[tokio::test]
async fn a_terminated_primary_hands_over_and_comes_back() {
    let quickly = "shutdownTimeoutMillisForSignaledShutdown";
    let set = ReplicaSet::builder().members(3).parameter(quickly, "500").start().await;
    write(&set, "before").await;
    let old = set.primary().await;
    set.terminate(old).await;
    assert_ne!(set.primary().await, old);
    write(&set, "during").await;
    set.restart(old).await;
    set.settled().await;
    write(&set, "after").await;
}

#[tokio::test]
async fn the_primary_moves_on_request() {
    let set = ReplicaSet::builder().members(3).election_timeout(Duration::from_secs(2)).start().await;
    let first = set.primary().await;
    let other = (first + 1) % 3;
    let begin = Instant::now();
    set.step_up(other).await;
    println!("step-up took {:?}", begin.elapsed());
    assert_eq!(set.primary().await, other);

    let begin = Instant::now();
    set.step_down().await;
    println!("step-down took {:?}", begin.elapsed());
    set.step_down().await;
    set.settled().await;
}

#[tokio::test]
async fn a_paused_primary_is_replaced_and_resumes() {
    let set = ReplicaSet::start(3).await;
    let old = set.primary().await;
    let begin = Instant::now();
    set.pause(old).await;
    assert_ne!(set.primary().await, old);
    println!("failover after SIGSTOP took {:?}", begin.elapsed());
    set.resume(old).await;
    set.settled().await;
}

#[tokio::test]
async fn one_set_is_shared_by_all_who_ask() {
    let begin = Instant::now();
    let (one, other) = tokio::join!(shared(1), shared(1));
    println!("one member started in {:?}", begin.elapsed());
    assert!(std::ptr::eq(one, other));
    let begin = Instant::now();
    assert!(std::ptr::eq(one, shared(1).await));
    println!("asking again took {:?}", begin.elapsed());
}

#[test]
fn a_shared_set_works_from_one_runtime_after_another() {
    for round in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let set = shared(1).await;
            write(set, &format!("round {round}")).await;
            set.admin(0, doc! { "ping": 1 }).await.unwrap();
        });
    }
}

#[tokio::test]
async fn a_fail_point_hits_only_its_client_and_ends() {
    let set = shared(1).await;
    let client = Client::with_uri_str(set.uri_with("appName=victim&retryWrites=false")).await.unwrap();
    let victim = client.database("test").collection::<Document>("victims");
    let bystander = set.client().await.database("test").collection::<Document>("victims");
    let data = doc! { "errorCode": 91 };
    let fault = set.fail_command("victim", &["findAndModify"], data.clone(), 1).await;
    let count = set.command_count(0, "findAndModify").await;
    bystander.find_one_and_delete(doc! { "_id": 1 }).await.unwrap();
    victim.find_one_and_delete(doc! { "_id": 1 }).await.unwrap_err();
    fault.hit(1).await;
    assert_eq!(fault.off().await, 1);
    assert!(set.command_count(0, "findAndModify").await > count);

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

#[tokio::test]
async fn the_oplog_tells_the_history_of_a_document() {
    let set = shared(1).await;
    let things = set.client().await.database("test").collection::<Document>("history");
    things.insert_one(doc! { "_id": "it" }).await.unwrap();
    things.update_one(doc! { "_id": "it" }, doc! { "$set": { "a": 1 } }).await.unwrap();
    things.insert_one(doc! { "_id": "other" }).await.unwrap();
    things.delete_one(doc! { "_id": "it" }).await.unwrap();
    let entries = set.oplog_entries("test.history", &Bson::from("it")).await;
    let kinds: Vec<_> = entries.iter().map(|entry| entry.get_str("op").unwrap()).collect();
    assert_eq!(kinds, ["i", "u", "d"]);
}

#[tokio::test]
async fn access_control_lets_users_do_what_they_may() {
    let begin = Instant::now();
    let set = ReplicaSet::builder().members(3).auth().start().await;
    println!("three members with access control started in {:?}", begin.elapsed());
    write(&set, "by root").await;
    set.admin(1, doc! { "serverStatus": 1 }).await.unwrap();

    let resource = doc! { "db": "app", "collection": "leases" };
    set.add_user("reader", "word", "app", vec![doc! { "resource": resource, "actions": ["find"] }]).await;
    let client = Client::with_uri_str(set.uri_as("reader", "word", "app")).await.unwrap();
    let leases = client.database("app").collection::<Document>("leases");
    assert_eq!(leases.find_one(doc! {}).await.unwrap(), None);
    let refusal = leases.insert_one(doc! {}).await.unwrap_err();
    assert!(refusal.to_string().contains("not authorized"), "{refusal}");
}

#[tokio::test]
async fn a_member_s_clock_can_be_shifted() {
    let set = ReplicaSet::builder().own_clocks().start().await;
    set.set_clock(0, "-1h");
    let begin = Instant::now();
    loop {
        let hello = set.admin(0, doc! { "hello": 1 }).await.unwrap();
        let server = hello.get_datetime("localTime").unwrap().timestamp_millis();
        let behind = mongodb::bson::DateTime::now().timestamp_millis() - server;
        if (3_590_000..3_610_000).contains(&behind) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "the clock is {behind} ms behind");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("the clock was shifted after {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_standalone_server_answers() {
    let begin = Instant::now();
    let server = Standalone::start().await;
    let client = Client::with_uri_str(server.uri()).await.unwrap();
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    println!("a standalone server started in {:?}", begin.elapsed());
    assert!(!hello.contains_key("setName"));
}

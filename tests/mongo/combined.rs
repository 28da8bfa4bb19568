//! Requests that come faster than they are answered go out together, and nobody notices.

use std::collections::HashSet;

use mongodb::bson::doc;
use mongoseal::{Error, Lease, Mongoseal, Released, Result};
use tokio::task::JoinSet;

use crate::{Bench, noting_client, secs};

const MANY: usize = 200;

/// Asks for these keys side by side.
async fn ask(seal: &Mongoseal, keys: impl IntoIterator<Item = String>) -> Vec<Result<Lease>> {
    let mut asking = JoinSet::new();
    for key in keys {
        asking.spawn(seal.acquire(key).metadata("said", "$$ROOT").without_refresh().into_future());
    }
    asking.join_all().await
}

async fn release(leases: Vec<Lease>) -> Vec<Result<Released>> {
    let mut releasing = JoinSet::new();
    for lease in leases {
        releasing.spawn(lease.release());
    }
    releasing.join_all().await
}

fn keys() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("$key/{number}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_at_once_are_few_commands() {
    let bench = Bench::new("combined").await;
    let (client, sent) = noting_client(&bench.set.uri()).await;
    let seal = bench_seal(&client.database("mongoseal_combined"));
    seal.prepare().await.unwrap();
    let mut last = HashSet::new();
    // Of new keys, and of known ones.
    for round in 0..2 {
        sent.lock().unwrap().clear();
        let leases: Vec<Lease> = ask(&seal, keys()).await.into_iter().map(Result::unwrap).collect();
        let tokens: HashSet<_> = leases.iter().map(|lease| (lease.key().clone(), lease.token())).collect();
        assert_eq!(tokens.len(), MANY);
        for lease in &leases {
            assert!(last.iter().all(|(key, token)| key != lease.key() || *token < lease.token()), "tokens grow");
        }
        leases[MANY / 2].verify().await.unwrap();
        last = tokens;
        let record = bench.record("$key/7").await.unwrap();
        let holder = record.get_array("holders").unwrap()[0].as_document().unwrap().clone();
        assert_eq!(holder.get_str("owner").unwrap(), "$owner", "no text is read as an expression");
        assert_eq!(holder.get_document("metadata").unwrap().get_str("said").unwrap(), "$$ROOT");
        for released in release(leases).await {
            assert_eq!(released.unwrap(), Released::Ours);
        }
        let commands = sent.lock().unwrap().clone();
        let written = commands.iter().filter(|name| ["update", "findAndModify"].contains(&name.as_str())).count();
        println!("round {round}: {written} commands for {MANY} acquires and as many releases");
        assert!(written < MANY, "{written} commands: {commands:?}");
    }
    let held = bench.records().count_documents(doc! { "holders": { "$ne": [] } }).await.unwrap();
    assert_eq!(held, 0, "nothing is left held");
}

fn bench_seal(database: &mongodb::Database) -> Mongoseal {
    Mongoseal::builder().owner("$owner").on(database).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_in_a_crowd_is_told_by_whom() {
    let bench = Bench::new("combined_held").await;
    let (other, seal) = (bench.build(Mongoseal::builder().owner("other")), bench.seal());
    let holder = other.acquire("$key/50").await.unwrap();
    bench.records().insert_one(doc! { "_id": "$key/60", "version": "none of ours" }).await.unwrap();
    let mut granted = 0;
    // Fifty of the keys are asked for twice.
    let twice: Vec<String> = keys().take(50).collect();
    for answer in ask(&seal, keys().chain(twice.clone())).await {
        match answer {
            Ok(_lease) => granted += 1,
            Err(Error::Held { key, owner, token, .. }) if key.as_str() == "$key/50" => {
                assert_eq!((owner.as_str(), token), ("other", holder.token()));
            }
            Err(Error::Corrupt { key, .. }) => assert_eq!(key.as_str(), "$key/60"),
            Err(Error::Held { key, .. }) => assert!(twice.iter().any(|twice| twice == key.as_str()), "{key}"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(granted, MANY - 2, "each other key once");
    holder.verify().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_is_not_answered_asks_again_and_leaves_nothing_held() {
    let faults = [
        doc! { "errorCode": 91 },
        doc! { "closeConnection": true },
        doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } },
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let name = format!("combined_fault_{number}");
        let bench = Bench::new(&name).await;
        let client = mongodb::Client::with_uri_str(bench.set.uri_with(&format!("appName={name}"))).await.unwrap();
        let seal = Mongoseal::builder().on(&client.database(&format!("mongoseal_{name}"))).unwrap();
        seal.prepare().await.unwrap();
        let commands = ["update", "find"];
        let point = bench.set.fail_command(&name, &commands, fault.clone(), 3).await;
        let leases: Vec<Lease> = ask(&seal, keys()).await.into_iter().map(Result::unwrap).collect();
        point.hit(3).await;
        drop(point);
        for lease in leases.iter().step_by(20) {
            lease.verify().await.unwrap();
        }
        let point = bench.set.fail_command(&name, &commands, fault, 2).await;
        for released in release(leases).await {
            let released = released.unwrap();
            assert!(matches!(released, Released::Ours), "nobody asked meanwhile: {released:?}");
        }
        drop(point);
        let held = bench.records().count_documents(doc! { "holders": { "$ne": [] } }).await.unwrap();
        assert_eq!(held, 0, "nothing is left held");
        seal.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_gave_up_is_not_granted_what_it_asked_for_later() {
    let bench = Bench::new("combined_gone").await;
    let client = mongodb::Client::with_uri_str(bench.set.uri_with("appName=combined_gone")).await.unwrap();
    let builder = Mongoseal::builder().operation_timeout(secs(1));
    let seal = builder.on(&client.database("mongoseal_combined_gone")).unwrap();
    seal.prepare().await.unwrap();
    let slow = doc! { "blockConnection": true, "blockTimeMS": 1_500 };
    let point = bench.set.fail_command("combined_gone", &["findAndModify"], slow, 8).await;
    let answers = ask(&seal, keys()).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(Error::Unavailable { .. }))));
    drop(point);
    tokio::time::sleep(secs(4)).await;
    let held = bench.records().count_documents(doc! { "holders": { "$ne": [] } }).await.unwrap();
    // What the server had begun with can come after it was taken back, and lapses with its ttl.
    assert!(held <= 8, "nothing else is sent: {held}");
}

//! The example `migrations`, run by processes of which one is killed.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Database,
    bson::{Document, doc},
};
use mongoseal_test_support::{ReplicaSet, TestDatabase, built};
use tokio::{task::JoinSet, time::timeout};

use crate::Process;

const PODS: usize = 8;
const STEPS: u64 = 6;

fn start(name: &str, steps: u64, uri: &str) -> Process {
    Process::start(&built("migrations"), &[name, &steps.to_string()], uri, &[])
}

/// Reads what a pod prints to its end. If it is the first to begin this step, kills it after this pause.
async fn watch(mut pod: Process, is_killed: Arc<AtomicBool>, (step, pause): (u64, Duration)) -> Vec<String> {
    let (mut said, mut is_victim) = (Vec::new(), false);
    while let Some(line) = pod.said.recv().await {
        if line.contains(&format!("runs step {step}:")) && !is_killed.swap(true, Ordering::Relaxed) {
            tokio::time::sleep(pause).await;
            pod.child.kill().await.unwrap();
            is_victim = true;
        }
        said.push(line);
    }
    let ended = pod.child.wait().await.unwrap();
    assert!(is_victim || ended.success(), "{said:?}");
    said
}

/// The documents of a collection, in the order of their ids.
async fn documents(database: &Database, collection: &str) -> Vec<Document> {
    let mut found = database.collection::<Document>(collection).find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    let mut documents = Vec::new();
    while found.advance().await.unwrap() {
        documents.push(found.deserialize_current().unwrap());
    }
    documents
}

/// `MONGOSEAL_ROUNDS` sets the number of rounds. In each, the first pod that begins a random step is killed at a random time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: its faults come by chance, and it takes many seconds"]
async fn each_step_has_its_effect_once_and_all_pods_start_though_one_is_killed_at_a_random_point() {
    // A pod that dies in its transaction leaves what it has written locked for so long. The default is a minute.
    let set = ReplicaSet::builder().members(1).parameter("transactionLifetimeLimitSeconds", "3").start().await;
    let client = set.client().await;
    let rounds = env::var("MONGOSEAL_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap());
    let mut repeated = 0;
    for round in 0..rounds {
        let database = client.database(&format!("round_{round}"));
        let uri = set.uri().replacen("/?", &format!("/{}?", database.name()), 1);
        // Half of them die before they have done anything.
        let pause = if round % 2 == 0 { 0 } else { fastrand::u64(0..40_000) };
        let kill = (fastrand::u64(1..=STEPS), Duration::from_micros(pause));
        let (mut pods, is_killed) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for pod in 0..PODS {
            let pod = start(&format!("pod-{pod}"), STEPS, &uri);
            pods.spawn(watch(pod, Arc::clone(&is_killed), kill));
        }
        let ended = timeout(Duration::from_secs(60), pods.join_all()).await.expect("the pods start");
        let count = |words: &str| ended.iter().flatten().filter(|line| line.contains(words)).count();
        assert!(
            is_killed.load(Ordering::Relaxed) && count(" starts") >= PODS - 1,
            "round {round}, {kill:?}: {ended:?}"
        );
        repeated += count(" runs step ") - usize::try_from(STEPS).unwrap();

        let steps: Vec<_> =
            documents(&database, "schema").await.iter().map(|step| step.get_i64("_id").unwrap()).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6], "round {round}, {kill:?}");
        let prices: Vec<_> =
            documents(&database, "products").await.iter().map(|product| product.get_i32("price").unwrap()).collect();
        assert_eq!(prices, [300, 300], "round {round}, {kill:?}: a price is multiplied once");
        let [stock] = documents(&database, "stock").await.try_into().unwrap();
        assert_eq!(stock.get_i32("count"), Ok(11), "round {round}, {kill:?}: the spare box is counted once");
        for (collection, index) in [("products", "name_1"), ("stock", "box_1")] {
            let names = database.collection::<Document>(collection).list_index_names().await.unwrap();
            assert!(names.contains(&index.to_owned()), "{names:?}");
        }
        database.drop().await.unwrap();
    }
    println!("{rounds} rounds, each with a pod that was killed: {repeated} steps were tried again");
    assert!(repeated > 0, "a pod is killed before the end of its step");
}

#[tokio::test]
async fn a_pod_of_an_older_release_is_refused_by_name_and_changes_nothing() {
    let db = TestDatabase::new("examples_migrations_old").await;
    let run = async |name: &str, steps| {
        let (mut pod, mut said) = (start(name, steps, &db.uri()), Vec::new());
        while let Some(line) = pod.said.recv().await {
            said.push(line);
        }
        (pod.child.wait().await.unwrap().code(), said)
    };
    let (code, said) = run("first", 4).await;
    assert_eq!((code, said.last().map(String::as_str)), (Some(0), Some("first starts")), "{said:?}");
    let (code, said) = run("newer", STEPS).await;
    let begun: Vec<_> = said.iter().filter(|line| line.contains(" runs step ")).collect();
    assert_eq!((code, begun.len()), (Some(0), 2), "only the new steps: {said:?}");
    let (code, said) = run("older", 5).await;
    let refused = "older does not start: newer has run step 6, and this release knows 5: deploy a later release";
    assert_eq!((code, said), (Some(1), vec![refused.to_owned()]));
    assert_eq!(documents(&db.database, "schema").await.len(), 6);
}

//! Many concurrent requests of different keys: each is a command of its own with a reply of its own.

use std::collections::HashSet;

use mongodb::bson::doc;
use mongoseal::{Error, Lease, Mongoseal, ReleaseOutcome, Result};
use tokio::task::JoinSet;

use crate::{TestDatabase, noting_client};

const MANY: usize = 70;

/// Asks for these keys side by side.
async fn ask(seal: &Mongoseal, keys: impl IntoIterator<Item = String>) -> Vec<Result<Lease>> {
    let mut asking = JoinSet::new();
    for key in keys {
        asking.spawn(seal.acquire(key).metadata("said", "$$ROOT").without_refresh().into_future());
    }
    asking.join_all().await
}

async fn release(leases: Vec<Lease>) -> Vec<Result<ReleaseOutcome>> {
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
async fn each_of_many_acquires_and_releases_at_once_is_a_command_of_its_own() {
    let db = TestDatabase::new("mongoseal_many").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = bench_seal(&client.database("mongoseal_many"));
    seal.prepare().await.unwrap();
    let mut last = HashSet::new();
    // Of new keys, and of known ones.
    for _ in 0..2 {
        sent.take();
        let leases: Vec<Lease> = ask(&seal, keys()).await.into_iter().map(Result::unwrap).collect();
        let tokens: HashSet<_> = leases.iter().map(|lease| (lease.key().clone(), lease.token())).collect();
        assert_eq!(tokens.len(), MANY);
        for lease in &leases {
            assert!(last.iter().all(|(key, token)| key != lease.key() || *token < lease.token()), "tokens grow");
        }
        last = tokens;
        let record = db.record("$key/7").await.unwrap();
        let holder = record.get_array("holders").unwrap()[0].as_document().unwrap().clone();
        assert_eq!(holder.get_str("owner").unwrap(), "$owner", "no text is read as an expression");
        assert_eq!(holder.get_document("metadata").unwrap().get_str("said").unwrap(), "$$ROOT");
        for released in release(leases).await {
            assert_eq!(released.unwrap(), ReleaseOutcome::Released);
        }
        for (name, of_each) in [("findAndModify", "acquire"), ("update", "release")] {
            let written = sent.count(name);
            assert_eq!(written, MANY, "one command for each {of_each}");
        }
    }
    let held = db.records().count_documents(doc! { "holders": { "$ne": [] } }).await.unwrap();
    assert_eq!(held, 0, "nothing is left held");
}

fn bench_seal(database: &mongodb::Database) -> Mongoseal {
    Mongoseal::builder().owner("$owner").on(database).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_in_a_crowd_is_told_by_whom() {
    let db = TestDatabase::new("mongoseal_many_held").await;
    let (other, seal) = (db.build(Mongoseal::builder().owner("other")), db.seal());
    let holder = other.acquire("$key/50").await.unwrap();
    db.records().insert_one(doc! { "_id": "$key/60", "version": "none of ours" }).await.unwrap();
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
        let name = format!("many_fault_{number}");
        let db = TestDatabase::new(&format!("mongoseal_{name}")).await;
        let client = mongodb::Client::with_uri_str(db.set.uri_with(&format!("appName={name}"))).await.unwrap();
        let seal = Mongoseal::builder().on(&client.database(&format!("mongoseal_{name}"))).unwrap();
        seal.prepare().await.unwrap();
        let commands = ["findAndModify"];
        let point = db.set.fail_command(&name, &commands, fault.clone(), 3).await;
        let leases: Vec<Lease> = ask(&seal, keys()).await.into_iter().map(Result::unwrap).collect();
        point.hit(3).await;
        drop(point);
        for lease in leases.iter().step_by(20) {
            lease.verify().await.unwrap();
        }
        let point = db.set.fail_command(&name, &commands, fault, 2).await;
        for released in release(leases).await {
            let released = released.unwrap();
            assert!(matches!(released, ReleaseOutcome::Released), "nobody asked meanwhile: {released:?}");
        }
        drop(point);
        let held = db.records().count_documents(doc! { "holders": { "$ne": [] } }).await.unwrap();
        assert_eq!(held, 0, "nothing is left held");
        seal.shutdown().await;
    }
}

/// Asks a store itself, which takes requests of any lease id.
mod of_a_store {
    use mongodb::bson::doc;
    use mongoseal::{
        AcquireId, Deadline, Error, FencingToken, Key, LeaseId,
        record::{Acquire, LeaseSpec, Outcome, Release, Request},
        store::{Applied, MongoStore, Store},
    };
    use tokio::task::JoinSet;

    use crate::{TestDatabase, secs, terms};

    fn key(number: usize) -> Key {
        format!("key/{number}").parse().unwrap()
    }

    fn acquire(lease: LeaseId) -> Request {
        let terms = LeaseSpec { acquire_id: acquire_id_of(lease), ..terms(lease, 60_000) };
        Request::Acquire(Acquire { terms, wait: None })
    }

    /// The acquire id of each request for this lease: they are of one acquire.
    fn acquire_id_of(lease: LeaseId) -> AcquireId {
        let digits = lease.expose().replace('-', "");
        format!("{}/1", &digits[..16]).parse().unwrap()
    }

    fn release((lease, token): (LeaseId, FencingToken)) -> Request {
        Request::Release(Release { lease, token })
    }

    /// Sends all of these side by side; gives what came of them in this order.
    async fn send(store: &MongoStore, requests: Vec<(Key, Request)>) -> Vec<mongoseal::Result<Applied>> {
        let mut sent = JoinSet::new();
        for (number, (key, request)) in requests.into_iter().enumerate() {
            let applied = store.apply(&key, request, Deadline::after(store.clock(), secs(5)));
            sent.spawn(async move { (number, applied.await) });
        }
        let mut came = sent.join_all().await;
        came.sort_by_key(|(number, _)| *number);
        came.into_iter().map(|(_, applied)| applied).collect()
    }

    async fn granted(store: &MongoStore, numbers: std::ops::Range<usize>) -> Vec<(LeaseId, FencingToken)> {
        let leases: Vec<LeaseId> = numbers.clone().map(|_| LeaseId::random()).collect();
        let requests = numbers.zip(&leases).map(|(number, lease)| (key(number), acquire(*lease))).collect();
        let came = send(store, requests).await;
        let token = |applied: mongoseal::Result<Applied>| match applied.unwrap().outcome {
            Outcome::Granted { token, .. } => token,
            outcome => panic!("{outcome:?}"),
        };
        leases.into_iter().zip(came.into_iter().map(token)).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_granted_before_does_not_answer_for_a_write_that_failed_in_a_crowd() {
        let db = TestDatabase::new("mongoseal_many_failed").await;
        let store = MongoStore::new(&db.database, "mongoseal", secs(24 * 3600));
        store.prepare(Deadline::after(store.clock(), secs(5))).await.unwrap();
        let before = granted(&store, 0..1).await;
        // From now on nobody's second request of a lease can be written.
        let refuses = doc! { "$expr": { "$not": { "$gt": [{ "$max": "$holders.refreshes" }, 0] } } };
        db.database.run_command(doc! { "collMod": "mongoseal", "validator": refuses }).await.unwrap();
        let mut crowd: Vec<_> = (1..60).map(|number| (key(number), acquire(LeaseId::random()))).collect();
        crowd.push((key(0), acquire(before[0].0)));
        let mut came = send(&store, crowd).await;
        let again = came.pop().unwrap();
        assert!(matches!(again, Err(Error::Invalid { .. })), "it holds, but not by this: {again:?}");
        for applied in came {
            assert!(matches!(applied.unwrap().outcome, Outcome::Granted { .. }));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_release_that_was_not_confirmed_costs_no_other_release() {
        let name = "many_spoilt";
        let db = TestDatabase::new(&format!("mongoseal_{name}")).await;
        let client = mongodb::Client::with_uri_str(db.set.uri_with(&format!("appName={name}"))).await.unwrap();
        let store = MongoStore::new(&client.database(&format!("mongoseal_{name}")), "mongoseal", secs(24 * 3600));
        store.prepare(Deadline::after(store.clock(), secs(5))).await.unwrap();
        let (first, second) = (granted(&store, 0..30).await, granted(&store, 30..60).await);
        let releases = |leases: &[(LeaseId, FencingToken)], from: usize| -> Vec<(Key, Request)> {
            leases.iter().enumerate().map(|(number, lease)| (key(from + number), release(*lease))).collect()
        };
        let unconfirmed = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
        let point = db.set.fail_command(name, &["update"], unconfirmed, 1).await;
        let came = send(&store, releases(&first, 0)).await;
        // Usually once. The server may hit two that come at the same moment.
        let hit = point.off().await;
        let doubtful: Vec<usize> = (0..30).filter(|number| came[*number].is_err()).collect();
        assert!(hit > 0);
        assert_eq!(doubtful.len() as u64, hit, "each is a command of its own");
        // They are asked for again, side by side with others.
        let again = doubtful.iter().map(|number| (key(*number), release(first[*number])));
        let together: Vec<_> = releases(&second, 30).into_iter().chain(again).collect();
        let came = send(&store, together).await;
        for (number, applied) in came.into_iter().enumerate() {
            let outcome = applied.unwrap_or_else(|error| panic!("{number}: {error}")).outcome;
            let expected = if number < 30 { Outcome::Released } else { Outcome::Absent };
            assert_eq!(outcome, expected, "{number}");
        }
    }
}

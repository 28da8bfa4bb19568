//! The time of a real server.

use mongodb::bson::doc;
use mongoseal::Mongoseal;

use crate::{TestDatabase, noting_client};

#[tokio::test]
async fn the_time_is_read_by_one_command_whatever_is_in_the_collection() {
    let db = TestDatabase::new("mongoseal_now").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let seal = Mongoseal::on_shared_client(&client.database(db.database.name()));
    seal.prepare().await.unwrap();
    db.records().drop().await.unwrap();
    sent.take();
    let without_collection = seal.now().await.unwrap();
    assert_eq!(sent.take_names(), ["aggregate"]);

    db.records().insert_one(doc! { "_id": 1, "now": "not a time" }).await.unwrap();
    let with_another_document = seal.now().await.unwrap();
    assert!(with_another_document >= without_collection);

    let lease = seal.acquire("k").await.unwrap();
    let granted = seal.inspect("k").await.unwrap().unwrap().holders[0].since;
    assert!(granted >= with_another_document);
    assert!(seal.now().await.unwrap() >= granted);
    lease.release().await.unwrap();
}

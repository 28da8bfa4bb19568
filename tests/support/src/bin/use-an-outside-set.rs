//! Uses the replica set at `MONGOSEAL_TEST_URI`, and tries to inject faults: for the test that such a set can be used,
//! and that faults in it are refused.

use mongodb::bson::{Document, doc};
use mongoseal_test_support::shared;

#[tokio::main]
async fn main() {
    let set = shared(3).await;
    assert_eq!(set.uri(), std::env::var("MONGOSEAL_TEST_URI").expect("MONGOSEAL_TEST_URI names a set"));
    assert!(std::ptr::eq(set, shared(1).await), "it is the one for every size");
    let things = set.client().await.database("test").collection::<Document>("outside");
    things.insert_one(doc! { "_id": "it" }).await.expect("it takes a document");
    assert_eq!(set.oplog_entries("test.outside", &"it".into()).await.len(), 1);
    println!("it serves");
    set.kill(0).await;
}

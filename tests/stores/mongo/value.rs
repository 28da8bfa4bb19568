//! The value of a key on a real server.

use mongodb::bson::{Bson, Document, doc};
use mongoseal::{Error, Json};
use serde_json::json;

use crate::{TestDatabase, secs};

#[tokio::test]
async fn a_value_is_a_document_that_a_shell_shows() {
    let db = TestDatabase::new("mongoseal_value").await;
    let lease = db.seal().acquire("k").await.unwrap();
    let content = json!({ "page": 7, "big": i64::MAX, "half": 0.5, "$set": [null, true, { "a.b": "text" }] });
    lease.put_value(&content).await.unwrap();
    let stored = db.record("k").await.unwrap();
    let value = stored.get_document("value").unwrap();
    let expected: Document =
        doc! { "$set": [Bson::Null, true, { "a.b": "text" }], "big": i64::MAX, "half": 0.5, "page": 7 };
    assert_eq!(value.get_document("content").unwrap(), &expected);
    assert_eq!((value.get_i64("token").unwrap(), stored.get_i32("v").unwrap()), (i64::from(lease.token()), 1));
}

#[tokio::test]
async fn a_value_that_another_program_wrote_over_is_corrupt_for_its_verbs_and_stays() {
    let db = TestDatabase::new("mongoseal_value_foreign").await;
    let lease = db.seal().acquire("k").ttl(secs(60)).await.unwrap();
    for foreign in [Bson::from(7), doc! { "content": 1 }.into(), doc! { "token": 1, "write": 1_i64 }.into()] {
        db.records().update_one(doc! { "_id": "k" }, doc! { "$set": { "value": &foreign } }).await.unwrap();
        for error in [lease.put_value(&1).await.unwrap_err(), lease.value::<i32>().await.unwrap_err()] {
            // The first reading after the grant needs no request.
            assert!(matches!(&error, Error::Corrupt { message, .. } if message.contains("value")), "{error}");
        }
        assert_eq!(db.record("k").await.unwrap().get("value").unwrap(), &foreign);
    }
    // A person may change the content. What JSON does not have is read as text.
    let stored = doc! { "content": { "when": mongodb::bson::DateTime::from_millis(0) }, "token": 1_i64, "write": 1_i64, "at": mongodb::bson::DateTime::now() };
    db.records().update_one(doc! { "_id": "k" }, doc! { "$set": { "value": stored } }).await.unwrap();
    let read = lease.value::<Json>().await.unwrap().unwrap();
    assert!(read.content.to_string().contains("1970"), "{}", read.content);
    lease.put_value(&1).await.unwrap();
}

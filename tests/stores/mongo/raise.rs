//! Raising versions on a real server.

use mongodb::bson::{Bson, DateTime, doc};
use mongoseal::{Error, FencingToken, HybridTime};

use crate::TestDatabase;

/// A token that stands for a time so many seconds after that of another.
fn ahead(token: FencingToken, seconds: u64) -> FencingToken {
    FencingToken::new(token.get() + (seconds << HybridTime::ORDINAL_BITS)).unwrap()
}

#[tokio::test]
async fn a_document_that_is_not_a_record_is_not_raised_and_stays_as_it_is() {
    let db = TestDatabase::new("mongoseal_raise_foreign").await;
    let seal = db.seal();
    let to = ahead(seal.acquire("whole").await.unwrap().token(), 7_200);
    let whole = db.record("whole").await.unwrap();
    let with = |id: &str, field: &str, value: Bson| {
        let mut document = whole.clone();
        document.insert("_id", id);
        document.insert(field, value);
        document
    };
    let foreign = [
        doc! { "_id": "bare" },
        doc! { "_id": "v only", "v": 1 },
        with("newer", "v", 2.into()),
        with("no version", "version", Bson::Null),
        with("spent", "version", i64::from(FencingToken::MAX).into()),
        with("holders", "holders", 7.into()),
        with("queue", "queue", doc! {}.into()),
        with("history", "history", vec![doc! { "at": DateTime::from_millis(0) }].into()),
        with("expires_at", "expires_at", "soon".into()),
    ];
    for document in foreign {
        db.records().insert_one(&document).await.unwrap();
        let key = document.get_str("_id").unwrap();
        match seal.raise_token_floor(key, to).await {
            Err(Error::Invalid { .. }) if key == "newer" => {}
            Err(Error::Corrupt { .. }) if key != "newer" => {}
            other => panic!("{key}: {other:?}"),
        }
        assert_eq!(db.record(key).await.unwrap(), document);
    }
}

//! The TTL index of a collection that is dropped while a handle is open.

use mongoseal::Mongoseal;

use crate::{TestDatabase, eventually, noting_client, secs};

#[tokio::test]
async fn a_handle_makes_the_index_again_in_the_background_after_a_drop_of_the_collection() {
    let db = TestDatabase::new("mongoseal_index_again").await;
    let (client, sent) = noting_client(&db.set.uri()).await;
    let made = || sent.count("createIndexes");
    let builder = Mongoseal::builder().retention(secs(6)).ttl(secs(2));
    let seal = builder.on_shared_client(&client.database(db.database.name())).unwrap();
    drop(seal.acquire("before").await.unwrap().release().await.unwrap());
    assert_eq!(made(), 1);

    db.records().drop().await.unwrap();
    let _lease = seal.acquire("after").await.unwrap();
    assert_eq!(db.records().list_index_names().await.unwrap(), ["_id_"]);
    let has_index = async || db.records().list_index_names().await.unwrap().contains(&"expires_at_1".to_owned());
    // The refreshes of the lease are enough.
    eventually(secs(20), "the index is made again", has_index).await;
    let mut indexes = db.records().list_indexes().await.unwrap();
    let mut after = None;
    while indexes.advance().await.unwrap() {
        after = after.or(indexes.deserialize_current().unwrap().options.and_then(|options| options.expire_after));
    }
    assert_eq!(after, Some(secs(6)));
    assert_eq!(made(), 2);
}

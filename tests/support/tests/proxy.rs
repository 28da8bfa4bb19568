//! The proxy's faults act as requested, and end.

use std::time::{Duration, Instant};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal_test_support::{How, Peer, ReplicaSet};

async fn things(set: &ReplicaSet, options: &str) -> Collection<Document> {
    let client = Client::with_uri_str(set.uri_with(options)).await.unwrap();
    client.database("test").collection("things")
}

#[tokio::test]
async fn a_swallowed_reply_fails_the_call_but_not_the_write() {
    let set = ReplicaSet::builder().proxied().start().await;
    let victim = things(&set, "appName=victim&retryWrites=false").await;
    victim.insert_one(doc! { "_id": "connected" }).await.unwrap();
    let hits = set.proxy().swallow_reply("victim", "insert", 1);
    victim.insert_one(doc! { "_id": "stored" }).await.unwrap_err();
    assert_eq!(hits.count(), 1);
    assert!(victim.find_one(doc! { "_id": "stored" }).await.unwrap().is_some());
    victim.insert_one(doc! { "_id": "next" }).await.unwrap();
}

#[tokio::test]
async fn a_delayed_reply_is_late_and_its_request_is_not() {
    let by = Duration::from_secs(1);
    let set = ReplicaSet::builder().proxied().start().await;
    let (late, other) = (things(&set, "appName=late").await, things(&set, "appName=other").await);
    for client in [&late, &other] {
        client.insert_one(doc! {}).await.unwrap();
    }
    let hits = set.proxy().delay_replies("late", by);
    let begin = Instant::now();
    let call = late.insert_one(doc! { "_id": "stored at once" }).into_future();
    let (stored, ()) = tokio::join!(call, async {
        while other.find_one(doc! { "_id": "stored at once" }).await.unwrap().is_none() {}
        assert!(begin.elapsed() < by, "{:?}", begin.elapsed());
    });
    stored.unwrap();
    assert!(begin.elapsed() >= by && hits.count() >= 1, "{:?}", begin.elapsed());

    set.proxy().heal();
    let begin = Instant::now();
    late.insert_one(doc! { "_id": "healed" }).await.unwrap();
    assert!(begin.elapsed() < by, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_cut_concerns_one_direction() {
    let set = ReplicaSet::builder().proxied().start().await;
    let client = Peer::client("cut");
    let cut = things(&set, "appName=cut").await;
    cut.insert_one(doc! { "_id": "connected" }).await.unwrap();
    set.proxy().cut(Peer::Anyone, client.clone(), How::Blackhole);
    let call = cut.insert_one(doc! { "_id": "unanswered" }).write_concern(WriteConcern::majority());
    tokio::time::timeout(Duration::from_millis(500), call.into_future()).await.expect_err("the reply is held");
    let observer = things(&set, "appName=observer").await;
    assert!(observer.find_one(doc! { "_id": "unanswered" }).await.unwrap().is_some());

    set.proxy().heal();
    set.proxy().cut_both(&client, &Peer::Member(0), How::Reset);
    cut.insert_one(doc! { "_id": "refused" }).await.unwrap_err();
    assert!(observer.find_one(doc! { "_id": "refused" }).await.unwrap().is_none());
    set.proxy().heal();
    cut.insert_one(doc! { "_id": "healed" }).await.unwrap();
}

//! Watching all keys with a prefix on a real server.

use mongodb::bson::{Document, doc};
use mongoseal::{
    Error, FencingToken, Mongoseal,
    inspect::{EventKind, EventStream},
};

use crate::{
    TestDatabase, secs,
    watch::{held, missed, next, nothing},
};

async fn is_granted(events: &mut EventStream, key: &str, token: FencingToken) {
    let event = next(events).await;
    let granted = matches!(&event.kind, EventKind::Granted { holding } if holding.token == token);
    assert!(event.key.as_str() == key && event.token == token && granted, "{event:?}, and not the grant of {token}");
}

async fn is(events: &mut EventStream, key: &str, token: FencingToken, kind: EventKind) {
    let event = next(events).await;
    assert_eq!((event.key.as_str(), event.token, event.kind), (key, token, kind));
}

/// The difference of a second revocation fits only a record whose `history` the watch remembers, also without holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_way_to_end_is_told_and_documents_of_others_are_left_out() {
    let db = TestDatabase::new("mongoseal_prefix_ends").await;
    let seal = db.seal();
    // Before there is a collection, or even a database.
    let mut events = seal.watch_prefix("$k.").await.unwrap();
    let change = async |id: &str, update: Document| {
        db.records().update_one(doc! { "_id": id }, update).await.unwrap();
    };
    let lease = seal.acquire("$k.a").await.unwrap();
    is_granted(&mut events, "$k.a", lease.token()).await;
    let token = lease.token();
    lease.release().await.unwrap();
    is(&mut events, "$k.a", token, EventKind::Released).await;
    // Of an idle record, the watch keeps nothing.
    for _ in 0..3 {
        let lease = seal.acquire("$k.a").shared().metadata("note", "x".repeat(500)).await.unwrap();
        is_granted(&mut events, "$k.a", lease.token()).await;
        let token = lease.token();
        db.seal().revoke("$k.a").by("$olga").reason("$$ROOT").await.unwrap();
        is(&mut events, "$k.a", token, EventKind::Revoked { by: "$olga".into(), reason: "$$ROOT".into() }).await;
    }
    let dead = db.seal().acquire("$k.b").ttl(secs(1)).without_refresh().await.unwrap();
    is_granted(&mut events, "$k.b", dead.token()).await;
    is(&mut events, "$k.b", dead.token(), EventKind::Expired).await;

    for id in ["$k.foreign", "$k.holders"] {
        db.records().insert_one(doc! { "_id": id, "holders": { "a": 1 } }).await.unwrap();
        change(id, doc! { "$set": { "holders.b": 2, "x.y": 3 } }).await;
    }
    db.records().insert_one(doc! { "_id": 7, "holders": [1] }).await.unwrap();
    let lease = seal.acquire("$k.a").await.unwrap();
    is_granted(&mut events, "$k.a", lease.token()).await;
    change("$k.a", doc! { "$set": { "theirs": 1, "holders.0.note": "mine" } }).await;
    nothing(&mut events).await;
    change("$k.a", doc! { "$set": { "holders.0.owner": 7 } }).await;
    is(&mut events, "$k.a", lease.token(), EventKind::Removed).await;

    let lease = seal.acquire("$k.c").await.unwrap();
    is_granted(&mut events, "$k.c", lease.token()).await;
    db.records().delete_one(doc! { "_id": "$k.c" }).await.unwrap();
    is(&mut events, "$k.c", lease.token(), EventKind::Removed).await;
    let lease = db.seal().acquire("$k.c").await.unwrap();
    is_granted(&mut events, "$k.c", lease.token()).await;
    for _ in 0..2 {
        let token = db.record("$k.c").await.unwrap().get_i64("version").unwrap().try_into().unwrap();
        db.records().drop().await.unwrap();
        is(&mut events, "$k.c", token, EventKind::Removed).await;
        let lease = db.seal().acquire("$k.c").await.unwrap();
        is_granted(&mut events, "$k.c", lease.token()).await;
        lease.orphan();
    }
    seal.shutdown().await;
    assert!(matches!(events.next().await, Some(Err(Error::Invalid { .. }))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_stream_killed_on_the_server_goes_on_and_a_lost_one_tells_what_has_changed() {
    let db = TestDatabase::new("mongoseal_prefix_cut").await;
    let seal = Mongoseal::builder().database("mongoseal_prefix_cut");
    let seal = seal.connect(db.set.uri_with("appName=prefix_cut")).await.unwrap();
    let kept = db.seal().acquire("k/kept").await.unwrap();
    let mut events = seal.watch_prefix("k/").await.unwrap();
    assert!(matches!(next(&mut events).await.kind, EventKind::Holds { .. }));
    for number in 0..3 {
        // Not resumable: the driver gives up.
        let error = doc! { "errorCode": 2, "errmsg": "killed" };
        let killed = db.set.fail_command("prefix_cut", &["getMore"], error, 1).await;
        killed.hit(1).await;
        let key = format!("k/{number}");
        let token = held(&db.seal(), key.as_str()).await;
        is_granted(&mut events, &key, token).await;
        is(&mut events, &key, token, EventKind::Released).await;
        killed.off().await;
    }
    let error = doc! { "errorCode": 286, "errmsg": "lost" };
    let lost = db.set.fail_command("prefix_cut", &["getMore", "aggregate"], error, 3).await;
    lost.hit(3).await;
    let token = kept.token();
    kept.release().await.unwrap();
    let lease = db.seal().acquire("k/new").await.unwrap();
    lost.off().await;
    missed(&mut events).await;
    let mut both = [next(&mut events).await, next(&mut events).await];
    both.sort_by_key(|event| event.token);
    assert_eq!((both[0].token, &both[0].kind), (token, &EventKind::Released));
    assert!(both[1].token == lease.token() && matches!(both[1].kind, EventKind::Granted { .. }), "{both:?}");
    nothing(&mut events).await;
    seal.shutdown().await;
}

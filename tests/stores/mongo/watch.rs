//! Watching a key, or all keys with a prefix, on a real server.

use mongodb::bson::{Document, doc};
use mongoseal::{
    Error, FencingToken, Mongoseal,
    inspect::{Event, EventKind, EventStream, WatchItem},
};
use mongoseal_test_support::ReplicaSet;
use tokio::{task::JoinSet, time::timeout};

use crate::{TestDatabase, by_length, eventually, millis, noting_seal, secs, siblings::streams};

/// The next event, which comes soon.
async fn next(events: &mut EventStream) -> Event {
    let item = timeout(secs(20), events.next()).await.expect("it comes soon").expect("it goes on").unwrap();
    item.into_event().expect("no event is missing")
}

/// That nothing happens for a while.
async fn nothing(events: &mut EventStream) {
    let told = timeout(millis(500), events.next()).await;
    assert!(told.is_err(), "{told:?}");
}

/// The token of a lease that is acquired and released.
async fn held(seal: &Mongoseal, key: &str) -> FencingToken {
    let lease = seal.acquire(key).await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    token
}

async fn is_granted(events: &mut EventStream, token: FencingToken) {
    let event = next(events).await;
    let granted = matches!(&event.kind, EventKind::Granted { holding } if holding.token == token);
    assert!(event.token == token && granted, "{event:?}, and not the grant of {token}");
}

async fn is(events: &mut EventStream, token: FencingToken, kind: EventKind) {
    let event = next(events).await;
    assert_eq!((event.token, event.kind), (token, kind));
}

/// All watches of keys share one change stream. It is opened again for each new key, behind the last change that it has had.
#[tokio::test]
async fn a_watch_that_comes_after_the_change_of_a_key_that_nobody_watches_any_more_costs_the_others_nothing() {
    let db = TestDatabase::new("mongoseal_watched_anew").await;
    let seal = db.seal();
    let mut others = seal.watch("others").await.unwrap();
    for number in 0..8 {
        let key = format!("k{number}");
        let mut events = seal.watch(key.as_str()).await.unwrap();
        let token = seal.acquire(key.as_str()).await.unwrap().token();
        is_granted(&mut events, token).await;
        drop(events);
    }
    let lease = seal.acquire("others").await.unwrap();
    is_granted(&mut others, lease.token()).await;
}

/// A snapshot of a collection that does not exist has no time to begin from. A stream that begins at a drop is ended by
/// the drop each time that it is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_begins_before_its_collection_is_there_and_outlasts_drops_of_the_collection() {
    let db = TestDatabase::new("mongoseal_ends").await;
    let key = r#"a.b/$where"'{$gt: ""}"#;
    let seal = db.seal();
    // Before there is a collection, or even a database.
    let mut events = seal.watch(key).await.unwrap();
    let _beside = seal.acquire("a.b/$where").await.unwrap();
    let lease = db.seal().acquire(key).await.unwrap();
    is_granted(&mut events, lease.token()).await;
    let mut second = db.seal().watch(key).await.unwrap();
    assert!(matches!(next(&mut second).await.kind, EventKind::Holds { .. }));
    let mut token = lease.token();
    let mut kept = vec![lease];
    for _ in 0..2 {
        db.records().drop().await.unwrap();
        let lease = seal.acquire(key).await.unwrap();
        for events in [&mut events, &mut second] {
            is(events, token, EventKind::Removed).await;
            is_granted(events, lease.token()).await;
        }
        token = lease.token();
        kept.push(lease);
    }
    // Of a collection that is not there for a while all is told, too.
    db.records().drop().await.unwrap();
    for events in [&mut events, &mut second] {
        is(events, token, EventKind::Removed).await;
        nothing(events).await;
    }
    for _ in 0..2 {
        let token = held(&db.seal(), key).await;
        for events in [&mut events, &mut second] {
            is_granted(events, token).await;
            is(events, token, EventKind::Released).await;
        }
    }
    nothing(&mut events).await;
    seal.shutdown().await;
    assert!(matches!(events.next().await, Some(Err(Error::Invalid { .. }))));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn fields_of_others_are_no_events_and_what_is_no_record_any_more_is_the_end() {
    let db = TestDatabase::new("mongoseal_foreign_fields").await;
    let seal = db.seal();
    let waiting = db.seal();
    let lease = seal.acquire("k").shared().await.unwrap();
    let token = lease.token();
    let other = seal.acquire("k").shared().metadata("note", "x".repeat(4_000)).await.unwrap();
    let queued = tokio::spawn(waiting.acquire("k").wait(secs(60)).into_future());
    let mut events = seal.watch("k").await.unwrap();
    for held in [token, other.token()] {
        let event = next(&mut events).await;
        assert!(event.token == held && matches!(event.kind, EventKind::Holds { .. }), "{event:?}");
    }
    let change = async |update: Document| drop(db.records().update_one(doc! { "_id": "k" }, update).await.unwrap());
    change(doc! { "$set": { "theirs": { "a": [1, 2] } } }).await;
    change(doc! { "$set": { "theirs.a.1": 3, "holders.0.note": "mine" } }).await;
    change(doc! { "$unset": { "theirs.a": "", "holders.0.note": "" } }).await;
    nothing(&mut events).await;
    // An operator who takes an entry out by hand.
    let bytes = mongodb::bson::Binary { subtype: mongodb::bson::spec::BinarySubtype::Uuid, bytes: vec![0; 16] };
    change(doc! { "$pull": { "holders": { "version": token } } }).await;
    is(&mut events, token, EventKind::Released).await;
    change(doc! { "$set": { "holders.0.lease": bytes, "holders.0.owner": 7 } }).await;
    let last = timeout(secs(20), events.next()).await.unwrap();
    match last {
        Some(Err(Error::Corrupt { message, .. })) => assert!(message.contains("`holders[0].owner`"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert!(events.next().await.is_none());
    assert!(matches!(seal.watch("k").await, Err(Error::Corrupt { .. })));
    queued.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_stream_that_is_killed_or_refused_for_a_while_goes_on_where_it_was() {
    let db = TestDatabase::new("mongoseal_cut").await;
    let (seal, sent) = noting_seal(&db, "appName=cut").await;
    let too_soon = doc! { "errorCode": 246, "errmsg": "too soon" };
    let too_soon = db.set.fail_command("cut", &["find"], too_soon, 2).await;
    let mut events = seal.watch("k").await.unwrap();
    assert_eq!(too_soon.off().await, 2);
    for _ in 0..3 {
        // Not resumable: the driver gives up.
        let error = doc! { "errorCode": 2, "errmsg": "killed" };
        let killed = db.set.fail_command("cut", &["getMore"], error, 1).await;
        killed.hit(1).await;
        let token = held(&db.seal(), "k").await;
        is_granted(&mut events, token).await;
        is(&mut events, token, EventKind::Released).await;
        killed.off().await;
        let opened = sent.take().into_iter().rfind(|command| command.contains_key("aggregate")).unwrap();
        let stage = opened.get_array("pipeline").unwrap()[0].as_document().unwrap().get_document("$changeStream");
        assert!(stage.unwrap().contains_key("resumeAfter"), "not where it began: {opened}");
    }
    // It cannot be opened again for a while, in which another watch wants it.
    let error = doc! { "errorCode": 262, "errmsg": "overloaded" };
    let closed = db.set.fail_command("cut", &["getMore", "aggregate"], error, 40).await;
    closed.hit(4).await;
    let mut tokens = Vec::new();
    for _ in 0..20 {
        tokens.push(held(&db.seal(), "k").await);
    }
    let (begun, ()) = tokio::join!(seal.watch("other"), closed.hit(12));
    drop(begun);
    closed.off().await;
    for token in tokens {
        is_granted(&mut events, token).await;
        is(&mut events, token, EventKind::Released).await;
    }
    nothing(&mut events).await;

    // Nobody asks the server once nobody listens.
    drop(events);
    let listens = async || {
        let stream = doc! { "appName": "cut", "command.getMore": { "$exists": true } };
        let pipeline = vec![doc! { "$currentOp": { "allUsers": true } }, doc! { "$match": stream }];
        let mut found = db.client.database("admin").aggregate(pipeline).await.unwrap();
        found.advance().await.unwrap()
    };
    eventually(secs(30), "the stream is given up", async || !listens().await).await;
    seal.shutdown().await;
}

#[tokio::test]
async fn who_may_not_open_a_change_stream_polls() {
    let set = ReplicaSet::builder().auth().start().await;
    let on = |actions: &[&str]| {
        vec![doc! { "resource": { "db": "app", "collection": "mongoseal" }, "actions": actions.to_vec() }]
    };
    set.add_user("least", "pw", "app", on(&["find", "insert", "update"])).await;
    set.add_user("looks", "pw", "app", on(&["find", "changeStream", "listIndexes"])).await;
    set.add_user("nobody", "pw", "app", on(&["collStats"])).await;
    let connect = |user: &str| Mongoseal::builder().database("app").connect(set.uri_as(user, "pw", "app"));
    let seal = connect("least").await.unwrap();
    let mut events = seal.watch("k").await.unwrap();
    let mut all = seal.watch_prefix("").await.unwrap();
    // To watch takes no more than to look.
    let mut told = connect("looks").await.unwrap().watch("k").await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    for events in [&mut events, &mut all, &mut told] {
        is_granted(events, lease.token()).await;
    }
    seal.revoke("k").by("alice").reason("drill").await.unwrap();
    for events in [&mut events, &mut all, &mut told] {
        is(events, lease.token(), EventKind::Revoked { by: "alice".into(), reason: "drill".into() }).await;
    }
    assert!(matches!(connect("nobody").await.unwrap().watch("k").await, Err(Error::Invalid { .. })));
    seal.shutdown().await;
}

/// A change stream for each watch would keep the connections of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watches_of_a_handle_share_one_change_stream() {
    let db = TestDatabase::new("mongoseal_watches").await;
    let seal = Mongoseal::connect(db.uri() + "&appName=watches").await.unwrap();
    let key = |number: usize| format!("k{number}");
    let (first, mut watching) = (seal.watch(key(0)).await.unwrap(), JoinSet::new());
    for number in 1..by_length(25, 100) {
        let seal = seal.clone();
        watching.spawn(async move { (number, seal.watch(key(number)).await.unwrap()) });
    }
    let mut watches = watching.join_all().await;
    watches.push((0, first));
    // The streams that others have replaced end soon.
    eventually(secs(30), "one", || async { streams(&db.client, "watches").await == 1 }).await;
    for (number, events) in &mut watches {
        let lease = seal.acquire(key(*number)).await.unwrap();
        is_granted(events, lease.token()).await;
        let token = lease.token();
        lease.release().await.unwrap();
        is(events, token, EventKind::Released).await;
    }
    // Seen neither as an operation nor as an idle cursor at some moments.
    eventually(secs(30), "still one", || async { streams(&db.client, "watches").await == 1 }).await;
    drop(watches);
    eventually(secs(30), "none", || async { streams(&db.client, "watches").await == 0 }).await;
    let mut again = seal.watch(key(0)).await.unwrap();
    let lease = seal.acquire(key(0)).await.unwrap();
    is_granted(&mut again, lease.token()).await;
    seal.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_read_slowly_delays_no_other_and_is_told_how_the_record_is_then() {
    let db = TestDatabase::new("mongoseal_slow_watch").await;
    let seal = db.seal();
    let (mut slow, mut quick) = (seal.watch("slow").await.unwrap(), seal.watch("quick").await.unwrap());
    // More than are kept for it: 64 events, 64 states and 4,096 changes.
    let first = held(&seal, "slow").await;
    for _ in 0..70 {
        held(&seal, "slow").await;
    }
    let updates = vec![doc! { "q": { "_id": "slow" }, "u": { "$inc": { "theirs": 1 } } }; 5_000];
    db.database.run_command(doc! { "update": "mongoseal", "updates": updates }).await.unwrap();
    let left_out = held(&seal, "slow").await;
    let lease = seal.acquire("quick").await.unwrap();
    is_granted(&mut quick, lease.token()).await;

    let last = seal.acquire("slow").await.unwrap();
    let (mut told, mut missed) = (Vec::new(), 0);
    loop {
        match timeout(secs(20), slow.next()).await.unwrap().unwrap().unwrap() {
            WatchItem::Event(event) if event.token == last.token() => break,
            WatchItem::Event(event) => told.push(event.token),
            _missed => missed += 1,
        }
    }
    assert_eq!(missed, 1, "that it was left behind is reported, once");
    assert!(told.contains(&first) && told.is_sorted() && !told.contains(&left_out), "{told:?}");
    let token = last.token();
    last.release().await.unwrap();
    is(&mut slow, token, EventKind::Released).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_is_told_of_every_grant_while_others_begin_and_replace_its_stream() {
    let db = TestDatabase::new("mongoseal_replaced_stream").await;
    let seal = db.seal();
    let mut events = seal.watch("k").await.unwrap();
    let holds = tokio::spawn({
        let seal = db.seal();
        async move {
            let mut tokens = Vec::new();
            for _ in 0..by_length(50, 200) {
                tokens.push(held(&seal, "k").await);
            }
            tokens
        }
    });
    let mut others = Vec::new();
    while !holds.is_finished() {
        others.push(seal.watch(format!("other/{}", others.len())).await.unwrap());
    }
    assert!(others.len() > 1, "{}", others.len());
    for token in holds.await.unwrap() {
        is_granted(&mut events, token).await;
        is(&mut events, token, EventKind::Released).await;
    }
    nothing(&mut events).await;
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
    is_granted(&mut events, lease.token()).await;
    let token = lease.token();
    lease.release().await.unwrap();
    is(&mut events, token, EventKind::Released).await;
    // Of an idle record, the watch keeps nothing.
    for _ in 0..3 {
        let lease = seal.acquire("$k.a").shared().metadata("note", "x".repeat(500)).await.unwrap();
        is_granted(&mut events, lease.token()).await;
        let token = lease.token();
        db.seal().revoke("$k.a").by("$olga").reason("$$ROOT").await.unwrap();
        is(&mut events, token, EventKind::Revoked { by: "$olga".into(), reason: "$$ROOT".into() }).await;
    }
    let dead = db.seal().acquire("$k.b").ttl(secs(1)).without_refresh().await.unwrap();
    is_granted(&mut events, dead.token()).await;
    is(&mut events, dead.token(), EventKind::Expired).await;

    // The watch keeps nothing of the first.
    for (id, field) in [("$k.foreign", "v"), ("$k.holders", "holders")] {
        db.records().insert_one(doc! { "_id": id, field: { "a": 1 } }).await.unwrap();
        change(id, doc! { "$set": { format!("{field}.b"): 2, "x.y": 3 } }).await;
    }
    db.records().insert_one(doc! { "_id": 7, "holders": [1] }).await.unwrap();
    let lease = seal.acquire("$k.a").await.unwrap();
    is_granted(&mut events, lease.token()).await;
    change("$k.a", doc! { "$set": { "theirs": 1, "holders.0.note": "mine" } }).await;
    nothing(&mut events).await;
    change("$k.a", doc! { "$set": { "holders.0.owner": 7 } }).await;
    is(&mut events, lease.token(), EventKind::Removed).await;

    let lease = seal.acquire("$k.c").await.unwrap();
    is_granted(&mut events, lease.token()).await;
    db.records().delete_one(doc! { "_id": "$k.c" }).await.unwrap();
    is(&mut events, lease.token(), EventKind::Removed).await;
    let lease = db.seal().acquire("$k.c").await.unwrap();
    is_granted(&mut events, lease.token()).await;
    for _ in 0..2 {
        let token = db.record("$k.c").await.unwrap().get_i64("version").unwrap().try_into().unwrap();
        db.records().drop().await.unwrap();
        is(&mut events, token, EventKind::Removed).await;
        let lease = db.seal().acquire("$k.c").await.unwrap();
        is_granted(&mut events, lease.token()).await;
        lease.orphan();
    }
    seal.shutdown().await;
    assert!(matches!(events.next().await, Some(Err(Error::Invalid { .. }))));
}

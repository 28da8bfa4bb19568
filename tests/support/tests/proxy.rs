//! The proxy's faults act as requested, and end.

use std::time::{Duration, Instant};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal_test_support::{How, Peer, ReplicaSet, Way};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn things(set: &ReplicaSet, options: &str) -> Collection<Document> {
    let client = Client::with_uri_str(set.uri_with(options)).await.unwrap();
    client.database("test").collection("things")
}

#[tokio::test]
async fn everybody_is_known_by_name() {
    let set = ReplicaSet::builder().members(3).proxied().start().await;
    things(&set, "appName=named").await.insert_one(doc! {}).await.unwrap();
    things(&set, "w=1").await.insert_one(doc! {}).await.unwrap();
    let seen = set.proxy().seen();
    for target in 0..3 {
        for source in (0..3).filter(|source| *source != target) {
            assert!(seen.contains_key(&(Peer::Member(source), target)), "{source} to {target} in {seen:?}");
        }
        assert!(seen.contains_key(&(Peer::client("named"), target)), "{seen:?}");
        assert!(seen.contains_key(&(Peer::client(""), target)), "{seen:?}");
    }
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
async fn what_client_and_server_tell_each_other_is_changed_as_asked() {
    let set = ReplicaSet::builder().proxied().start().await;
    set.proxy().tamper_with(|client, way, message| match way {
        Way::Request if client == "altered" && message.contains_key("insert") => {
            message.insert("writeConcern", doc! { "w": 3, "wtimeout": 1 }).is_some()
        }
        Way::Reply if client == "soothed" => message.remove("writeConcernError").is_some(),
        _ => false,
    });
    things(&set, "appName=plain&w=majority").await.insert_one(doc! { "_id": "plain" }).await.unwrap();
    let altered = things(&set, "appName=altered&w=majority&retryWrites=false").await;
    let error = altered.insert_one(doc! { "_id": "altered" }).await.unwrap_err();
    assert!(error.to_string().contains("Not enough data-bearing nodes"), "{error}");
    let soothed = things(&set, "appName=soothed&w=3&wtimeoutMS=1000&retryWrites=false").await;
    soothed.insert_one(doc! { "_id": "soothed" }).await.unwrap();
}

#[tokio::test]
async fn a_delayed_request_arrives_though_its_sender_gave_up() {
    let set = ReplicaSet::builder().proxied().start().await;
    let sender = things(&set, "appName=late").await;
    let hits = set.proxy().delay("late", "insert", Duration::from_millis(800));
    let call = sender.insert_one(doc! { "_id": "ghost" });
    tokio::time::timeout(Duration::from_millis(300), call.into_future()).await.expect_err("the request is late");
    let observer = things(&set, "appName=observer").await;
    assert!(observer.find_one(doc! { "_id": "ghost" }).await.unwrap().is_none());
    let begin = Instant::now();
    while observer.find_one(doc! { "_id": "ghost" }).await.unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(10), "the request never arrived");
    }
    assert_eq!(hits.count(), 1);
}

/// A request in the wire format of drivers.
fn request(id: i32, body: &Document) -> Vec<u8> {
    let body = mongodb::bson::to_vec(body).unwrap();
    let length = i32::try_from(16 + 4 + 1 + body.len()).unwrap();
    let header = [length, id, 0, 2013, 0].map(i32::to_le_bytes).concat();
    [header, vec![0], body].concat()
}

async fn reply(from: &mut TcpStream) {
    let length = usize::try_from(from.read_i32_le().await.unwrap()).unwrap();
    from.read_exact(&mut vec![0; length - 4]).await.unwrap();
}

#[tokio::test]
async fn each_delayed_reply_is_late_by_the_same_time() {
    let by = Duration::from_secs(1);
    let set = ReplicaSet::builder().proxied().start().await;
    let (late, other) = (things(&set, "appName=late").await, things(&set, "appName=other").await);
    for client in [&late, &other] {
        client.insert_one(doc! {}).await.unwrap();
    }
    let hits = set.proxy().delay_replies("late", by);
    let begin = Instant::now();
    late.insert_one(doc! { "_id": "answered late" }).await.unwrap();
    assert!(begin.elapsed() >= by, "{:?}", begin.elapsed());
    assert!(hits.count() >= 1);
    let begin = Instant::now();
    let call = late.insert_one(doc! { "_id": "stored at once" }).into_future();
    let (stored, ()) = tokio::join!(call, async {
        while other.find_one(doc! { "_id": "stored at once" }).await.unwrap().is_none() {}
        assert!(begin.elapsed() < by, "{:?}", begin.elapsed());
    });
    stored.unwrap();

    // The replies of one connection do not wait for one another.
    let mut raw = TcpStream::connect(&set.hosts()[0]).await.unwrap();
    let driver = doc! { "name": "none", "version": "0" };
    let client = doc! { "application": { "name": "late" }, "driver": driver, "os": { "type": "any" } };
    raw.write_all(&request(0, &doc! { "hello": 1, "client": client, "$db": "admin" })).await.unwrap();
    reply(&mut raw).await;
    let begin = Instant::now();
    for id in 1..=10 {
        raw.write_all(&request(id, &doc! { "ping": 1, "$db": "admin" })).await.unwrap();
    }
    for _ in 1..=10 {
        reply(&mut raw).await;
        assert!(begin.elapsed() >= by, "{:?}", begin.elapsed());
    }
    assert!(begin.elapsed() < 5 * by, "{:?}", begin.elapsed());

    set.proxy().heal();
    let begin = Instant::now();
    late.insert_one(doc! { "_id": "healed" }).await.unwrap();
    assert!(begin.elapsed() < by, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn an_isolated_primary_is_replaced_and_rejoins() {
    let timeout = Duration::from_secs(10);
    let set = ReplicaSet::builder().members(3).election_timeout(timeout).proxied().start().await;
    for how in [How::Reset, How::Blackhole] {
        let old = set.primary().await;
        let new = (old + 1) % 3;
        set.proxy().isolate_member(old, how);
        let begin = Instant::now();
        set.step_up(new).await;
        println!("step-up beside an isolated primary ({how:?}) took {:?}", begin.elapsed());
        assert_eq!(set.primary().await, new);
        println!("majority writes were back after {:?}", begin.elapsed());
        // Clients still reach the isolated member, which cannot know that it was replaced. Whether it still calls
        // itself primary depends on how long the others took: without a majority it steps down after a while.
        let uri = format!("mongodb://{}/?directConnection=true", set.hosts()[old]);
        let client = Client::with_uri_str(uri).await.unwrap();
        let hello = async || client.database("admin").run_command(doc! { "hello": 1 }).await;
        // A member that steps down closes its connections.
        let hello = match hello().await {
            Ok(hello) => hello,
            Err(_) => hello().await.unwrap(),
        };
        assert_ne!(hello.get_str("primary").ok(), Some(set.hosts()[new].as_str()), "{hello}");

        set.proxy().heal();
        let begin = Instant::now();
        set.settled().await;
        println!("it rejoined {:?} after the network healed", begin.elapsed());
        let hello = set.admin(old, doc! { "hello": 1 }).await.unwrap();
        assert!(hello.get_bool("secondary").unwrap(), "{hello}");
    }
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

//! `audit`: what the oplog proves of keys and of fenced documents.

use mongodb::{
    Collection,
    bson::{Document, doc},
    options::WriteConcern,
};
use mongoseal::{Fence, FencingToken, Mongoseal};
use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal::{SIGCONT, SIGSTOP, SIGTERM};
use serde_json::Value;

use crate::{Running, Sandbox, ended::mongoseal, run, secs};

fn orders(sandbox: &Sandbox) -> Collection<Document> {
    sandbox.database.collection("orders")
}

/// The summary of `audit orders`, and what it found, each with its kind.
async fn audit(sandbox: &Sandbox) -> (i32, Value, Vec<(String, String)>) {
    let said = sandbox.done(&["audit", "orders", "--json"]).await;
    let mut lines = said.json();
    let mut summary = lines.pop().unwrap_or_else(|| panic!("{}", said.stderr));
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    let found =
        lines.iter().map(|line| (text(line, "finding"), format!("{}: {}", text(line, "of"), text(line, "what"))));
    (said.code, summary["summary"].take(), found.collect())
}

async fn two_holders(seal: &Mongoseal) -> [FencingToken; 2] {
    let mut tokens = Vec::new();
    for _holder in 0..2 {
        let lease = seal.acquire("orders/1").await.unwrap();
        tokens.push(lease.token());
        lease.release().await.unwrap();
    }
    tokens.try_into().unwrap()
}

#[tokio::test]
async fn holders_that_claim_and_write_under_their_leases_break_no_promise() {
    let sandbox = Sandbox::new("audit_clean").await;
    let lease = sandbox.seal_of("alice").acquire("orders/1").ttl(secs(600)).await.unwrap();
    let orders = orders(&sandbox);
    let fenced = orders.fenced(&lease);
    fenced.claim(doc! { "_id": 1 }).upsert(true).await.unwrap();
    fenced.update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 1 }, "$push": { "log": "a" } }).await.unwrap();
    fenced.replace_one(doc! { "_id": 1 }, doc! { "n": 2 }).await.unwrap();
    lease
        .transaction(async |session| -> mongoseal::Result<()> {
            let orders = session.client().database(sandbox.database.name()).collection::<Document>("orders");
            for id in [7, 8] {
                orders.insert_one(doc! { "_id": id }).session(&mut *session).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    fenced.delete_one(doc! { "_id": 1 }).await.unwrap();
    lease.release().await.unwrap();
    let (code, summary, found) = audit(&sandbox).await;
    assert_eq!((code, found), (0, vec![]), "{summary}");
    assert_eq!((&summary["unread"], &summary["keys"], &summary["violations"]), (&0.into(), &1.into(), &0.into()));
    let of_orders = &summary["fenced"][0];
    assert_eq!((&of_orders["writes"], &of_orders["documents"]), (&6.into(), &3.into()), "{summary}");
    let none = Sandbox::new("audit_none").await;
    let printed = none.done(&["audit", "orders", "--since", "1h"]).await.printed();
    assert!(printed.contains("Keys       0, grants: 0\n") && printed.contains("no promise was broken"), "{printed}");
}

#[tokio::test]
async fn writes_that_no_fence_refused_are_named_by_what_they_lacked() {
    let sandbox = Sandbox::new("audit_exposed").await;
    let seal = sandbox.seal_of("alice");
    let [earlier, later] = two_holders(&seal).await;
    let orders = orders(&sandbox);
    // The later holder has not claimed: the fence refuses nothing.
    orders.fenced(earlier).update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 1 } }).upsert(true).await.unwrap();
    // Its lease has ended, and no lease holds the key.
    orders.fenced(later).update_one(doc! { "_id": 2 }, doc! { "$set": { "n": 1 } }).upsert(true).await.unwrap();
    let (code, summary, found) = audit(&sandbox).await;
    assert_eq!(code, 0, "{summary}");
    let exposed =
        format!("orders 1: token {earlier} wrote after the grant of {later}, which had not claimed the document");
    let late = format!("orders 2: it was written after the lease with token {later} had ended, before the next grant");
    assert_eq!(found, [("exposed".into(), exposed), ("late".into(), late)]);

    // A producer's document, which no holder has claimed, and then a writer without a fence.
    orders.insert_one(doc! { "_id": 3 }).await.unwrap();
    let (code, summary, found) = audit(&sandbox).await;
    assert_eq!((code, found.len(), &summary["fenced"][0]["unclaimed"]), (0, 2, &1.into()), "{summary}");
    orders.update_one(doc! { "_id": 3 }, doc! { "$set": { "n": 1 } }).await.unwrap();
    let (code, summary, found) = audit(&sandbox).await;
    assert_eq!((code, &found[2]), (1, &("unfenced".into(), "orders 3: a writer carried no token".into())), "{summary}");
    assert_eq!(summary["fenced"][0]["without_token"], 1);
}

#[tokio::test]
async fn each_broken_promise_is_found() {
    let sandbox = Sandbox::new("audit_broken").await;
    let seal = sandbox.seal_of("alice");
    let records = sandbox.database.collection::<Document>("mongoseal");
    let orders = orders(&sandbox);
    let [earlier, later] = two_holders(&seal).await;
    let old = records.find_one(doc! { "_id": "orders/1" }).await.unwrap().unwrap();
    let lease = seal.acquire("orders/1").ttl(secs(600)).await.unwrap();
    orders.fenced(&lease).claim(doc! { "_id": 1 }).upsert(true).await.unwrap();
    // Writers that compare nothing.
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "fence": later } }).await.unwrap();
    orders.replace_one(doc! { "_id": 1 }, doc! { "n": 1 }).await.unwrap();
    // A second exclusive holder, and then an older copy of the record.
    let second = vec![doc! { "$set": { "holders": { "$concatArrays": ["$holders", "$holders"] } } }];
    records.update_one(doc! { "_id": "orders/1" }, second).await.unwrap();
    records.replace_one(doc! { "_id": "orders/1" }, old).await.unwrap();
    let token = lease.token();
    lease.orphan();
    let (code, summary, found) = audit(&sandbox).await;
    let expected = [
        format!("orders 1: token {later} wrote after {token}"),
        format!("orders 1: a write removed token {later}"),
        format!("key \"orders/1\": the tokens {token}, {token} hold it at once, and one of them allows fewer"),
        format!("key \"orders/1\": its version fell from {token} to {later}: an older copy was put back"),
    ];
    let violations = expected.map(|what| ("violation".to_owned(), what));
    assert_eq!((code, found.as_slice()), (1, violations.as_slice()), "{summary}");
    assert!(earlier < later && summary["violations"] == 4);
}

#[tokio::test]
async fn a_user_who_may_not_read_the_oplog_is_told_the_role() {
    let set = ReplicaSet::builder().auth().start().await;
    let leases = doc! { "db": "app", "collection": "mongoseal" };
    let hold = doc! { "resource": leases, "actions": ["find", "insert", "update", "createIndex"] };
    set.add_user("holder", "pw", "app", vec![hold.clone()]).await;
    let oplog = doc! { "resource": { "db": "local", "collection": "oplog.rs" }, "actions": ["find"] };
    set.add_user("auditor", "pw", "admin", vec![hold, oplog]).await;
    let said = run(&set.uri_as("holder", "pw", "app"), &["audit"]).await;
    said.fails(125, "no permission to read the oplog: grant the role `read` on the database `local`");
    let arguments = ["audit", "--db", "app", "--since", "400d"];
    let printed = run(&set.uri_as("auditor", "pw", "admin"), &arguments).await.printed();
    assert!(printed.contains(", because the oplog has not all\n"), "{printed}");
}

fn follow(set: &ReplicaSet) -> Running {
    let arguments = ["audit", "orders", "--follow", "--json", "--db", "app"];
    Running::start(mongoseal(&arguments).env("MONGODB_URI", set.uri()))
}

#[tokio::test]
async fn a_follower_tells_what_is_written_from_now_on_also_after_an_election_and_an_error_until_a_signal() {
    let set = ReplicaSet::builder().members(3).election_timeout(secs(2)).start().await;
    let orders: Collection<Document> = set.client().await.database("app").collection("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    let mut following = follow(&set);
    let without_a_token = async |n: i32, following: &mut Running| {
        let update = doc! { "$set": { "n": n } };
        orders.update_one(doc! { "_id": 1 }, update).write_concern(WriteConcern::majority()).await.unwrap();
        let told = following.next_event().await.expect("it goes on");
        assert_eq!((&told["finding"], &told["of"]), (&"unfenced".into(), &"orders 1".into()), "{told}");
    };
    without_a_token(1, &mut following).await;
    set.step_down().await;
    without_a_token(2, &mut following).await;
    // Reads that the driver does not send again.
    let _failing = set.fail_command("mongoseal audit", &["find"], doc! { "errorCode": 50 }, 2).await;
    without_a_token(3, &mut following).await;
    following.signal(SIGTERM);
    let summary = following.next_event().await.expect("a summary");
    assert_eq!(summary["summary"]["fenced"][0]["without_token"], 3, "{summary}");
    assert_eq!(following.end().await.code, 1);
}

#[tokio::test]
#[ignore = "night: the server truncates its oplog after about a minute"]
async fn a_follower_that_the_oplog_has_overtaken_says_so_and_goes_on() {
    let set = ReplicaSet::builder().oplog_megabytes(16).start().await;
    let client = set.client().await;
    let orders: Collection<Document> = client.database("app").collection("orders");
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    let mut following = follow(&set);
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 1 } }).await.unwrap();
    assert_eq!(following.next_event().await.expect("a finding")["finding"], "unfenced");
    following.signal(SIGSTOP);
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 2 } }).await.unwrap();
    let oplog: Collection<Document> = client.database("local").collection("oplog.rs");
    let missed = oplog.find_one(doc! { "ns": "app.orders", "op": "u" }).sort(doc! { "$natural": -1 }).await.unwrap();
    let missed = missed.unwrap().get_timestamp("ts").unwrap();
    let others: Collection<Document> = client.database("app").collection("others");
    let is_kept = async || oplog.count_documents(doc! { "ts": missed }).await.unwrap() > 0;
    while is_kept().await {
        others.insert_one(doc! { "large": "x".repeat(4 << 20) }).await.unwrap();
    }
    following.signal(SIGCONT);
    // It does not know what became of the first document.
    orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 3 } }).await.unwrap();
    orders.insert_one(doc! { "_id": 2 }).await.unwrap();
    orders.update_one(doc! { "_id": 2 }, doc! { "$set": { "n": 1 } }).await.unwrap();
    assert_eq!(following.next_event().await.expect("it goes on")["of"], "orders 2");
    following.signal(SIGTERM);
    let summary = following.next_event().await.expect("a summary");
    let counts = &summary["summary"]["fenced"][0];
    assert_eq!(
        (&summary["truncated"], &counts["writes"], &counts["unplaced"]),
        (&true.into(), &5.into(), &1.into()),
        "{summary}"
    );
    let ended = following.end().await;
    assert!(ended.stderr.contains("the oplog has no longer all"), "{}", ended.stderr);
}

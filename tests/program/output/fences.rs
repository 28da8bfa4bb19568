//! `fences` and `raise`.

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use mongoseal::{Error, Fence, FencingToken};
use mongoseal_test_support::ReplicaSet;

use crate::{Sandbox, run, secs};

/// A token that stands for a time so many seconds after that of another.
fn ahead(token: FencingToken, seconds: u64) -> FencingToken {
    FencingToken::at_clock(token.clock_seconds() + seconds, 0)
}

#[tokio::test]
async fn a_writer_that_documents_are_ahead_of_is_shown_and_raised_and_writes() {
    let sandbox = Sandbox::new("fences").await;
    let (seal, orders): (_, Collection<Document>) = (sandbox.seal_of("alice"), sandbox.database.collection("orders"));
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    orders.insert_one(doc! { "_id": 1, "fence": lease.token(), "n": 0 }).await.unwrap();
    assert!(sandbox.done(&["fences", "orders"]).await.printed().contains("\nAhead          0 documents\n"));

    // As after a restore of the set from a backup of one whose clock ran two hours ahead.
    let carried = ahead(lease.token(), 7_200);
    for (id, token) in [(2, carried), (3, ahead(lease.token(), 3_600))] {
        orders.insert_one(doc! { "_id": id, "fence": token, "n": 0 }).await.unwrap();
    }
    // The last could not have been numbered by this set, and no key can be raised to it.
    let no_tokens = [
        (4, doc! { "fence": "7" }),
        (5, doc! { "fence": 7 }),
        (6, doc! { "fence": [carried] }),
        (7, doc! { "fence": ahead(lease.token(), 400 * 24 * 3_600) }),
    ];
    for (id, no_token) in no_tokens {
        orders.insert_one(no_token).await.unwrap();
        orders.insert_one(doc! { "_id": id }).await.unwrap();
    }
    let set = doc! { "$set": { "n": 1 } };
    let refused = orders.fenced(&lease).update_one(doc! { "_id": 2 }, set.clone()).await;
    assert!(matches!(refused, Err(Error::Fenced { newer }) if newer == carried), "{refused:?}");
    let said = sandbox.done(&["fences", "orders"]).await;
    assert_eq!((said.code, said.stderr.as_str()), (1, ""), "{}", said.stdout);
    for part in [
        "Ahead          2 documents\nNo token       4 documents\n",
        "are refused until the clock has passed 20",
        &format!("mongoseal raise --to {carried} KEY..."),
    ] {
        assert!(said.stdout.contains(part), "{}", said.stdout);
    }
    let said = sandbox.done(&["fences", "orders", "--json"]).await;
    let json = &said.json()[0];
    let counts = ["ahead", "foreign", "largest", "raise_to"].map(|name| json[name].as_u64().unwrap());
    assert_eq!((said.code, counts), (1, [2, 4, carried.get(), carried.get()]), "{json}");
    assert!(json["clock"].as_u64() >= Some(lease.token().get()) && json["clock"].as_u64() < Some(carried.get()));

    let to = carried.to_string();
    let line = |key| format!("{key:?} has version {carried}; its next token is larger\n");
    assert_eq!(sandbox.done(&["raise", "--to", &to, "k", "new"]).await.printed(), line("k") + &line("new"));
    let said = sandbox.done(&["raise", "--to", &lease.token().to_string(), "k", "--json"]).await;
    assert_eq!(said.json(), [serde_json::json!({ "key": "k", "version": carried.get() })]);

    // The holder still holds the key, and the next one writes.
    lease.release().await.unwrap();
    assert!(seal.acquire("new").await.unwrap().token() > carried);
    let lease = seal.acquire("k").await.unwrap();
    let done = orders.fenced(&lease).update_one(doc! { "_id": 2 }, set).await.unwrap();
    assert_eq!(done.modified_count, 1);
}

#[tokio::test]
async fn a_user_who_may_only_find_learns_whether_the_collection_exists() {
    let set = ReplicaSet::builder().auth().start().await;
    let find = |collection: &str| {
        doc! { "resource": { "db": "app", "collection": collection }, "actions": ["find"] }
    };
    let leases = doc! { "db": "app", "collection": "mongoseal" };
    let hold = doc! { "resource": leases, "actions": ["find", "insert", "update"] };
    set.add_user("reader", "pw", "app", vec![hold, find("orders"), find("absent")]).await;
    let orders: Collection<Document> = set.client().await.database("app").collection("orders");
    orders.insert_one(doc! { "fence": FencingToken::MIN }).await.unwrap();
    let uri = set.uri_as("reader", "pw", "app");
    let fences = async |collection: &str| run(&uri, &["fences", collection]).await;
    fences("orders").await.is_quiet(0);
    fences("absent").await.fails(125, "there is no collection app.absent");
    fences("secret").await.fails(125, "no permission to read secret: grant find");
}

/// A collection that does not exist, and one without tokens, have no document ahead of the clock.
#[tokio::test]
async fn a_collection_without_tokens_is_not_ahead_and_wrong_arguments_say_what_to_pass() {
    let sandbox = Sandbox::new("fences_wrong").await;
    let name = sandbox.database.name();
    let absent = format!("there is no collection {name}.nothing: check its name");
    sandbox.done(&["fences", "nothing"]).await.says(125, &absent);

    sandbox.database.create_collection("nothing").await.unwrap();
    let printed = sandbox.done(&["fences", "nothing"]).await.printed();
    assert!(printed.contains("Largest token  none, because the collection is empty\n"), "{printed}");

    let some: Collection<Document> = sandbox.database.collection("some");
    some.insert_many([doc! { "n": 7, "fence": FencingToken::MIN }, doc! {}]).await.unwrap();
    assert_eq!(sandbox.done(&["fences", "some"]).await.code, 0);
    for field in ["fances", "n"] {
        for form in [&[][..], &["--json"]] {
            let said = sandbox.done(&[&["fences", "some", "--field", field][..], form].concat()).await;
            said.fails(125, &format!("no document of {name}.some has a token in the field {field:?}: check --field"));
        }
    }
    for (arguments, words) in [
        (vec!["fences", "orders", "--field", "a.b"], "without `$` and `.`"),
        (vec!["raise", "--to", "0", "k"], "from 1 to 2^53 - 1"),
        (vec!["raise", "--to", "9007199254740991", "k"], "largest token that the documents carry"),
        (vec!["raise", "--to", "2251799813685248", "k"], "\"k\" was not raised"),
        (vec!["raise", "--to", "7"], "KEY"),
    ] {
        let said = sandbox.done(&arguments).await;
        assert_eq!((said.code, said.stdout.as_str()), (125, ""), "{arguments:?}");
        assert!(said.stderr.contains(words), "{arguments:?}: {}", said.stderr);
    }
}

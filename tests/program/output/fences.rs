//! `fences` and `raise`.

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use mongoseal::{Error, Fence, FencingToken};
use mongoseal_test_support::ReplicaSet;

use crate::{Console, done, mongoseal, secs};

/// A token that stands for a time so many seconds after that of another.
fn ahead(token: FencingToken, seconds: u64) -> FencingToken {
    FencingToken::at_clock(token.clock_seconds() + seconds, 0)
}

#[tokio::test]
async fn a_writer_that_documents_are_ahead_of_is_shown_and_raised_and_writes() {
    let console = Console::new("fences").await;
    let (seal, orders): (_, Collection<Document>) = (console.seal("alice"), console.db.database.collection("orders"));
    let lease = seal.acquire("k").ttl(secs(600)).await.unwrap();
    orders.insert_one(doc! { "_id": 1, "fence": lease.token(), "n": 0 }).await.unwrap();
    let said = console.run(&["fences", "orders"]).await;
    said.is_quiet(0);
    assert!(said.stdout.contains(&format!("Largest token  {} (20", lease.token())), "{}", said.stdout);
    assert!(said.stdout.contains("Ahead          0 documents\nNo token       0 documents\n"), "{}", said.stdout);

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
    let said = console.run(&["fences", "orders"]).await;
    assert_eq!((said.status(), said.stderr.as_str()), (1, ""), "{}", said.stdout);
    assert!(said.stdout.contains("Ahead          2 documents\nNo token       4 documents\n"), "{}", said.stdout);
    assert!(said.stdout.contains("are refused until the clock has passed 20"), "{}", said.stdout);
    assert!(said.stdout.contains(&format!("mongoseal raise --to {carried} KEY...")), "{}", said.stdout);
    let said = console.run(&["fences", "orders", "--json"]).await;
    let json = &said.json()[0];
    assert_eq!((said.status(), &json["ahead"], &json["foreign"]), (1, &2.into(), &4.into()), "{}", said.stdout);
    assert_eq!(
        (&json["largest"], &json["raise_to"]),
        (&carried.get().into(), &carried.get().into()),
        "{}",
        said.stdout
    );
    assert!(json["clock"].as_u64().unwrap() >= lease.token().get() && json["clock"].as_u64() < Some(carried.get()));

    let to = carried.to_string();
    let said = console.run(&["raise", "--to", &to, "k", "new"]).await;
    said.is_quiet(0);
    let line = |key| format!("{key:?} has version {carried}; its next token is larger\n");
    assert_eq!(said.stdout, line("k") + &line("new"));
    let said = console.run(&["raise", "--to", &lease.token().to_string(), "k", "--json"]).await;
    assert_eq!(said.json(), [serde_json::json!({ "key": "k", "version": carried.get() })]);

    // The holder still holds the key, and the next one writes.
    let old = lease.token().to_string();
    lease.verify().await.unwrap();
    assert_eq!(console.run(&["verify", "k", &old]).await.status(), 0);
    lease.release().await.unwrap();
    assert_eq!(console.run(&["verify", "k", &old]).await.status(), 1);
    for key in ["k", "new"] {
        let lease = seal.acquire(key).await.unwrap();
        assert!(lease.token() > carried, "{key}");
    }
    let lease = seal.acquire("k").await.unwrap();
    let done = orders.fenced(&lease).update_one(doc! { "_id": 2 }, set).await.unwrap();
    assert_eq!(done.modified_count, 1);
}

#[tokio::test]
async fn a_user_who_may_only_find_learns_whether_the_collection_exists() {
    let set = ReplicaSet::builder().auth().start().await;
    let find = |collection: &str| {
        doc! { "resource": { "db": "secured", "collection": collection }, "actions": ["find"] }
    };
    let leases = doc! { "db": "secured", "collection": "mongoseal" };
    let hold = doc! { "resource": leases, "actions": ["find", "insert", "update"] };
    set.add_user("reader", "pw", "secured", vec![hold, find("orders"), find("absent")]).await;
    let orders: Collection<Document> = set.client().await.database("secured").collection("orders");
    orders.insert_one(doc! { "fence": FencingToken::MIN }).await.unwrap();
    let fences = async |collection: &str| {
        let mut program = mongoseal(&["fences", collection]);
        program.env("MONGODB_URI", set.uri_as("reader", "pw", "secured"));
        program.env("MONGOSEAL_DB", "secured");
        done(program).await
    };
    let said = fences("orders").await;
    said.is_quiet(0);
    let said = fences("absent").await;
    assert!(said.status() == 125 && said.stderr.contains("there is no collection secured.absent"), "{}", said.stderr);
    let said = fences("secret").await;
    assert!(
        said.status() == 125 && said.stderr.contains("no permission to read secret: grant find"),
        "{}",
        said.stderr
    );
}

#[tokio::test]
async fn a_collection_without_tokens_is_not_ahead_and_wrong_arguments_say_what_to_pass() {
    let console = Console::new("fences_wrong").await;
    let said = console.run(&["fences", "nothing"]).await;
    assert_eq!((said.status(), said.stdout.as_str()), (125, ""));
    let name = console.db.database.name();
    assert!(said.stderr.contains(&format!("there is no collection {name}.nothing: check its name")), "{}", said.stderr);

    console.db.database.create_collection("nothing").await.unwrap();
    let said = console.run(&["fences", "nothing"]).await;
    said.is_quiet(0);
    assert!(said.stdout.contains("Largest token  none, because the collection is empty\n"), "{}", said.stdout);

    let some: Collection<Document> = console.db.database.collection("some");
    some.insert_many([doc! { "n": 7, "fence": FencingToken::MIN }, doc! {}]).await.unwrap();
    assert_eq!(console.run(&["fences", "some"]).await.status(), 0);
    for field in ["fances", "n"] {
        for form in [&[][..], &["--json"]] {
            let said = console.run(&[&["fences", "some", "--field", field][..], form].concat()).await;
            assert!(said.status() == 125 && !said.stdout.is_empty(), "{} {}", said.status(), said.stdout);
            let words = format!("no document of {name}.some has a token in the field {field:?}: check --field");
            assert!(said.stderr.contains(&words), "{}", said.stderr);
        }
    }
    for (arguments, words) in [
        (vec!["fences", "orders", "--field", "a.b"], "without `$` and `.`"),
        (vec!["raise", "--to", "0", "k"], "from 1 to 2^53 - 1"),
        (vec!["raise", "--to", "9007199254740991", "k"], "largest token that the documents carry"),
        (vec!["raise", "--to", "2251799813685248", "k"], "\"k\" was not raised"),
        (vec!["raise", "--to", "7"], "KEY"),
    ] {
        let said = console.run(&arguments).await;
        assert_eq!((said.status(), said.stdout.as_str()), (125, ""), "{arguments:?}");
        assert!(said.stderr.contains(words), "{arguments:?}: {}", said.stderr);
    }
}

//! Connections and deployments that an operator must change are `Invalid`, and the error names the change.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
    options::{ClientOptions, Collation, CollationStrength},
};
use mongoseal::{Builder, Error, Mongoseal};
use mongoseal_test_support::{ReplicaSet, Standalone, Way, shared};

use crate::{TestDatabase, eventually, secs};

fn invalid<T>(result: Result<T, Error>, says: &[&str]) {
    let Err(error) = result else { panic!("it was accepted: {says:?} was to be said") };
    println!("{error}");
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    for says in says {
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
}

/// What comes of a call at once, and not at the end of [`UNTIMED`].
async fn at_once<T>(call: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(secs(60), call.into_future()).await.expect("it is refused at once")
}

/// An operation timeout that no test waits for.
const UNTIMED: Duration = secs(600);

/// A handle on a client of the caller's, which gives up on finding a server before an attempt ends.
async fn on_client(uri: &str, builder: Builder) -> Mongoseal {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    options.server_selection_timeout = Some(secs(1));
    builder.on_shared_client(&Client::with_options(options).unwrap().database("mongoseal_refused")).unwrap()
}

/// What the set says to a client of its own.
async fn name_of(set: &ReplicaSet) -> String {
    set.admin(0, doc! { "hello": 1 }).await.unwrap().get_str("setName").unwrap().to_owned()
}

/// A connection string of the set with another name for it.
fn misnamed(uri: &str, name: &str) -> String {
    uri.replacen(&format!("replicaSet={name}"), "replicaSet=another", 1)
}

#[tokio::test]
async fn a_direct_connection_to_a_secondary_is_refused_and_one_to_the_primary_is_served() {
    let set = shared(3).await;
    let (name, primary) = (name_of(set).await, set.primary().await);
    let builder = || Mongoseal::builder().database("mongoseal_refused").operation_timeout(UNTIMED);
    let says = ["leave out directConnection", &format!("replicaSet={name}")];
    for secondary in (0..3).filter(|member| *member != primary) {
        let uri = set.direct_uri(secondary);
        invalid(at_once(builder().connect(&uri)).await, &says);
        invalid(at_once(on_client(&uri, builder()).await.acquire("direct")).await, &says);
    }
    let seal = builder().connect(set.direct_uri(primary)).await.unwrap();
    seal.acquire("direct").await.unwrap().release().await.unwrap();
    seal.shutdown().await;
}

#[tokio::test]
async fn a_direct_connection_to_a_member_of_a_set_without_a_primary_is_unavailable() {
    let set = ReplicaSet::start(3).await;
    let primary = set.primary().await;
    let builder = Mongoseal::builder().operation_timeout(secs(5));
    let before = builder.clone().connect(set.direct_uri(primary)).await.unwrap();
    for other in (0..3).filter(|member| *member != primary) {
        set.kill(other).await;
    }
    // It steps down when it has not heard of a majority for the election timeout.
    let has_stepped_down = async || {
        let hello = set.admin(primary, doc! { "hello": 1 }).await.unwrap();
        hello.get_bool("secondary").unwrap() && !hello.contains_key("primary")
    };
    eventually(secs(60), "it steps down", has_stepped_down).await;
    let connecting = builder.connect(set.direct_uri(primary)).await.unwrap_err();
    // The server may become the primary again, so a handle from before may go on.
    let acquiring = before.acquire("k").await.unwrap_err();
    for (error, says) in [(connecting, "has no primary"), (acquiring, "leave out directConnection")] {
        println!("{error}");
        assert!(matches!(error, Error::Unavailable { .. }) && error.to_string().contains(says), "{error:?}");
    }
}

#[tokio::test]
async fn a_wrong_set_name_is_refused() {
    let set = shared(1).await;
    let name = name_of(set).await;
    let wrong = misnamed(&set.uri(), &name);
    let builder = || Mongoseal::builder().operation_timeout(UNTIMED);
    let connected = at_once(builder().connect(&wrong)).await;
    invalid(connected, &["\"another\"", "leave its option replicaSet out"]);
    let on = on_client(&wrong, builder()).await;
    invalid(at_once(on.acquire("k")).await, &["\"another\"", "leave its option replicaSet out"]);

    let direct = format!("{}&replicaSet=another", set.direct_uri(0));
    let says = ["replicaSet=another", &format!("replicaSet={name}")];
    invalid(Mongoseal::connect(&direct).await, &says);
    invalid(on_client(&direct, Mongoseal::builder()).await.acquire("k").await, &says);

    // The name of a set, for a server that belongs to none.
    let server = Standalone::start().await;
    let named = format!("{}&replicaSet=another", server.uri());
    invalid(Mongoseal::connect(&named).await, &["\"another\"", "leave its option replicaSet out"]);
}

#[tokio::test]
async fn connecting_without_a_login_to_a_server_that_wants_one_is_refused() {
    let set = ReplicaSet::builder().auth().start().await;
    let (scheme, rest) =
        set.uri().split_once("://").map(|(scheme, rest)| (scheme.to_owned(), rest.to_owned())).unwrap();
    let anonymous = format!("{scheme}://{}", rest.split_once('@').unwrap().1);
    invalid(Mongoseal::connect(&anonymous).await, &["put user, password and authSource"]);
    let on = on_client(&anonymous, Mongoseal::builder()).await;
    invalid(on.prepare().await, &["put user, password and authSource"]);
    // A user who may do nothing is let in, with a warning: other users may have made what is needed.
    set.add_user("nobody", "pw", "app", vec![]).await;
    Mongoseal::builder().database("app").connect(set.uri_as("nobody", "pw", "app")).await.unwrap();
}

#[tokio::test]
async fn a_collection_with_a_collation_of_its_own_is_refused_and_left_alone() {
    let db = TestDatabase::new("mongoseal_collation").await;
    let collation = |locale: &str| {
        let strength = (locale != "simple").then_some(CollationStrength::Secondary);
        Collation::builder().locale(locale).strength(strength).build()
    };
    let create = async |collation| {
        db.records().drop().await.unwrap();
        db.database.create_collection("mongoseal").collation(collation).await.unwrap();
    };
    create(collation("en")).await;
    for refused in [db.seal().prepare().await, db.seal().acquire("Job").await.map(drop)] {
        invalid(refused, &["mongoseal_collation.mongoseal", "collation", "\"en\"", "without a collation"]);
    }
    assert_eq!(db.records().list_index_names().await.unwrap(), ["_id_"]);
    create(collation("simple")).await;
    let seal = db.seal();
    let (one, other) = (seal.acquire("Job").await.unwrap(), seal.acquire("job").await.unwrap());
    one.release().await.unwrap();
    other.release().await.unwrap();
}

/// A member behind a proxy that changes the answers to the handles of some clients.
async fn tampered(change: fn(&str, &mut Document) -> bool) -> (ReplicaSet, impl Fn(&str) -> String) {
    let set = ReplicaSet::builder().proxied().start().await;
    set.proxy().tamper_with(move |client, way, message| way == Way::Reply && change(client, message));
    let host = set.hosts()[0].clone();
    (set, move |client: &str| format!("mongodb://{host}/?directConnection=true&appName={client}"))
}

#[tokio::test]
async fn a_sharded_cluster_is_refused_unless_it_is_allowed() {
    // The answers of a member with the mark of a router: there is no router here.
    let (_set, uri) = tampered(|_client, reply| {
        let is_hello = reply.contains_key("isWritablePrimary") || reply.contains_key("ismaster");
        if is_hello {
            reply.remove("setName");
            reply.insert("msg", "isdbgrid");
        }
        is_hello
    })
    .await;
    let says = ["sharded cluster", "allow_sharded"];
    invalid(Mongoseal::connect(uri("refused")).await, &says);
    invalid(on_client(&uri("on"), Mongoseal::builder()).await.acquire("k").await, &says);
    let seal = Mongoseal::builder().allow_sharded().connect(uri("allowed")).await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    // A sibling in another collection is on the same deployment.
    let sibling = Mongoseal::builder().collection("siblings").sibling_of(&seal).unwrap();
    sibling.acquire("k").await.unwrap().release().await.unwrap();
    let on = on_client(&uri("on"), Mongoseal::builder().allow_sharded()).await;
    on.acquire("k").await.unwrap().release().await.unwrap();
    invalid(Mongoseal::builder().allow_sharded().sibling_of(&on), &["`allow_sharded` has no effect on a sibling"]);
}

#[tokio::test]
async fn a_product_that_only_speaks_the_protocol_is_refused_by_its_name() {
    // A member whose answers have the marks of other products, as `src/store/mongo/product.rs` knows them.
    let (_set, uri) = tampered(|client, reply| match client {
        "ferretdb" if reply.contains_key("gitVersion") => {
            reply.insert("ferretdb", doc! { "version": "v2.7.0" }).is_none()
        }
        "azure" if reply.contains_key("maxWireVersion") => {
            reply.insert("internal", doc! { "documentdb_versions": ["1.111-0"], "kind": "azuredocumentdb" }).is_none()
        }
        _ => false,
    })
    .await;
    invalid(Mongoseal::connect(uri("ferretdb")).await, &["FerretDB", "use MongoDB 6.0 or later"]);
    invalid(Mongoseal::connect(uri("azure")).await, &["Azure DocumentDB", "use MongoDB 6.0 or later"]);
    Mongoseal::connect(uri("mongodb")).await.unwrap();
}

//! Connections and deployments that an operator must change are `Invalid`, and the error names the change.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use mongodb::{
    Client, IndexModel,
    bson::doc,
    options::{ClientOptions, Collation, CollationStrength, IndexOptions, ServerApi, ServerApiVersion},
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

/// The error "not the primary" passes in a failover, and never on such a connection.
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
    let wrong = set.uri().replacen(&format!("replicaSet={name}"), "replicaSet=another", 1);
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

/// The collection has a case-insensitive collation.
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

#[tokio::test]
async fn a_sharded_cluster_is_refused_unless_it_is_allowed() {
    // The answers of a member with the mark of a router: there is no router here.
    let set = ReplicaSet::builder().proxied().start().await;
    set.proxy().tamper_with(move |_client, way, reply| {
        let is_hello = reply.contains_key("isWritablePrimary") || reply.contains_key("ismaster");
        if way == Way::Reply && is_hello {
            reply.remove("setName");
            reply.insert("msg", "isdbgrid");
        }
        way == Way::Reply && is_hello
    });
    let uri = &format!("mongodb://{}/?directConnection=true", set.hosts()[0]);
    let says = ["sharded cluster", "allow_sharded"];
    invalid(Mongoseal::connect(uri).await, &says);
    invalid(on_client(uri, Mongoseal::builder()).await.acquire("k").await, &says);
    let seal = Mongoseal::builder().allow_sharded().connect(uri).await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    // A sibling in another collection is on the same deployment.
    let sibling = Mongoseal::builder().collection("siblings").sibling_of(&seal).unwrap();
    sibling.acquire("k").await.unwrap().release().await.unwrap();
    let on = on_client(uri, Mongoseal::builder().allow_sharded()).await;
    on.acquire("k").await.unwrap().release().await.unwrap();
    invalid(Mongoseal::builder().allow_sharded().sibling_of(&on), &["`allow_sharded` has no effect on a sibling"]);
}

#[tokio::test]
async fn a_standalone_server_is_refused() {
    let server = Standalone::start().await;
    invalid(Mongoseal::connect(server.uri()).await, &["run rs.initiate()"]);
    let app = Client::with_uri_str(server.uri()).await.unwrap().database("app");
    invalid(Mongoseal::on_shared_client(&app).acquire("k").await, &["run rs.initiate()"]);
    assert_eq!(app.list_collection_names().await.unwrap(), [] as [String; 0]);
}

#[tokio::test]
async fn a_name_of_no_collection_and_a_login_that_needs_a_feature_which_is_off_are_refused() {
    let db = TestDatabase::new("mongoseal_features").await;
    let builder = Mongoseal::builder().collection("a$b");
    invalid(builder.connect(db.set.uri()).await, &["cannot name a collection"]);
    for cloud in ["azure", "gcp"] {
        let properties = format!("authMechanismProperties=ENVIRONMENT:{cloud},TOKEN_RESOURCE:mongodb%3A%2F%2Fcluster");
        let uri = db.set.uri_with(&format!("authMechanism=MONGODB-OIDC&{properties}"));
        invalid(Mongoseal::connect(uri).await, &[&format!("needs the cargo feature `{cloud}-oidc`")]);
    }
}

#[tokio::test]
async fn an_index_with_other_options_is_refused_and_left_alone_though_it_could_not_be_looked_at_at_first() {
    const SAYS: [&str; 1] = ["drop it, or set the retention"];
    let db = TestDatabase::new("mongoseal_index").await;
    let other =
        |options: Option<IndexOptions>| IndexModel::builder().keys(doc! { "expires_at": 1 }).options(options).build();
    let after = |seconds, name: &str| IndexOptions::builder().expire_after(secs(seconds)).name(name.to_owned()).build();
    for options in [None, Some(after(60, "expires_at_1"))] {
        db.records().create_index(other(options)).await.unwrap();
        invalid(db.seal().acquire("k").await, &SAYS);
        assert_eq!(db.records().list_index_names().await.unwrap().len(), 2);
        assert_eq!(db.record("k").await, None);
        db.records().drop_indexes().await.unwrap();
    }
    db.records().create_index(other(Some(after(60, "mine")))).await.unwrap();
    let blip = db.set.fail_command("blip", &["listIndexes"], doc! { "closeConnection": true }, 1).await;
    let client = Client::with_uri_str(db.set.uri_with("appName=blip")).await.unwrap();
    invalid(Mongoseal::on_shared_client(&client.database("mongoseal_index")).acquire("k").await, &SAYS);
    assert_eq!(blip.off().await, 1);
    // The settings can follow the index.
    drop(db.build(Mongoseal::builder().retention(secs(60))).acquire("k2").await.unwrap());
}

#[tokio::test]
async fn a_client_that_keeps_to_the_stable_api_is_served() {
    let db = TestDatabase::new("mongoseal_stable").await;
    let mut options = ClientOptions::parse(db.set.uri()).await.unwrap();
    options.server_api = Some(ServerApi::builder().version(ServerApiVersion::V1).strict(true).build());
    let client = Client::with_options(options).unwrap();
    let lease = Mongoseal::on_shared_client(&client.database("mongoseal_stable")).acquire("k").await.unwrap();
    lease.refresh().await.unwrap();
    lease.verify().await.unwrap();
    lease.release().await.unwrap();
}

#[test]
fn connecting_outside_of_a_runtime_is_an_error_and_not_a_panic() {
    let connecting = pin!(Mongoseal::connect("mongodb://localhost/"));
    match connecting.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => invalid(result, &["no tokio runtime"]),
        Poll::Pending => panic!("it does not wait for a runtime"),
    }
}

//! Servers that a handle refuses.

use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{Redis, secs};
use tokio::{io::AsyncWriteExt, net::TcpListener};

use crate::{hasty, open, shared};

/// Connects, and returns why that is invalid.
async fn invalid(uri: String) -> String {
    match open(hasty(), &uri).await {
        Err(Error::Invalid { message, .. }) => message,
        other => panic!("{uri}: {other:?}"),
    }
}

pub(crate) async fn a_wrong_password_is_refused_and_never_shown() {
    let server = Redis::start_with(&[("requirepass", "right-hunter2")]).await;
    let address = server.address();
    for (login, part) in [(":wrong-hunter2@", "credentials"), ("eve:wrong-hunter2@", "credentials"), ("", "login")] {
        let error = open(hasty(), format!("redis://{login}{address}")).await.unwrap_err();
        let shown = format!("{error:?} {error}");
        assert!(matches!(error, Error::Invalid { .. }) && shown.contains(part), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let seal = open(hasty(), format!("redis://:right-hunter2@{address}")).await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    assert!(!format!("{seal:?}").contains("hunter2"));
}

pub(crate) async fn a_server_that_is_not_there_is_unavailable() {
    let server = Redis::start().await;
    let address = server.address();
    server.kill();
    let error = open(hasty(), format!("redis://:hunter2@{address}")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("no Redis server listens"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    let error = open(hasty(), "redis://no-such-host.invalid").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

pub(crate) async fn a_server_that_would_break_a_promise_is_refused() {
    let server = Redis::start_with(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]).await;
    assert!(invalid(server.url()).await.contains("`noeviction`"));
    let server = Redis::start_with(&[("cluster-enabled", "yes")]).await;
    assert!(invalid(server.url()).await.contains("cluster"));
    let replica = Redis::start_replica(shared().await).await;
    assert!(invalid(replica.url()).await.contains("is a replica"));
    assert!(invalid(format!("{}/99", shared().await.url())).await.contains("database"));
    assert!(invalid("redis://host:port".into()).await.contains("redis://user:password@host:port"));
}

pub(crate) async fn a_peer_that_is_not_redis_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let peer = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
            tokio::time::sleep(secs(1)).await;
        }
    });
    let message = invalid(format!("redis://{address}")).await;
    assert!(message.contains("not one of a Redis server"), "{message}");
    peer.abort();
}

pub(crate) async fn options_of_the_other_store_are_refused() {
    let uri = shared().await.url();
    let builder = Mongoseal::builder;
    for builder in [builder().database("app"), builder().allow_sharded(), builder().collection("a:b")] {
        let error = open(builder, &uri).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    }
    let seal = mongoseal_redis::connect(&uri).await.unwrap();
    let error = Mongoseal::builder().database("app").sibling_of(&seal).unwrap_err();
    assert!(error.to_string().contains("`database`"), "{error}");
    let error = Mongoseal::builder().collection("a:b").sibling_of(&seal).unwrap_err();
    assert!(error.to_string().contains("\"a:b\" cannot be a collection"), "{error}");
}

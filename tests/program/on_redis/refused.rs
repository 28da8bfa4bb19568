//! What is refused.

use futures_util::future::join_all;
use mongoseal_test_support::{Redis, by_length, eventually, secs};

use crate::{Console, doctor::doctor, run, send, shared};

pub(crate) async fn what_redis_cannot_do_is_refused_before_anything_is_sent() {
    // A server that is not there: with a request, the status is 123.
    for (arguments, part) in [
        (
            &["verify", "k", "7"][..],
            "`mongoseal verify` does not run on Redis, whose reads can be outdated: pass the token",
        ),
        (&["once", "k", "--every", "1h", "--", "true"], "`mongoseal once` does not run on Redis, whose reads"),
        (&["once", "k", "--reset"], "so a completed tick could run again: use MongoDB"),
        (&["audit"], "`mongoseal audit` does not run on Redis, which has no log of its writes: use MongoDB"),
        (&["fences", "orders"], "`mongoseal fences` does not run on Redis, because it reads documents of MongoDB"),
    ] {
        run("redis://127.0.0.1:9", arguments).await.says(125, part);
    }
}

/// Such a port answers nothing to a handshake. The driver waits as long as the library does by default.
pub(crate) async fn tls_to_a_port_without_tls_is_named_as_a_cause() {
    let server = shared().await.url().replacen("redis://", "rediss://", 1);
    let asked = by_length(&["2s"][..], &["2s", "10s", "15s"]).iter().map(async |timeout| {
        let ended = run(&server, &["run", "k", "--timeout", timeout, "--", "true"]).await;
        ended.says(123, "whether its port is for TLS (`rediss`) or not (`redis`)");
    });
    join_all(asked).await;
}

pub(crate) async fn an_option_of_the_other_product_is_refused() {
    let uri = "redis://127.0.0.1:9";
    for (arguments, uri, part) in [
        (&["ls", "--db", "app"][..], uri, "--db and MONGOSEAL_DB are for MongoDB: leave them out"),
        (&["doctor", "--db", "app"], uri, "put the number of the Redis database into the connection string"),
        (&["ls", "--allow-sharded"], uri, "--allow-sharded is for MongoDB"),
        (&["ls", "--redis-replicas", "1"], "mongodb://127.0.0.1:9", "--redis-replicas is for Redis"),
        (&["doctor", "--redis-replicas", "1"], "mongodb://127.0.0.1:9", "where a majority confirms each write"),
    ] {
        run(uri, arguments).await.says(125, part);
    }
    let colon = run(&shared().await.url(), &["ls", "--collection", "a:b"]).await;
    colon.says(125, "cannot be a collection on Redis");
}

pub(crate) async fn a_server_that_would_break_a_promise_is_refused_and_fails_its_check() {
    let primary = Redis::start().await;
    let replica = Redis::start_replica(&primary).await;
    let evicting = Redis::start_with(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]).await;
    let cluster = Redis::start_with(&[("cluster-enabled", "yes")]).await;
    for (server, check, advice, part) in [
        (&replica, "role", "use the address of the primary", "is a replica"),
        (&evicting, "eviction", "set maxmemory-policy to noeviction", "`noeviction`"),
        (&cluster, "cluster", "use a server without cluster mode", "node of a cluster"),
    ] {
        run(&server.url(), &["run", "k", "--", "true"]).await.says(125, part);
        let checked = doctor(&server.url(), &[]).await;
        assert_eq!((checked.code, checked.checks("fail")), (1, vec![check.to_owned()]), "{}", checked.stdout);
        checked.check(check, "fail", advice);
    }
    // One that becomes fit is accepted by both.
    let () = send(&evicting, "CONFIG SET maxmemory-policy noeviction").await;
    let console = Console::on(evicting.url()).await;
    console.run(&["run", "k", "--", "true"]).await.printed();
    let fit = async || doctor(&evicting.url(), &[]).await.checks("fail").is_empty();
    eventually(secs(60), "no check fails", fit).await;
}

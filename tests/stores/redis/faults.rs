//! Servers that die, stop, or lose their role.

use std::future::IntoFuture;

use mongoseal::{Error, Mongoseal};
use mongoseal_test_support::{Redis, Walk, eventually, secs};
use tokio::task::JoinSet;

use crate::{cut_off, hasty, open, replicated, send, with_replica};

pub(crate) async fn a_lease_outlives_a_killed_server_with_an_append_only_file() {
    for flushes in ["always", "everysec"] {
        let server = Redis::start_with(&[("appendonly", "yes"), ("appendfsync", flushes)]).await;
        let seal = mongoseal_redis::connect(server.url()).await.unwrap();
        let lease = seal.acquire("k").await.unwrap();
        // With `everysec`, the write to the file waits for a flush that is under way.
        eventually(secs(60), "the file has the lease", async || {
            let info: String = send(&server, "INFO persistence").await;
            info.contains("aof_buffer_length:0\r")
        })
        .await;
        server.kill();
        let unreachable = open(hasty(), server.url()).await.unwrap_err();
        assert!(matches!(unreachable, Error::Unavailable { .. }), "{unreachable:?}");
        server.restart();
        lease.refresh().await.unwrap();
        let other = mongoseal_redis::connect(server.url()).await.unwrap();
        let refused = other.acquire("k").await.unwrap_err();
        assert!(matches!(refused, Error::Held { token, .. } if token == lease.token()), "{refused:?}");
        let waiting = tokio::spawn(other.acquire("k").wait(secs(30)).into_future());
        let token = lease.token();
        lease.release().await.unwrap();
        assert!(waiting.await.unwrap().unwrap().token() > token);
    }
}

pub(crate) async fn a_server_without_an_append_only_file_forgets_leases_and_their_tokens_still_grow() {
    let server = Redis::start().await;
    let seal = mongoseal_redis::connect(server.url()).await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    server.kill();
    server.restart();
    let next = mongoseal_redis::connect(server.url()).await.unwrap().acquire("k").await.unwrap();
    assert!(next.token() > lease.token());
    assert!(matches!(lease.refresh().await, Err(Error::Lost { .. })));
}

pub(crate) async fn a_call_to_a_stopped_server_ends_before_its_deadline_and_the_next_one_succeeds() {
    let server = Redis::start().await;
    let seal = open(hasty(), server.url()).await.unwrap();
    seal.acquire("k").await.unwrap().release().await.unwrap();
    server.pause();
    let acquiring = seal.acquire("other").into_future();
    let late = tokio::time::timeout(secs(30), acquiring).await.expect("its deadline is seconds away").unwrap_err();
    assert!(matches!(late, Error::Unavailable { .. }), "{late:?}");
    // The store's own error, or that of the queue of the key if its timer is first.
    let is_named = ["has not answered", "was not confirmed"].iter().any(|cause| late.to_string().contains(cause));
    assert!(is_named, "{late}");
    server.resume();
    // The acquire without an answer is taken back, or its lease expires.
    seal.acquire("k").await.unwrap().release().await.unwrap();
}

pub(crate) async fn a_primary_that_becomes_a_replica_is_unavailable_and_no_lease_is_reported_lost_at_once() {
    let (server, other) = (Redis::start().await, Redis::start().await);
    let seal = open(hasty(), server.url()).await.unwrap();
    let follow = format!("REPLICAOF {}", other.address().replace(':', " "));
    let () = send(&server, &follow).await;
    let refused = seal.acquire("k").await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("is a replica"), "{refused}");
    let () = send(&server, "REPLICAOF NO ONE").await;
    let lease = seal.acquire("k").await.unwrap();
    let () = send(&server, &follow).await;
    assert!(matches!(lease.refresh().await, Err(Error::Unavailable { .. })));
    assert!(lease.is_valid(), "its time is not over");
}

pub(crate) async fn a_write_that_too_few_replicas_acknowledge_is_not_confirmed() {
    let primary = Redis::start().await;
    let seal = hasty().connect_to(replicated(primary.url())).await.unwrap();
    let sibling = hasty().collection("sibling").sibling_of(&seal).unwrap();
    for seal in [&seal, &sibling] {
        // On a busy machine the answer may come after the deadline.
        let is_named = async || {
            let refused = seal.acquire("k").await.unwrap_err();
            assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
            refused.to_string().contains("is 0, and must be 1")
        };
        eventually(secs(60), "the error names the replicas", is_named).await;
    }
}

/// Each verb, also when it is sent again after a write that was made and not acknowledged.
/// The second attempt finds nothing to change, so its answer alone proves nothing.
pub(crate) async fn no_verb_is_confirmed_before_enough_replicas_have_acknowledged_it() {
    let (primary, replica) = with_replica().await;
    // Time for several attempts.
    let seal = hasty().connect_to(replicated(primary.url())).await.unwrap();
    let walk = Walk::prepare(&seal).await;
    replica.pause();
    walk.none_is_confirmed(&seal).await;
    replica.resume();
    seal.acquire("after").await.unwrap().release().await.unwrap();
}

/// A script that publishes before its `WAIT` notifies the waiter of a grant that can be lost.
pub(crate) async fn a_waiter_is_granted_the_key_only_after_the_replicas_acknowledged_it() {
    let (primary, replica) = with_replica().await;
    // The release waits for the replica, however long the test takes.
    let connect = || Mongoseal::builder().operation_timeout(secs(60)).connect_to(replicated(primary.url()));
    let (holder, waiter) = (connect().await.unwrap(), connect().await.unwrap());
    let lease = holder.acquire("k").ttl(secs(60)).await.unwrap();
    let token = lease.token();
    let waiting = tokio::spawn(waiter.acquire("k").ttl(secs(60)).wait(secs(60)).into_future());
    let is_queued = async || holder.inspect("k").await.unwrap().unwrap().queue.len() == 1;
    eventually(secs(30), "the waiter is queued", is_queued).await;
    replica.pause();
    let releasing = tokio::spawn(async move { lease.release().await });
    let is_granted = async || holder.inspect("k").await.unwrap().unwrap().holders.iter().any(|held| held.token > token);
    eventually(secs(30), "the primary has the grant", is_granted).await;
    assert!(!waiting.is_finished(), "no replica has acknowledged the grant");
    replica.resume();
    releasing.await.unwrap().unwrap();
    assert!(waiting.await.unwrap().unwrap().token() > token);
}

pub(crate) async fn a_write_that_a_replica_acknowledged_survives_the_loss_of_the_primary() {
    let (primary, replica) = with_replica().await;
    let seal = Mongoseal::builder().connect_to(replicated(primary.url())).await.unwrap();
    // More than there are connections for it.
    let acquires: JoinSet<_> = (0..50).map(|number| seal.acquire(format!("k{number}")).into_future()).collect();
    let leases: Vec<_> = acquires.join_all().await.into_iter().map(|acquired| acquired.unwrap()).collect();
    primary.kill();
    let () = send(&replica, "REPLICAOF NO ONE").await;
    let other = mongoseal_redis::connect(replica.url()).await.unwrap();
    for lease in leases {
        let refused = other.acquire(lease.key().clone()).await.unwrap_err();
        assert!(matches!(refused, Error::Held { token, .. } if token == lease.token()), "{refused:?}");
    }
}

/// The limit that the page of the guide names.
pub(crate) async fn a_failover_to_a_replica_without_the_last_writes_loses_the_lease() {
    let (primary, replica) = with_replica().await;
    cut_off(&primary, &replica).await;
    let lease = mongoseal_redis::connect(primary.url()).await.unwrap().acquire("k").await.unwrap();
    primary.kill();
    replica.resume();
    let () = send(&replica, "REPLICAOF NO ONE").await;
    let next = mongoseal_redis::connect(replica.url()).await.unwrap().acquire("k").await.unwrap();
    assert!(lease.is_valid(), "two holders believe");
    assert!(next.token() > lease.token(), "a fence refuses the first");
}

pub(crate) async fn a_server_with_too_many_clients_is_unavailable_to_a_handle_that_has_a_password() {
    let server = Redis::start_with(&[("requirepass", "hunter2")]).await;
    let uri = format!("redis://:hunter2@{}", server.address());
    let seal = open(hasty(), &uri).await.unwrap();
    let lease = seal.acquire("k").await.unwrap();
    let mut operator = crate::connect(uri).await;
    let mut send = async |words: &[&str]| {
        let () = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut operator).await.unwrap();
    };
    send(&["CONFIG", "SET", "maxclients", "1"]).await;
    send(&["CLIENT", "KILL", "SKIPME", "yes"]).await;
    let refused = lease.refresh().await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    send(&["CONFIG", "SET", "maxclients", "100"]).await;
    lease.refresh().await.unwrap();
}

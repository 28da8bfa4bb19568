//! Servers that answer, and do not serve for a while: no lease is lost by that, and requests are retried.

use std::{fs, future::IntoFuture, sync::Arc};

use mongoseal::{Error, Lease, Mongoseal};
use mongoseal_test_support::{Redis, eventually, millis, secs};

use crate::{open, send};

/// A lease of a handle whose calls end soon, and a handle that retries for long.
struct Holder {
    seal: Mongoseal,
    lease: Lease,
    patient: Mongoseal,
}

impl Holder {
    async fn on(server: &Redis) -> Self {
        let seal = open(Mongoseal::builder().operation_timeout(secs(2)), server.url()).await.unwrap();
        let patient = open(Mongoseal::builder().operation_timeout(secs(60)), server.url()).await.unwrap();
        let lease = seal.acquire("held").await.unwrap();
        Self { seal, lease, patient }
    }

    /// Checks that each call is refused with these words, and that calls succeed after `leave`.
    async fn ensure_refused_until(self, part: &str, leave: impl AsyncFnOnce()) {
        let Self { seal, lease, patient } = self;
        let refused = lease.refresh().await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable { .. }), "{part}: {refused:?}");
        for refused in [seal.acquire("free").await.map(drop), seal.inspect("held").await.map(drop)] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error, Error::Unavailable { .. }) && error.to_string().contains(part),
                "{part}: {error:?}"
            );
        }
        assert!(lease.is_valid(), "{part}: its time is not over");
        let mut retried = patient.acquire("retried").into_future();
        let refused = tokio::time::timeout(millis(300), &mut retried).await;
        assert!(refused.is_err(), "{part}: it is retried: {refused:?}");
        leave().await;
        retried.await.unwrap().release().await.unwrap();
        let held = patient.acquire("held").await.unwrap_err();
        assert!(matches!(held, Error::Held { token, .. } if token == lease.token()), "{held:?}");
        lease.refresh().await.unwrap();
        lease.release().await.unwrap();
    }
}

/// A pause is what an operator does for a failover. Each request of the store is a write, also those that read.
pub(crate) async fn a_server_that_an_operator_keeps_from_writes_is_unavailable() {
    let kept = async |keep: &str, leave: &str, part: &str| {
        let server = Redis::start().await;
        let holder = Holder::on(&server).await;
        let () = send(&server, keep).await;
        holder.ensure_refused_until(part, async || send(&server, leave).await).await;
    };
    tokio::join!(
        kept("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "has no memory left"),
        kept("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "too few replicas"),
        kept("CLIENT PAUSE 600000 WRITE", "CLIENT UNPAUSE", "has not answered"),
    );
}

pub(crate) async fn a_server_that_runs_the_script_of_another_program_is_unavailable() {
    let server = Redis::start_with(&[("busy-reply-threshold", "10")]).await;
    let holder = Holder::on(&server).await;
    let mut other = crate::client(&server).await;
    let script = tokio::spawn(async move {
        let mut endless = redis::cmd("EVAL");
        endless.arg("while true do end").arg(0).query_async::<()>(&mut other).await.unwrap_err()
    });
    let kill = async || assert_eq!(send::<String>(&server, "SCRIPT KILL").await, "OK");
    let is_busy = async || {
        let set = redis::cmd("PING").query_async::<String>(&mut crate::client(&server).await).await;
        set.is_err_and(|error| error.code() == Some("BUSY"))
    };
    eventually(secs(10), "the script runs", is_busy).await;
    holder.ensure_refused_until("busy with a script", kill).await;
    script.await.unwrap();
}

pub(crate) async fn a_server_that_cannot_save_is_unavailable() {
    let server = Redis::start_with(&[("save", "3600 1000")]).await;
    let holder = Holder::on(&server).await;
    // The file cannot replace a folder.
    let folder = server.directory().join("dump.rdb");
    fs::create_dir_all(folder.join("in-the-way")).unwrap();
    let saves = async |status: &str| {
        let _: String = send(&server, "BGSAVE").await;
        let has_status = async || {
            let info: String = send(&server, "INFO persistence").await;
            info.contains("rdb_bgsave_in_progress:0") && info.contains(&format!("rdb_last_bgsave_status:{status}"))
        };
        eventually(secs(20), status, has_status).await;
    };
    saves("err").await;
    let leave = async || {
        fs::remove_dir_all(&folder).unwrap();
        saves("ok").await;
    };
    holder.ensure_refused_until("cannot save them", leave).await;
}

pub(crate) async fn a_server_that_loads_its_append_only_file_is_unavailable() {
    // It takes two milliseconds for each key of the snapshot in the file, and answers meanwhile.
    let slow = [("key-load-delay", "2000"), ("loading-process-events-interval-bytes", "1024")];
    let server = Redis::start_with(&[slow.as_slice(), &[("appendonly", "yes")]].concat()).await;
    let holder = Holder::on(&server).await;
    let server = Arc::new(server);
    let mut fill = redis::pipe();
    for number in 0..6_000 {
        fill.cmd("SET").arg(format!("other:{number}")).arg(1).ignore();
    }
    let () = fill.query_async(&mut crate::client(&server).await).await.unwrap();
    let _: String = send(&server, "BGREWRITEAOF").await;
    let is_rewritten = async || {
        let info: String = send(&server, "INFO persistence").await;
        info.contains("aof_rewrite_in_progress:0") && !info.contains("aof_last_rewrite_time_sec:-1")
    };
    eventually(secs(20), "the file is rewritten", is_rewritten).await;
    server.kill();
    let starts = Arc::clone(&server);
    let started = tokio::task::spawn_blocking(move || starts.restart());
    let loads = async || {
        let read = async || {
            let mut redis = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
            redis::cmd("GET").arg("mongoseal:held").query_async::<()>(&mut redis).await
        };
        read().await.is_err_and(|error| error.code() == Some("LOADING"))
    };
    eventually(secs(20), "it loads", loads).await;
    holder.ensure_refused_until("starts", async || started.await.unwrap()).await;
}

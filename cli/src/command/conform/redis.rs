//! Runs the conformance suite on Redis, under a scratch prefix. The probes are for MongoDB: they check what the library
//! sends to it.

use std::{sync::Arc, time::Duration};

use mongoseal::store::{Deadline, Store};
use mongoseal_redis::{RedisBackend, RedisStore};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{CLOSE_TIMEOUT, COLUMN, end, run_requirements, scratch, until_signal};
use crate::{
    arguments::Conform,
    command::{
        finding::{Finding, Report},
        redis::{Answer, Lack, Refusal, Server},
    },
    connection::{Connection, Product},
    exit_status::{Failure, Status},
    job::signals::Signals,
};

const CHECK: &str = "scratch";
/// How long no key may appear until all are deleted. A request of a requirement that was ended is repeated sooner than that.
const QUIET: Duration = Duration::from_secs(1);

/// Runs all requirements that the store declares, and deletes their keys.
pub(super) async fn perform(
    uri: &str,
    connection: &Connection,
    options: Conform,
    signals: &mut Signals,
) -> Result<Status, Failure> {
    if options.slow {
        return Err(Failure::invalid("--slow checks a TTL index of MongoDB: leave it out on Redis"));
    }
    let mut report = Report::new(options.json, COLUMN);
    let prefix = options.scratch.unwrap_or_else(scratch::random_name);
    let opening = Box::pin(open(uri, connection, &prefix));
    let opened = signals.unless(connection.report_wait(uri, Product::Redis, opening)).await;
    let (server, store) = opened.map_err(Failure::by_signal)??;
    let (stop, mut stopped) = watch::channel(false);
    let ended =
        until_signal(signals, &stop, run_requirements(&store, &mut report, options.verbose, &mut stopped)).await;
    let removed = signals.finish(async {
        store.close(Deadline::after(store.clock(), CLOSE_TIMEOUT)).await;
        remove(&server).await
    });
    let removed = removed.await.unwrap_or_else(|| left(&server, "no answer"));
    end(&mut report, ended, &removed)
}

/// Connects, and fails if the server is unfit or has keys with the prefix.
async fn open(uri: &str, connection: &Connection, prefix: &str) -> Result<(Server, Arc<dyn Store>), Failure> {
    let backend = RedisBackend::new(uri)?.with_collection(prefix)?.with_replicas(connection.redis_replicas());
    let store = RedisStore::new(backend, connection.retention);
    store.prepare(Deadline::after(store.clock(), connection.timeout)).await?;
    let unavailable =
        |refusal: Refusal| Failure::new(Status::UNAVAILABLE, format!("cannot use the Redis server ({refusal}): retry"));
    let server = Server::open(uri, prefix, connection.timeout).await.map_err(unavailable)?;
    match server.has_keys().await {
        Ok(false) => match server.attempt(&["SET", &server.name(""), "", "XX"]).await {
            Ok(()) => Ok((server, Arc::new(store))),
            Err(Refusal::Denied(Lack::Keys)) => Err(Failure::invalid(format!(
                "the user may not use the keys of the requirements: grant ~{0} and &{0}, or pass a prefix with --scratch",
                server.name("*")
            ))),
            Err(refusal) => Err(unavailable(refusal)),
        },
        Ok(true) => Err(Failure::invalid(format!(
            "there are keys with the prefix {prefix:?}, and they are left as they are: pass another name with --scratch"
        ))),
        Err(Refusal::Denied(Lack::Command)) => Err(Failure::invalid("the user may not list keys: grant +scan")),
        Err(refusal) => Err(unavailable(refusal)),
    }
}

/// Deletes the keys of the requirements, and reports whether that succeeded.
async fn remove(server: &Server) -> Finding {
    match timeout(CLOSE_TIMEOUT, delete_all(server)).await {
        Ok(Ok(())) => Finding::pass(CHECK, format!("the keys {} are deleted", server.name("*"))),
        Ok(Err(refusal)) => left(server, &refusal.to_string()),
        Err(_elapsed) => left(server, "another program writes such keys"),
    }
}

/// Deletes the keys until no late request of a requirement has written another.
async fn delete_all(server: &Server) -> Answer<()> {
    loop {
        server.delete_keys().await?;
        sleep(QUIET).await;
        if !server.has_keys().await? {
            return Ok(());
        }
    }
}

/// Reports that keys may be left.
fn left(server: &Server, why: &str) -> Finding {
    let keys = server.name("*");
    Finding::fail(
        CHECK,
        format!("cannot delete the keys {keys}, which may be left ({why})"),
        "delete them with redis-cli",
    )
}

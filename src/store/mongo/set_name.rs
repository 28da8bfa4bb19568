//! The name of the replica set if a connection string has a wrong one.
//!
//! Purpose: the driver drops a server of another set, and keeps nothing of its answer.
//!
//! Mechanism: the set name is read from one of the servers, over a direct connection without a login.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
    options::{ClientOptions, ServerAddress},
};

use super::{error, preflight, task};
use crate::{Deadline, Error};

/// The most servers that are tried, one after another.
const MAX_SERVERS: usize = 3;

/// Adds the name of the set to an error about a wrong set name. Returns any other error unchanged, and this one if no
/// server answers before the deadline.
pub(crate) async fn explain(error: Error, options: ClientOptions, allow_sharded: bool, deadline: Deadline) -> Error {
    let Some(wanted) = error::misnamed_set(&error) else { return error };
    // A share of the whole time, so that three servers can be tried.
    let timeout = deadline.remaining().mul_f64(0.3);
    let corrected = task::run(deadline, async move {
        for host in options.hosts.iter().take(MAX_SERVERS) {
            if let Ok(hello) = hello(host, &options, timeout).await {
                return Ok(Some(correction(&wanted, host, &hello, allow_sharded)));
            }
        }
        Ok(None)
    });
    corrected.await.ok().flatten().unwrap_or(error)
}

/// Reads one server's answer to `hello`.
async fn hello(host: &ServerAddress, options: &ClientOptions, timeout: Duration) -> mongodb::error::Result<Document> {
    let mut options = options.clone();
    options.hosts = vec![host.clone()];
    options.direct_connection = Some(true);
    options.repl_set_name = None;
    options.credential = None;
    options.server_selection_timeout = Some(timeout);
    let client = Client::with_options(options)?;
    let reply = client.database("admin").run_command(doc! { "hello": 1 }).await;
    client.shutdown().immediate(true).await;
    reply
}

/// The error for a server, by its answer to `hello`, that does not belong to the wanted set. It says what to change.
fn correction(wanted: &str, host: &ServerAddress, hello: &Document, allow_sharded: bool) -> Error {
    if let Err(refused) = preflight::check_deployment(hello, None, allow_sharded) {
        return refused;
    }
    Error::invalid(match hello.get_str("setName") {
        Ok(actual) => format!(
            "the MongoDB connection string says replicaSet={wanted}, but the replica set of {host} is called {actual}: write replicaSet={actual}"
        ),
        Err(_) => format!(
            "the MongoDB connection string says replicaSet={wanted}, but {host} is a router of a sharded cluster: leave out replicaSet"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_says_what_to_write() {
        let host = ServerAddress::parse("db0:27017").unwrap();
        let said = |hello: Document, allow_sharded| {
            let error = correction("rs1", &host, &hello, allow_sharded);
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            error.to_string()
        };
        assert_eq!(
            said(doc! { "setName": "rs0", "maxWireVersion": 17 }, false),
            "the MongoDB connection string says replicaSet=rs1, but the replica set of db0:27017 is called rs0: write replicaSet=rs0"
        );
        assert!(said(doc! { "maxWireVersion": 17 }, false).contains("run rs.initiate()"));
        let router = doc! { "msg": "isdbgrid", "maxWireVersion": 17 };
        assert!(said(router.clone(), false).contains("set `allow_sharded`"));
        assert!(said(router, true).contains("leave out replicaSet"));
        assert!(said(doc! { "setName": "rs0", "maxWireVersion": 13 }, false).contains("upgrade"));
    }
}

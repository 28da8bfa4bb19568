//! Checks whether a server can keep the promises of the store.

use mongoseal::{Error, Result};
use redis::{InfoDict, RedisResult, Value, aio::MultiplexedConnection};
use tracing::warn;

use crate::{RedisBackend, error};

/// What a server says about itself.
pub(super) struct Server {
    info: InfoDict,
    /// When the append-only file is flushed. `None`: the user may not read the configuration.
    flushes: Option<String>,
}

impl Server {
    /// Queries the server.
    pub(super) async fn query(mut connection: MultiplexedConnection) -> RedisResult<Self> {
        let info = redis::cmd("INFO").query_async(&mut connection).await?;
        let config = redis::cmd("CONFIG").arg("GET").arg("appendfsync").query_async::<Value>(&mut connection).await;
        // Services of Redis refuse the command, and so do users without the permission.
        let flushes = config.ok().and_then(|config| redis::from_redis_value::<(String, String)>(config).ok());
        Ok(Self { info, flushes: flushes.map(|(_, value)| value) })
    }

    fn is(&self, field: &str, value: &str) -> bool {
        self.info.get::<String>(field).is_some_and(|found| found == value)
    }

    /// Refuses a server that would break a promise.
    pub(super) fn ensure_fit(&self) -> Result<()> {
        if self.is("redis_mode", "sentinel") {
            return Err(Error::invalid("the Redis server is a sentinel: use the address of the primary"));
        }
        if self.is("cluster_enabled", "1") || self.is("redis_mode", "cluster") {
            return Err(error::cluster());
        }
        let version = self.info.get::<String>("redis_version").unwrap_or_default();
        if read_version(&version).is_none_or(|version| version < RedisBackend::MIN_VERSION) {
            return Err(Error::invalid(format!(
                "the server has version {version:?} of Redis: use version 6.2 or later"
            )));
        }
        if self.is("role", "slave") {
            return Err(Error::invalid("the Redis server is a replica: use the address of the primary"));
        }
        let policy = self.info.get::<String>("maxmemory_policy").unwrap_or_default();
        if !policy.is_empty() && policy != "noeviction" {
            return Err(Error::invalid(format!(
                "the Redis server forgets leases when its memory is full, because `maxmemory-policy` is {policy:?}: set it to `noeviction`"
            )));
        }
        Ok(())
    }

    /// Warns of a server that can forget confirmed writes.
    pub(super) fn warn_of_losses(&self) {
        if self.is("aof_enabled", "0") {
            warn!("the Redis server has no append-only file, so a restart forgets leases: set appendonly to yes");
        } else if self.flushes.as_ref().is_some_and(|flushes| flushes != "always") {
            warn!(
                "the Redis server does not flush its append-only file at each write, so a crash of its machine forgets the last leases: set appendfsync to always"
            );
        }
    }
}

/// The major and the minor version.
fn read_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with these fields and otherwise fit.
    fn server(fields: &str) -> Server {
        let fit = "redis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\nmaxmemory_policy:noeviction\r\n";
        Server { info: InfoDict::new(&format!("{fit}{fields}\r\n")), flushes: None }
    }

    #[test]
    fn a_server_that_would_break_a_promise_is_refused_with_what_to_change() {
        assert!(server("").ensure_fit().is_ok());
        for (fields, part) in [
            ("redis_mode:sentinel", "sentinel"),
            ("cluster_enabled:1", "cluster"),
            ("redis_version:6.0.16", "\"6.0.16\""),
            ("redis_version:?", "6.2 or later"),
            ("role:slave", "primary"),
            ("maxmemory_policy:volatile-lru", "noeviction"),
        ] {
            match server(fields).ensure_fit() {
                Err(Error::Invalid { message, .. }) => assert!(message.contains(part), "{fields}: {message}"),
                fit => panic!("{fields}: {fit:?}"),
            }
        }
    }
}

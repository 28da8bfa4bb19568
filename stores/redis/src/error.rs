//! Translates the errors of the driver to those of mongoseal.
//!
//! Invariant: an error keeps the code of the server's error, and nothing that the server quotes: that may be a password or a
//! lease id.

use std::{fmt, io, sync::Arc, time::Duration};

use mongoseal::{Error, Key, store::Source};
use redis::{ErrorKind, RedisError};

use crate::millis;

/// Codes that a server of version 6 puts into the text of an error if a command of a script fails.
const IN_SCRIPT: [&str; 7] = ["WRONGTYPE", "READONLY", "OOM", "MISCONF", "NOREPLICAS", "NOPERM", "LOADING"];

/// The beginning of the error of a `WAIT` whose server has become a replica since the write before it. It has no code.
const WAIT_ON_REPLICA: &str = "WAIT cannot be used with replica";

/// Translates an error of a request for this key, if it is for one.
pub(super) fn translate(error: RedisError, key: Option<&Key>) -> Error {
    let refusal = Refusal::of(&error);
    let translated = match (refusal.as_ref().map(|refusal| refusal.code.as_str()), key) {
        (Some("WRONGTYPE"), Some(key)) => {
            return Error::Corrupt { key: key.clone(), message: "its Redis key has a value that is no string".into() };
        }
        (Some("NOAUTH"), _) => {
            Error::invalid("the Redis server requires a login: put user and password into the connection string")
        }
        (Some("WRONGPASS"), _) => refused_credentials(),
        (Some("NOPERM"), _) => Error::invalid(
            "the Redis user lacks a permission: grant it the commands, the keys and the channels that the page `redis` of the guide lists",
        ),
        (Some("MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN"), _) => cluster(),
        (Some("READONLY" | "UNBLOCKED"), _) => replica(),
        // The scripts were flushed between two commands, which load and run one.
        (Some("NOSCRIPT"), _) => Error::unavailable("the Redis server has flushed its scripts: retry"),
        (Some("LOADING" | "MASTERDOWN" | "BUSY"), _) => {
            Error::unavailable("the Redis server starts or is busy with a script: retry")
        }
        (Some("OOM"), _) => {
            Error::unavailable("the Redis server has no memory left for a write: raise `maxmemory`, and retry")
        }
        (Some("MISCONF"), _) => {
            Error::unavailable("the Redis server refuses writes, because it cannot save them: see its log, and retry")
        }
        (Some("NOREPLICAS"), _) => Error::unavailable(
            "the Redis server refuses writes, because too few replicas are connected: check the replicas, and retry",
        ),
        (Some(_), _) => Error::invalid("Redis refused a command: see the source of this error"),
        (None, _) => without_code(&error),
    };
    translated.caused_by(refusal.map_or_else(|| source(error), Source::from))
}

/// Translates an error that is not the server's.
fn without_code(error: &RedisError) -> Error {
    match error.kind() {
        ErrorKind::AuthenticationFailed => refused_credentials(),
        // `SELECT` was refused.
        ErrorKind::Server(_) => Error::invalid("Redis refused the database of the connection string: check its number"),
        ErrorKind::InvalidClientConfig | ErrorKind::Client | ErrorKind::RESP3NotSupported => {
            Error::invalid("the Redis connection string does not fit the server: check it")
        }
        ErrorKind::Parse if is_cut_short(error) => Error::unavailable(
            "the connection to Redis ended within a reply: check the server and the network, and retry",
        ),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Error::invalid(
            "the reply is not one of a Redis server: check the address, and whether a proxy or another product answers",
        ),
        _ if error.is_connection_refusal() => Error::unavailable(
            "no Redis server listens at the address of the connection string: check the address and the server, and retry",
        ),
        _ if io_kind(error) == Some(io::ErrorKind::InvalidData) => Error::invalid(
            "the TLS handshake with the Redis server failed: check its certificate and the scheme of the connection string",
        ),
        _ => Error::unavailable("Redis did not confirm the request: check the server and the network, and retry"),
    }
}

/// Whether the connection ended within a reply. The driver reports that as a reply that it cannot read, and keeps only the
/// text of its parser.
fn is_cut_short(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("end of input"))
}

/// The error of a server that is a replica now. Its address may follow the primary in a moment.
pub(super) fn replica() -> Error {
    Error::unavailable("the Redis server is a replica, and takes no writes: retry, and use the address of the primary")
}

/// The kind of an error of a connection. The driver shares the error behind an `Arc`.
fn io_kind(error: &RedisError) -> Option<io::ErrorKind> {
    let shared: &Arc<dyn std::error::Error + Send + Sync> = std::error::Error::source(error)?.downcast_ref()?;
    shared.downcast_ref().map(io::Error::kind)
}

/// The source of an error that is not the server's. Only an error of a connection quotes nothing.
fn source(error: RedisError) -> Source {
    if error.kind() == ErrorKind::Io {
        return Box::new(error);
    }
    Box::new(Refusal { code: error.category().to_owned(), text: String::new() })
}

/// Translates an error of a new connection. The driver does not keep why a login was refused. If a login succeeded before,
/// the reason may be of the moment: too many clients.
pub(super) fn translate_opening(error: RedisError, has_opened: bool) -> Error {
    if has_opened && error.kind() == ErrorKind::AuthenticationFailed {
        return Error::unavailable(
            "Redis refused the login, which it accepted before: check `maxclients` and the password, and retry",
        );
    }
    if error.is_timeout() {
        return unconnected().caused_by(source(error));
    }
    translate(error, None)
}

/// Whether a connection is of no more use after this error. A server that has become a replica must be looked up again.
pub(super) fn is_of_connection(error: &RedisError) -> bool {
    let is_replica =
        Refusal::of(error).is_some_and(|refusal| ["READONLY", "UNBLOCKED"].contains(&refusal.code.as_str()));
    is_replica || error.kind() == ErrorKind::Io || error.is_unrecoverable_error()
}

/// The error of a request without an answer.
pub(super) fn late(timeout: Duration) -> Error {
    // The clock has moved on since the deadline was set.
    let timeout = Duration::from_millis(millis(timeout.saturating_add(Duration::from_micros(500))));
    Error::unavailable(format!("Redis has not answered for {timeout:?}: check the server and the network, and retry"))
}

/// The error of a request whose deadline has passed while it waited for a connection.
pub(super) fn unconnected() -> Error {
    Error::unavailable(
        "no connection to Redis could be opened in time: check the server, the network, and whether its port is for TLS (`rediss`) or not (`redis`), and retry",
    )
}

/// The error of a server that is part of a cluster.
pub(super) fn cluster() -> Error {
    Error::invalid(
        "the Redis server is a node of a cluster, which can lose a key with each failover: use a server without cluster mode",
    )
}

fn refused_credentials() -> Error {
    Error::invalid("Redis refused the credentials: check user and password, and `maxclients` of the server")
}

/// A server's error without what it quotes.
#[derive(Debug)]
struct Refusal {
    code: String,
    text: String,
}

impl Refusal {
    /// The first error that the server returned.
    fn of(error: &RedisError) -> Option<Self> {
        if error.kind() == ErrorKind::AuthenticationFailed {
            return None;
        }
        let errors = error.clone().into_server_errors()?;
        let (_, first) = errors.first()?;
        let text = first.details().unwrap_or_default();
        let in_script = IN_SCRIPT.into_iter().find(|code| first.code() == "ERR" && text.contains(code));
        let code = if text.starts_with(WAIT_ON_REPLICA) { "READONLY" } else { in_script.unwrap_or(first.code()) };
        let quotes = text.find(['\'', '"', '`', '{']).unwrap_or(text.len());
        let text = text.get(..quotes).unwrap_or_default().trim_end().to_owned();
        Some(Self { code: code.to_owned(), text })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            "" => f.write_str(&self.code),
            text => write!(f, "{}: {text}", self.code),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mongoseal::store::{Backend, Clock, Deadline};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::RedisBackend;

    /// Answers the two commands of a new connection, and then a request with these bytes. Then it closes the connection.
    async fn serve(mut connection: TcpStream, reply: &[u8]) -> io::Result<()> {
        let (mut requests, mut greeted) = (Vec::new(), false);
        while !requests.ends_with(b"1000\r\n") {
            connection.read_buf(&mut requests).await?;
            if !greeted && requests.windows(7).filter(|word| word == b"SETINFO").count() == 2 {
                connection.write_all(b"+OK\r\n+OK\r\n").await?;
                greeted = true;
            }
        }
        connection.write_all(reply).await
    }

    /// The error of a request that is so answered.
    async fn answered(reply: &'static [u8]) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = RedisBackend::new(format!("redis://{}", listener.local_addr().unwrap())).unwrap();
        let serving = async {
            let (connection, _) = listener.accept().await.unwrap();
            serve(connection, reply).await.unwrap();
        };
        let deadline = Deadline::after(Clock::Boot, Duration::from_secs(10));
        let ((), answer) = tokio::join!(serving, backend.list(deadline));
        answer.unwrap_err()
    }

    /// The driver reports a connection that ends within a reply as a reply that it cannot read.
    #[tokio::test]
    async fn a_reply_that_is_cut_short_is_unavailable() {
        let cut = answered(b"*2\r\n$9\r\nhalf").await;
        assert!(matches!(cut, Error::Unavailable { .. }), "{cut:?}");
        let foreign = answered(b"HTTP/1.1 400\r\n").await;
        assert!(matches!(foreign, Error::Invalid { .. }), "{foreign:?}");
    }

    /// What a server answers to a `WAIT` if it becomes a replica: during it, or after the write before it.
    #[tokio::test]
    async fn a_server_that_becomes_a_replica_while_a_write_waits_for_replicas_is_unavailable() {
        for reply in [
            &b"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n"[..],
            b"-ERR WAIT cannot be used with replica instances. Please also note (...)\r\n",
        ] {
            let error = answered(reply).await;
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(error.to_string().contains("is a replica"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_script_that_was_flushed_after_its_load_is_unavailable() {
        let error = answered(b"-NOSCRIPT No matching script. Please use EVAL.\r\n").await;
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
}

//! Commands to Redis that the library has no API for. `doctor` uses them, and the lease files the number of the
//! database. Only this file names the crate `redis`.
//!
//! Invariant: no error has what the server or the driver quotes, which may be a password.

use std::{collections::HashSet, time::Duration};

use mongoseal::store::Clock;
pub(super) use redis::InfoDict;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo, RedisError, ToRedisArgs, Value,
    aio::MultiplexedConnection,
};
use rustix::time::{ClockId, clock_gettime};

use super::driver::{self, Offset, SCAN_TIME, Scan, TIMEOUT};
use crate::time;

/// How many keys a step of a scan visits.
const SCAN_COUNT: usize = 1_000;

/// What the user needs for a command and lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Command,
    Keys,
    Channels,
}

/// Why a command failed.
#[derive(Debug)]
pub(super) enum Refusal {
    Denied(Lack),
    /// Another error of the server, with its code.
    Server(String),
    /// Another error of the driver.
    Other(String),
}

impl Refusal {
    fn is(&self, code: &str) -> bool {
        matches!(self, Self::Server(other) if other == code)
    }
}

impl From<RedisError> for Refusal {
    fn from(error: RedisError) -> Self {
        match error.code() {
            Some("NOPERM") => {
                let text = error.detail().unwrap_or_default();
                // The name of a command is quoted, and may contain these words.
                let text = text.split('\'').next().unwrap_or(text);
                Self::Denied(if text.contains(" channel") {
                    Lack::Channels
                } else if text.contains(" key") {
                    Lack::Keys
                } else {
                    Lack::Command
                })
            }
            Some(code) => Self::Server(code.to_owned()),
            None => Self::Other(error.category().to_owned()),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Denied(Lack::Command) => f.write_str("the user lacks a command"),
            Self::Denied(Lack::Keys) => f.write_str("the user may not use the keys"),
            Self::Denied(Lack::Channels) => f.write_str("the user may not use the channels"),
            Self::Server(code) => write!(f, "the server reports {code}"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

pub(super) type Answer<T> = Result<T, Refusal>;

/// Returns the number of the database of a connection string. If the connection string is wrong, the connection fails later.
pub(super) fn database_number(uri: &str) -> i64 {
    uri.into_connection_info().map_or(0, |info| info.redis_settings().db())
}

/// A connection to a server.
pub(super) struct Server {
    client: Client,
    connection: MultiplexedConnection,
    prefix: String,
}

impl Server {
    /// Connects, for the keys with a prefix. The library has connected before, and has chosen the cryptography of TLS.
    pub(super) async fn open(uri: &str, prefix: &str, within: Duration) -> Answer<Self> {
        Self::connect(Client::open(uri)?, prefix, within).await
    }

    /// Opens another connection to the server.
    pub(super) async fn reopen(&self) -> Answer<Self> {
        Self::connect(self.client.clone(), &self.prefix, TIMEOUT).await
    }

    async fn connect(client: Client, prefix: &str, within: Duration) -> Answer<Self> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(None);
        let connection = with_timeout(within, client.get_multiplexed_async_connection_with_config(&config)).await?;
        Ok(Self { client, connection, prefix: prefix.to_owned() })
    }

    /// Returns the address, without user and password.
    pub(super) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Returns the user of the connection string. `None`: it has no login.
    pub(super) fn user(&self) -> Option<String> {
        let login = self.client.get_connection_info().redis_settings();
        let default = login.password().map(|_| "default".to_owned());
        login.username().map(str::to_owned).or(default)
    }

    /// Returns the name of a key or a channel at the server.
    pub(super) fn name(&self, of: &str) -> String {
        format!("{}:{of}", self.prefix)
    }

    async fn send<T: FromRedisValue>(&self, command: &Cmd) -> Answer<T> {
        let mut connection = self.connection.clone();
        with_timeout(TIMEOUT, command.query_async(&mut connection)).await
    }

    /// Sends a command, and ignores its reply. Fails only if the user may not send it, or if no reply comes: another error
    /// of the server means that it would run.
    pub(super) async fn attempt(&self, words: &[impl ToRedisArgs]) -> Answer<()> {
        match self.send::<Value>(Cmd::new().arg(words)).await {
            // The answer to `EXEC` after an empty transaction.
            Err(refusal) if refusal.is("EXECABORT") => Err(Refusal::Denied(Lack::Command)),
            Ok(_) | Err(Refusal::Server(_)) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Subscribes to a channel, and closes the connection of the subscription.
    pub(super) async fn attempt_subscription(&self, channel: &str) -> Answer<()> {
        with_timeout(TIMEOUT, async {
            let mut messages = self.client.get_async_pubsub().await?;
            messages.subscribe(channel).await
        })
        .await
    }

    /// Reads what the server reports about itself.
    pub(super) async fn info(&self) -> Answer<InfoDict> {
        self.send(&redis::cmd("INFO")).await
    }

    /// Reads an option of the server. `None`: the user may not read it, or the server does not have it.
    pub(super) async fn option(&self, name: &str) -> Option<String> {
        let found: Vec<String> = self.send(redis::cmd("CONFIG").arg("GET").arg(name)).await.ok()?;
        found.into_iter().nth(1)
    }

    /// Reads the clock of the server, as the time since the Unix epoch. Each user of leases may read it.
    pub(super) async fn clock(&self) -> Answer<Duration> {
        let (seconds, micros): (u64, u32) = self.send(&redis::cmd("TIME")).await?;
        Ok(Duration::new(seconds, micros.saturating_mul(1_000)))
    }

    /// Measures the clock of the server against the wall clock of this machine.
    pub(super) async fn offset(&self) -> Answer<Offset> {
        let theirs = async || Ok(i64::try_from(self.clock().await?.as_millis()).ok());
        driver::offset::<Refusal>(wall_clock, theirs).await?.ok_or_else(|| Refusal::Other("no measurement".into()))
    }

    /// Reads the keys with the prefix, and collects what `judge` returns for the rest of each name and its text. A value of
    /// another type has no text. Ends after so many keys, or after [`SCAN_TIME`].
    pub(super) async fn scan<T>(&self, limit: usize, judge: fn(&str, Option<&[u8]>) -> Option<T>) -> Answer<Scan<T>> {
        let until = Clock::Boot.now().after(SCAN_TIME);
        let mut scan = Scan { count: 0, found: Vec::new(), has_more: false };
        // The server can return a name twice.
        let mut seen = HashSet::new();
        let has_more = self.visit(async |mut names| {
            names.retain(|name| seen.insert(name.clone()));
            let texts: Vec<Option<Vec<u8>>> = match names.as_slice() {
                [] => Vec::new(),
                names => self.send(redis::cmd("MGET").arg(names)).await?,
            };
            for (name, text) in names.iter().zip(texts) {
                // A key that was deleted meanwhile is left out.
                if text.is_none() && !self.has_another_type(name).await {
                    continue;
                }
                if scan.count >= limit {
                    scan.has_more = true;
                    return Ok(false);
                }
                scan.count += 1;
                let name = String::from_utf8_lossy(name);
                let rest = name.get(self.prefix.len().saturating_add(1)..).unwrap_or_default();
                scan.found.extend(judge(rest, text.as_deref()));
            }
            Ok(Clock::Boot.now() < until)
        });
        scan.has_more |= has_more.await?;
        Ok(scan)
    }

    /// Returns whether a key has a value that is no text.
    async fn has_another_type(&self, name: &[u8]) -> bool {
        self.send::<Value>(redis::cmd("GET").arg(name)).await.is_err_and(|refusal| refusal.is("WRONGTYPE"))
    }

    /// Returns whether there is a key with the prefix.
    pub(super) async fn has_keys(&self) -> Answer<bool> {
        let mut has_keys = false;
        let visited = self.visit(async |names| {
            has_keys = !names.is_empty();
            Ok(!has_keys)
        });
        visited.await?;
        Ok(has_keys)
    }

    /// Deletes all keys with the prefix.
    pub(super) async fn delete_keys(&self) -> Answer<()> {
        let visited = self.visit(async |names| {
            if !names.is_empty() {
                self.send::<Value>(redis::cmd("DEL").arg(names)).await?;
            }
            Ok(true)
        });
        visited.await.map(drop)
    }

    /// Passes the names with the prefix to `step`, some at a time, until it returns `false`. Returns whether the server has
    /// more names.
    async fn visit(&self, mut step: impl AsyncFnMut(Vec<Vec<u8>>) -> Answer<bool>) -> Answer<bool> {
        // In a pattern, a punctuation mark behind a backslash means itself.
        let escaped = |letter: char| letter.is_ascii_punctuation().then_some('\\').into_iter().chain([letter]);
        let prefix: String = self.prefix.chars().flat_map(escaped).collect();
        let mut cursor = 0;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{prefix}:*")).arg("COUNT").arg(SCAN_COUNT);
            let (next, names): (u64, _) = self.send(&scan).await?;
            let goes_on = step(names).await?;
            if next == 0 || !goes_on {
                return Ok(next != 0);
            }
            cursor = next;
        }
    }
}

/// Waits for a reply, at most for `within`. A task of the driver owns the connection, so the future can be dropped.
async fn with_timeout<T>(within: Duration, reply: impl Future<Output = Result<T, RedisError>>) -> Answer<T> {
    match tokio::time::timeout(within, reply).await {
        Ok(reply) => Ok(reply?),
        Err(_elapsed) => Err(Refusal::Other(format!("Redis has not answered for {}", time::format(within)))),
    }
}

/// The wall clock of this machine, as the time since the Unix epoch. It decides nothing.
fn wall_clock() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Realtime)).unwrap_or_default()
}

//! Commands to Redis that the library has no API for. `doctor` and `conform` use them, and the lease files the number of the
//! database. Only this file names the crate `redis`.
//!
//! Invariant: no error has what the server or the driver quotes, which may be a password.

use std::{collections::HashSet, time::Duration};

use mongoseal::Clock;
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, InfoDict, IntoConnectionInfo, RedisError, Value,
    aio::MultiplexedConnection,
};
use rustix::time::{ClockId, clock_gettime};

use super::driver::{Offset, Scan};
use crate::{connection::Connection, time};

/// The time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a scan reads no further keys.
const SCAN_TIME: Duration = Duration::from_secs(8);
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
    pub(super) prefix: String,
}

impl Server {
    /// Connects. The library has connected before, and has chosen the cryptography of TLS.
    pub(super) async fn open(uri: &str, connection: &Connection) -> Answer<Self> {
        let client = Client::open(uri)?;
        let within = connection.timeout();
        let opened = open(&client, within).await?;
        Ok(Self { client, connection: opened, prefix: connection.collection().to_owned() })
    }

    /// Opens another connection to the server.
    pub(super) async fn reopen(&self) -> Answer<Self> {
        let connection = open(&self.client, TIMEOUT).await?;
        Ok(Self { client: self.client.clone(), connection, prefix: self.prefix.clone() })
    }

    /// Returns the same connection for the keys with another prefix.
    pub(super) fn with_prefix(self, prefix: String) -> Self {
        Self { prefix, ..self }
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

    async fn send<T: FromRedisValue>(&self, words: &[&[u8]]) -> Answer<T> {
        let (name, arguments) = words.split_first().ok_or_else(|| Refusal::Other("no command".into()))?;
        let mut command = redis::cmd(&String::from_utf8_lossy(name));
        command.arg(arguments);
        let mut connection = self.connection.clone();
        with_timeout(TIMEOUT, async move { command.query_async(&mut connection).await }).await
    }

    /// Sends a command, and ignores its reply. Fails only if the user may not send it, or if no reply comes: another error
    /// of the server means that it would run.
    pub(super) async fn attempt(&self, words: &[&str]) -> Answer<()> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match self.send::<Value>(&words).await {
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
    pub(super) async fn info(&self) -> Answer<Info> {
        self.send(&[b"INFO"]).await.map(Info)
    }

    /// Reads an option of the server.
    pub(super) async fn option(&self, name: &str) -> Answer<Option<String>> {
        let found: Vec<String> = self.send(&[b"CONFIG", b"GET", name.as_bytes()]).await?;
        Ok(found.into_iter().nth(1))
    }

    /// Measures the round trip of `TIME`, which each user of leases may send.
    pub(super) async fn round_trip(&self) -> Answer<Duration> {
        let began = Clock::Boot.now();
        self.clock().await?;
        Ok(Clock::Boot.now().saturating_sub(began))
    }

    /// Reads the clock of the server, as the time since the Unix epoch.
    async fn clock(&self) -> Answer<Duration> {
        let (seconds, micros): (u64, u32) = self.send(&[b"TIME"]).await?;
        Ok(Duration::new(seconds, micros.saturating_mul(1_000)))
    }

    /// Measures the clock of the server against the wall clock of this machine. Of seven replies, the fastest counts: half
    /// of its round trip is the uncertainty.
    pub(super) async fn offset(&self) -> Answer<Offset> {
        let mut best: Option<Offset> = None;
        for _ in 0..7 {
            let (sent, ours) = (Clock::Boot.now(), wall_clock());
            let theirs = self.clock().await?;
            let half = Clock::Boot.now().saturating_sub(sent) / 2;
            let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            let millis = millis(theirs).saturating_sub(millis(ours.saturating_add(half)));
            // Both times are truncated to a millisecond.
            let offset = Offset { millis, uncertain: half.saturating_add(Duration::from_millis(1)) };
            if best.is_none_or(|best| offset.uncertain < best.uncertain) {
                best = Some(offset);
            }
        }
        best.ok_or_else(|| Refusal::Other("no measurement".into()))
    }

    /// Reads the keys with the prefix, and collects what `judge` returns for the rest of each name and its text. A value of
    /// another type has no text. Ends after so many keys, or after [`SCAN_TIME`].
    pub(super) async fn scan<T>(&self, limit: usize, judge: fn(&str, Option<&[u8]>) -> Option<T>) -> Answer<Scan<T>> {
        let until = Clock::Boot.now().saturating_add(SCAN_TIME);
        let mut scan = Scan { count: 0, found: Vec::new(), has_more: false };
        // The server can return a name twice.
        let mut seen = HashSet::new();
        let mut cursor = 0;
        loop {
            let (next, names) = self.scan_step(cursor).await?;
            let names = names.into_iter().filter(|name| seen.insert(name.clone())).collect();
            for (name, text) in self.texts(names).await? {
                if scan.count >= limit {
                    return Ok(Scan { has_more: true, ..scan });
                }
                scan.count = scan.count.saturating_add(1);
                let name = String::from_utf8_lossy(&name);
                let rest = name.get(self.prefix.len().saturating_add(1)..).unwrap_or_default();
                scan.found.extend(judge(rest, text.as_deref()));
            }
            cursor = next;
            if cursor == 0 {
                return Ok(scan);
            }
            if Clock::Boot.now() >= until {
                return Ok(Scan { has_more: true, ..scan });
            }
        }
    }

    /// Returns whether there is a key with the prefix.
    pub(super) async fn has_keys(&self) -> Answer<bool> {
        let mut cursor = 0;
        loop {
            let (next, names) = self.scan_step(cursor).await?;
            if !names.is_empty() || next == 0 {
                return Ok(!names.is_empty());
            }
            cursor = next;
        }
    }

    /// Deletes all keys with the prefix.
    pub(super) async fn delete_keys(&self) -> Answer<()> {
        let mut cursor = 0;
        loop {
            let (next, names) = self.scan_step(cursor).await?;
            if !names.is_empty() {
                let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(names.iter().map(Vec::as_slice)).collect();
                self.send::<Value>(&words).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Reads the next names with the prefix, and the cursor behind them.
    async fn scan_step(&self, cursor: u64) -> Answer<(u64, Vec<Vec<u8>>)> {
        let (cursor, pattern) = (cursor.to_string(), format!("{}:*", escape(&self.prefix)));
        let count = SCAN_COUNT.to_string();
        let words = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", &count].map(str::as_bytes);
        self.send(&words).await
    }

    /// Reads the texts of keys. A key that was deleted meanwhile is left out.
    async fn texts(&self, names: Vec<Vec<u8>>) -> Answer<Vec<(Vec<u8>, Option<Vec<u8>>)>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(names.iter().map(Vec::as_slice)).collect();
        let texts: Vec<Option<Vec<u8>>> = self.send(&words).await?;
        let mut found = Vec::new();
        for (name, text) in names.into_iter().zip(texts) {
            let is_other = match text {
                Some(_) => false,
                None => self.send::<Value>(&[b"GET", &name]).await.is_err_and(|refusal| refusal.is("WRONGTYPE")),
            };
            if text.is_some() || is_other {
                found.push((name, text));
            }
        }
        Ok(found)
    }
}

/// What a server reports about itself.
#[derive(Debug)]
pub(super) struct Info(InfoDict);

impl FromRedisValue for Info {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        InfoDict::from_redis_value(value).map(Self)
    }
}

impl Info {
    #[cfg(test)]
    pub(super) fn of(text: &str) -> Self {
        Self(InfoDict::new(text))
    }

    pub(super) fn text(&self, field: &str) -> Option<String> {
        self.0.get(field)
    }

    pub(super) fn is(&self, field: &str, value: &str) -> bool {
        self.text(field).is_some_and(|found| found == value)
    }

    pub(super) fn number(&self, field: &str) -> Option<u32> {
        self.text(field)?.parse().ok()
    }
}

async fn open(client: &Client, within: Duration) -> Answer<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(within)).set_response_timeout(None);
    let client = client.clone();
    with_timeout(within, async move { client.get_multiplexed_async_connection_with_config(&config).await }).await
}

/// Waits for a reply, at most for `within`. A task of the driver owns the connection, so the future can be dropped.
async fn with_timeout<T>(within: Duration, reply: impl Future<Output = Result<T, RedisError>>) -> Answer<T> {
    match tokio::time::timeout(within, reply).await {
        Ok(reply) => Ok(reply?),
        Err(_elapsed) => Err(Refusal::Other(format!("no answer within {}", time::format(within)))),
    }
}

/// The wall clock of this machine, as the time since the Unix epoch. It decides nothing.
fn wall_clock() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Realtime)).unwrap_or_default()
}

/// A text as part of a pattern that means the text itself.
fn escape(text: &str) -> String {
    let escaped =
        text.chars().flat_map(|letter| r"\*?[]^-".contains(letter).then_some('\\').into_iter().chain([letter]));
    escaped.collect()
}

//! `mongoseal watch`.

mod listing;
mod screen;

use std::{io, time::Duration};

use listing::Listing;
use mongoseal::{Event, EventKind, EventStream, Key, Mongoseal, Result};
use screen::Screen;
use serde::Serialize;
use serde_json::Value;

use crate::{
    arguments::Watch,
    connection::Connection,
    escape,
    exit_status::{Failure, Status},
    output,
    signals::Signals,
    time,
};

/// The interval at which leases are listed for many keys, the screen is redrawn, and a closed pipe is noticed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn perform(connection: &Connection, options: Watch) -> Result<Status, Failure> {
    // Registered first, so that no signal is missed.
    let mut signals = Signals::terminating()?;
    let Ok(seal) = signals.unless(connection.open()).await else { return Ok(Status::DONE) };
    let seal = seal?;
    let ended = signals.unless(watch(&seal, &options)).await.unwrap_or(Ok(Status::DONE));
    seal.shutdown().await;
    ended
}

/// An event and its key.
pub(super) struct KeyEvent {
    pub(super) key: Key,
    pub(super) event: WatchEvent,
}

/// An event, from the library's watch or from the difference between two lists.
pub(super) struct WatchEvent {
    pub(super) token: mongoseal::FencingToken,
    pub(super) owner: mongoseal::Owner,
    pub(super) at: mongoseal::StoreTime,
    pub(super) change: Change,
}

pub(super) enum Change {
    Holds { remaining: Option<Duration> },
    Granted { remaining: Option<Duration> },
    Released,
    Expired,
    Revoked { by: String, reason: String },
    Transferred { to: mongoseal::FencingToken },
    Removed,
    Other,
}

impl From<Event> for WatchEvent {
    fn from(event: Event) -> Self {
        let change = match event.kind {
            EventKind::Holds { holding } => Change::Holds { remaining: holding.remaining },
            EventKind::Granted { holding } => Change::Granted { remaining: holding.remaining },
            EventKind::Released => Change::Released,
            EventKind::Expired => Change::Expired,
            EventKind::Revoked { by, reason } => Change::Revoked { by, reason },
            EventKind::Transferred { to } => Change::Transferred { to: to.token },
            EventKind::Removed => Change::Removed,
            _ => Change::Other,
        };
        Self { token: event.token, owner: event.owner, at: event.at, change }
    }
}

impl Change {
    fn name(&self) -> &'static str {
        match self {
            Self::Holds { .. } => "holds",
            Self::Granted { .. } => "granted",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked { .. } => "revoked",
            Self::Transferred { .. } => "transferred",
            Self::Removed => "removed",
            Self::Other => "changed",
        }
    }

    fn details(&self) -> String {
        match self {
            Self::Holds { remaining } | Self::Granted { remaining } => {
                format!("  remaining {}", time::remaining(*remaining))
            }
            Self::Revoked { by, reason } => format!("  by {by}: {reason}"),
            Self::Transferred { to } => format!("  to token {to}"),
            Self::Released | Self::Expired | Self::Removed | Self::Other => String::new(),
        }
    }
}

impl KeyEvent {
    /// Formats the event as a line: time, event, key, token, owner, details.
    pub(super) fn line(&self) -> String {
        let WatchEvent { token, owner, at, change } = &self.event;
        let (at, name, details) = (time::of_store(*at), change.name(), change.details());
        escape::visible(&format!("{at}  {name:<11}  {}  {token}  {owner}{details}", self.key))
    }

    fn print_json(&self) -> io::Result<()> {
        let WatchEvent { token, owner, at, change } = &self.event;
        let mut view = EventView {
            at: time::of_store(*at),
            event: change.name(),
            key: self.key.as_str(),
            token: token.get(),
            owner: owner.as_str(),
            remaining_ms: None,
            by: None,
            reason: None,
            to: None,
        };
        match change {
            Change::Holds { remaining } | Change::Granted { remaining } => {
                view.remaining_ms = Some(remaining.map(time::millis).into());
            }
            Change::Revoked { by, reason } => (view.by, view.reason) = (Some(by.as_str()), Some(reason.as_str())),
            Change::Transferred { to } => view.to = Some(to.get()),
            Change::Released | Change::Expired | Change::Removed | Change::Other => {}
        }
        output::json(&view)
    }
}

#[derive(Serialize)]
struct EventView<'a> {
    at: String,
    event: &'static str,
    key: &'a str,
    token: u64,
    owner: &'a str,
    /// Only of a holder; `null` if its lease has no expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u64>,
}

/// The source of the events.
enum Source {
    /// The library's watch of one key.
    Key(Key, EventStream),
    /// The comparison of lists.
    Many(Listing),
}

impl Source {
    async fn open(seal: &Mongoseal, options: &Watch) -> Result<Self> {
        Ok(match &options.key {
            Some(key) if !options.prefix => {
                let key: Key = key.parse()?;
                Self::Key(key.clone(), seal.watch(&key).await?)
            }
            prefix => Self::Many(Listing::new(seal, prefix.as_deref().unwrap_or_default())),
        })
    }

    /// Returns the next events, or none after the poll interval.
    async fn next(&mut self) -> Result<Vec<KeyEvent>> {
        match self {
            Self::Key(key, events) => {
                let Ok(event) = tokio::time::timeout(POLL_INTERVAL, events.next()).await else { return Ok(Vec::new()) };
                let event = event.transpose()?;
                Ok(event.map(|event| KeyEvent { key: key.clone(), event: event.into() }).into_iter().collect())
            }
            Self::Many(listing) => listing.next().await,
        }
    }
}

async fn watch(seal: &Mongoseal, options: &Watch) -> Result<Status, Failure> {
    let mut source = Source::open(seal, options).await?;
    let mut screen = if options.json || options.plain { None } else { Screen::open()? };
    let mut table = Listing::new(seal, options.key.as_deref().unwrap_or_default());
    if !options.prefix {
        table = table.only(options.key.as_deref())?;
    }
    loop {
        let events = source.next().await?;
        if let Some(screen) = &mut screen {
            screen.add(&events);
            screen.draw(table.leases().await)?;
            continue;
        }
        for event in &events {
            if options.json { event.print_json()? } else { output::line(&event.line())? }
        }
        if output::is_closed() {
            return Ok(Status::DONE);
        }
    }
}

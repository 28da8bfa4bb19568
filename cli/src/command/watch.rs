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

/// How often leases are listed, where many keys are watched or somebody looks.
const OFTEN: Duration = Duration::from_secs(1);

pub(crate) async fn perform(connection: &Connection, options: Watch) -> Result<Status, Failure> {
    // From here on, so that none is missed.
    let mut signals = Signals::that_end()?;
    let Ok(seal) = signals.unless(connection.open()).await else { return Ok(Status::DONE) };
    let seal = seal?;
    let ended = signals.unless(watch(&seal, &options)).await.unwrap_or(Ok(Status::DONE));
    seal.shutdown().await;
    ended
}

/// Something that happened, and to which key.
pub(super) struct Happened {
    pub(super) key: Key,
    pub(super) event: Seen,
}

/// What is known of an event: all of it, or what two lists show.
pub(super) struct Seen {
    pub(super) token: mongoseal::FencingToken,
    pub(super) owner: mongoseal::Owner,
    pub(super) at: mongoseal::StoreTime,
    pub(super) what: What,
}

pub(super) enum What {
    Holds { remaining: Option<Duration> },
    Granted { remaining: Option<Duration> },
    Released,
    Expired,
    Revoked { by: String, reason: String },
    Transferred { to: mongoseal::FencingToken },
    Removed,
    Other,
}

impl From<Event> for Seen {
    fn from(event: Event) -> Self {
        let what = match event.kind {
            EventKind::Holds { holding } => What::Holds { remaining: holding.remaining },
            EventKind::Granted { holding } => What::Granted { remaining: holding.remaining },
            EventKind::Released => What::Released,
            EventKind::Expired => What::Expired,
            EventKind::Revoked { by, reason } => What::Revoked { by, reason },
            EventKind::Transferred { to } => What::Transferred { to: to.token },
            EventKind::Removed => What::Removed,
            _ => What::Other,
        };
        Self { token: event.token, owner: event.owner, at: event.at, what }
    }
}

impl What {
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
                format!("  left {}", time::left(*remaining))
            }
            Self::Revoked { by, reason } => format!("  by {by}: {reason}"),
            Self::Transferred { to } => format!("  to token {to}"),
            Self::Released | Self::Expired | Self::Removed | Self::Other => String::new(),
        }
    }
}

impl Happened {
    /// One line: when, what, to which key, with which token, to whom.
    pub(super) fn line(&self) -> String {
        let Seen { token, owner, at, what } = &self.event;
        let (at, name, details) = (time::of_store(*at), what.name(), what.details());
        escape::visible(&format!("{at}  {name:<11}  {}  {token}  {owner}{details}", self.key))
    }

    fn json(&self) -> io::Result<()> {
        let Seen { token, owner, at, what } = &self.event;
        let mut view = HappenedView {
            at: time::of_store(*at),
            event: what.name(),
            key: self.key.as_str(),
            token: token.get(),
            owner: owner.as_str(),
            remaining_ms: None,
            by: None,
            reason: None,
            to: None,
        };
        match what {
            What::Holds { remaining } | What::Granted { remaining } => {
                view.remaining_ms = Some(remaining.map(time::millis).into());
            }
            What::Revoked { by, reason } => (view.by, view.reason) = (Some(by.as_str()), Some(reason.as_str())),
            What::Transferred { to } => view.to = Some(to.get()),
            What::Released | What::Expired | What::Removed | What::Other => {}
        }
        output::json(&view)
    }
}

#[derive(Serialize)]
struct HappenedView<'a> {
    at: String,
    event: &'static str,
    key: &'a str,
    token: u64,
    owner: &'a str,
    /// Of who holds the key; `null` is for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u64>,
}

/// From where events come.
enum Source {
    /// The library tells each.
    Key(Key, EventStream),
    /// Two lists are compared.
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

    /// What happens next. Nothing, when it is time to look at the output again.
    async fn next(&mut self) -> Result<Vec<Happened>> {
        match self {
            Self::Key(key, events) => {
                let Ok(event) = tokio::time::timeout(OFTEN, events.next()).await else { return Ok(Vec::new()) };
                let event = event.transpose()?;
                Ok(event.map(|event| Happened { key: key.clone(), event: event.into() }).into_iter().collect())
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
        let happened = source.next().await?;
        if let Some(screen) = &mut screen {
            screen.note(&happened);
            screen.draw(seal, table.leases().await).await?;
            continue;
        }
        for happened in &happened {
            if options.json { happened.json()? } else { output::line(&happened.line())? }
        }
        if output::is_closed() {
            return Ok(Status::DONE);
        }
    }
}

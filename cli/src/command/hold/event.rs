//! The events that `mongoseal hold` prints.

use std::fmt;

use mongoseal::{FencingToken, Lease, LossCause};
use serde::Serialize;
use serde_json::Value;

use crate::{exit_status::Failure, ui::escape, ui::json::Until, ui::output};

/// An event. `docs/languages.md` describes each member.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    /// The program waits. The next in line has position 1. `null`: the position is unknown.
    Waiting {
        position: Option<usize>,
    },
    Granted {
        key: String,
        owner: String,
        token: u64,
        #[serde(flatten)]
        until: Until,
    },
    /// Refreshes are not confirmed.
    AtRisk {
        #[serde(flatten)]
        until: Until,
    },
    /// A refresh was confirmed after `AtRisk`.
    Held {
        #[serde(flatten)]
        until: Until,
    },
    Lost {
        token: u64,
        cause: &'static str,
        message: String,
    },
    /// The answer to `verify`.
    Verified {
        id: Value,
        #[serde(flatten)]
        until: Until,
    },
    /// The answer to `refresh`.
    Refreshed {
        id: Value,
        #[serde(flatten)]
        until: Until,
    },
    /// The lease was released, or the wait ended. `id`: that of the request.
    Released {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<Value>,
        confirmed: bool,
    },
    /// A request was refused, or if there is no `id`, the program ends.
    Error {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<Value>,
        code: &'static str,
        message: String,
    },
}

impl Event {
    pub(super) fn granted(lease: &Lease) -> Self {
        let (key, owner) = (lease.key().to_string(), lease.owner().to_string());
        Self::Granted { key, owner, token: lease.token().get(), until: Until::of(lease) }
    }

    pub(super) fn lost(token: FencingToken, cause: &LossCause) -> Self {
        Self::Lost { token: token.get(), cause: cause.kind(), message: cause.to_string() }
    }

    /// The answer to the request with this id, or the last event of a program that ends with this failure.
    pub(super) fn failed(id: Option<Value>, failure: &Failure) -> Self {
        Self::Error { id, code: failure.code(), message: failure.message().to_owned() }
    }

    /// Whether the next such event replaces this one, if the reader has not read it.
    pub(super) fn is_state(&self) -> bool {
        matches!(self, Self::Waiting { .. } | Self::AtRisk { .. } | Self::Held { .. })
    }

    /// The line that is printed.
    pub(super) fn line(&self, is_json: bool) -> String {
        if is_json { output::json_line(self) } else { escape::visible(&self.to_string()) }
    }
}

/// The line for people.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { position: Some(position) } => write!(f, "waiting    position {position}"),
            Self::Waiting { position: None } => write!(f, "waiting"),
            Self::Granted { key, token, until, .. } => {
                write!(f, "granted    {key} with token {token}, remaining {until}")
            }
            Self::AtRisk { until } => write!(f, "at risk    refreshes are not confirmed, remaining {until}"),
            Self::Held { until } => write!(f, "held       refreshes are confirmed again, remaining {until}"),
            Self::Lost { message, .. } => write!(f, "lost       {message}"),
            Self::Verified { id, until } => write!(f, "verified   request {id}, remaining {until}"),
            Self::Refreshed { id, until } => write!(f, "refreshed  request {id}, remaining {until}"),
            Self::Released { confirmed: true, .. } => write!(f, "released"),
            Self::Released { confirmed: false, .. } => write!(f, "released   not confirmed"),
            Self::Error { id: Some(id), message, .. } => write!(f, "error      request {id}: {message}"),
            Self::Error { id: None, message, .. } => write!(f, "error      {message}"),
        }
    }
}

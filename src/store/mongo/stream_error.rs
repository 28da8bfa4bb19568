//! Why a change stream has ended, and the error that its listeners get.
//!
//! Purpose: all listeners of a shared stream get the same reason, each as an error of its own.

use mongodb::error::Error as DriverError;

use super::error::{self, needs};
use crate::types::error::Error;

/// Codes with which a server says that a stream cannot go on behind a position, now or later: the position was overwritten
/// in the oplog (136), is none of this server (260), or is before the history (286), or the stream is broken (280). And
/// that the next event is larger than a document may be (10334): each stream behind the same position meets it again.
const LOST_HISTORY_CODES: [i32; 5] = [136, 260, 280, 286, 10334];

/// The label with which older servers say so.
const NOT_RESUMABLE: &str = "NonResumableChangeStreamError";

/// Why a stream has ended.
#[derive(Clone, Debug)]
pub(super) enum StreamEnd {
    NotOpened(DriverError),
    /// The client has this many streams open, and may not have more.
    TooMany(usize),
    Failed(DriverError),
    /// The server has ended it because the collection was dropped, which was reported.
    Dropped,
    /// The server has not moved its position for too long, or the task that reads it ended early.
    Silent,
    /// The server has ended it.
    Closed,
    /// The listener was slower than the stream.
    LeftBehind,
}

impl StreamEnd {
    /// Whether no stream can go on where this one was.
    pub(super) fn is_definite(&self) -> bool {
        match self {
            Self::NotOpened(error) | Self::Failed(error) => has_lost_history(error),
            Self::TooMany(_) | Self::Closed | Self::LeftBehind => true,
            Self::Dropped | Self::Silent => false,
        }
    }

    /// The error that a listener gets, for a stream of this collection.
    pub(super) fn into_error(self, database: &str, collection: &str) -> Error {
        match self {
            Self::NotOpened(error) | Self::Failed(error) if has_lost_history(&error) => Error::unavailable(
                "the server no longer has the history behind the change stream's position: the records are read again",
            )
            .caused_by(error::source(error)),
            Self::NotOpened(error) => error::translate(error, database, collection, needs::WATCH),
            Self::TooMany(limit) => Error::invalid(format!(
                "all {limit} change streams of this client are in use: keep the siblings in one collection, where they share a stream, or raise `maxPoolSize` in the connection string"
            )),
            Self::Failed(error) => {
                Error::unavailable("the change stream ended: it is opened again").caused_by(error::source(error))
            }
            Self::Dropped | Self::Closed => closed(),
            Self::Silent => {
                Error::unavailable("the task that reads the change stream ended early: the stream is opened again")
            }
            Self::LeftBehind => {
                Error::unavailable("a watch is slower than the changes of its record: the record is read again")
            }
        }
    }
}

fn has_lost_history(error: &DriverError) -> bool {
    error.contains_label(NOT_RESUMABLE) || error::code(error).is_some_and(|code| LOST_HISTORY_CODES.contains(&code))
}

pub(super) fn closed() -> Error {
    Error::unavailable("the change stream ended, as after a drop of its collection: it is opened again")
}

//! Why a change stream has ended, and the error that its listeners get.
//!
//! Purpose: all listeners of a shared stream get the same reason, each as an error of its own.

use mongodb::error::Error as DriverError;

use super::error::{self, needs};
use crate::Error;

/// Why a stream has ended.
#[derive(Clone, Debug)]
pub(super) enum StreamEnd {
    NotOpened(DriverError),
    /// The client has this many streams open, and may not have more.
    TooMany(usize),
    Failed(DriverError),
    /// The server has ended it.
    Closed,
}

impl StreamEnd {
    /// The error that a listener gets, for a stream of this collection.
    pub(super) fn into_error(self, database: &str, collection: &str) -> Error {
        match self {
            Self::NotOpened(error) => error::translate(error, database, collection, needs::WATCH),
            Self::TooMany(limit) => Error::invalid(format!(
                "all {limit} change streams of this client are in use: keep the siblings in one collection, where they share a stream, or raise `maxPoolSize` in the connection string"
            )),
            Self::Failed(error) => error::stream_failed(error),
            Self::Closed => closed(),
        }
    }
}

pub(super) fn closed() -> Error {
    Error::unavailable("the change stream ended, as after a drop of its collection: it is opened again")
}

pub(super) fn ended_early() -> Error {
    Error::unavailable("the task that reads the change stream ended early: the stream is opened again")
}

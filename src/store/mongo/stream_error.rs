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
    /// As many streams are open as may be.
    TooMany(usize),
    Failed(DriverError),
    /// The server has ended it.
    Closed,
}

impl StreamEnd {
    /// The error that a listener gets, for a stream of this collection.
    pub(super) fn into_error(self, database: &str, collection: &str) -> Error {
        match self {
            Self::NotOpened(error) => error::meaning(error, database, collection, needs::WATCH),
            Self::TooMany(most) => Error::invalid(format!(
                "all {most} change streams of this client are in use: keep the siblings in one collection, where they share a stream, or raise `maxPoolSize` in the connection string"
            )),
            Self::Failed(error) => error::watch_ended(error),
            Self::Closed => closed(),
        }
    }
}

pub(super) fn closed() -> Error {
    Error::unavailable("the change stream ended, as it does when its collection is dropped: it is opened again")
}

pub(super) fn ended_early() -> Error {
    Error::unavailable("the task that reads the change stream was ended early: it is opened again")
}

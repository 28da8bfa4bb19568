//! Why a change stream has ended, and what is said of that.

use mongodb::error::Error as DriverError;

use super::{
    Inner,
    fault::{self, needs},
};
use crate::Error;

/// Why a stream has ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    NotOpened(DriverError),
    /// As many streams are open as may be.
    TooMany(usize),
    Failed(DriverError),
    /// The server has ended it.
    Closed,
}

impl End {
    /// What is said to those who listened.
    pub(super) fn meaning(self, store: &Inner) -> Error {
        match self {
            Self::NotOpened(error) => store.meaning(error, needs::WATCH),
            Self::TooMany(most) => Error::invalid(format!(
                "all {most} change streams of this client are in use: keep the siblings in one collection, where they share a stream, or raise `maxPoolSize` in the connection string"
            )),
            Self::Failed(error) => fault::watch_ended(error),
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

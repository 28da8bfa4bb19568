//! What the program ends with.

use std::{error::Error as _, fmt, io, process::ExitCode};

use anstream::eprintln;
use mongoseal::Error;

/// The statuses of its own. Those of a command that was run are passed on, a signal as 128 and its number;
/// so these are chosen, as those of env(1) and timeout(1), where commands seldom end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u8);

impl Status {
    pub(crate) const DONE: Self = Self(0);
    /// The answer is no: not the newest token, no such record, a check that failed.
    pub(crate) const NO: Self = Self(1);
    /// Somebody else holds the key.
    pub(crate) const HELD: Self = Self(121);
    /// The lease was lost.
    pub(crate) const LOST: Self = Self(122);
    /// MongoDB did not answer; what was asked may have been done.
    pub(crate) const UNAVAILABLE: Self = Self(123);
    /// Wrong arguments, or a deployment that must be changed.
    pub(crate) const INVALID: Self = Self(125);
    /// The command could not be started.
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    /// There is no such command.
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// That of a command which was run.
    pub(crate) const fn of_command(code: u8) -> Self {
        Self(code)
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.0)
    }
}

/// Why something was not done: one sentence, and the status that says it to a script.
#[derive(Debug)]
pub(crate) struct Failure {
    sentence: String,
    status: Status,
}

impl Failure {
    pub(crate) fn new(status: Status, sentence: impl fmt::Display) -> Self {
        Self { sentence: sentence.to_string(), status }
    }

    pub(crate) fn invalid(sentence: impl fmt::Display) -> Self {
        Self::new(Status::INVALID, sentence)
    }

    /// What the system refused this program.
    pub(crate) fn internal(error: io::Error) -> Self {
        Self::new(Status::INVALID, error)
    }

    /// Says it on the standard error.
    pub(crate) fn report(self) -> Status {
        if !self.sentence.is_empty() {
            eprintln!("mongoseal: {}", self.sentence);
        }
        self.status
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Held { .. } | Error::QueueFull { .. } => Status::HELD,
            Error::Lost { .. } => Status::LOST,
            Error::Unavailable { .. } => Status::UNAVAILABLE,
            _ => Status::INVALID,
        };
        let mut sentence = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            sentence = format!("{sentence}: {cause}");
            source = cause.source();
        }
        Self { sentence, status }
    }
}

/// Whoever read the output has gone, as `head` does: that is no failure, and nothing is left to say.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self { sentence: String::new(), status: Status::DONE }
        } else {
            Self::internal(error)
        }
    }
}

//! What the program ends with.

use std::{error::Error as _, fmt, io, process::ExitCode};

use mongoseal::Error;

use crate::say;

/// The statuses of its own. Those of a command that was run are passed on, a signal as 128 and its number;
/// so these are chosen, as those of env(1) and timeout(1), where commands seldom end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u8);

impl Status {
    pub(crate) const DONE: Self = Self(0);
    /// The answer is no: not the newest token, no such record, documents ahead of the clock, a check that failed.
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

    /// What each means, for the manual.
    pub(crate) const MEANINGS: [(&str, &str); 8] = [
        ("0", "It was done; the answer is yes."),
        (
            "1",
            "The answer is no: not the newest token, no such record, no holder to revoke, documents ahead of the clock, a check that failed.",
        ),
        ("121", "Somebody else holds the key."),
        ("122", "The lease was lost, and the command was ended."),
        ("123", "MongoDB did not answer in time; what was asked may have been done."),
        ("125", "The arguments, or the deployment, must be changed."),
        ("126", "The command could not be started."),
        ("127", "There is no such command."),
    ];

    /// That of a command which was run.
    pub(crate) const fn of_command(code: u8) -> Self {
        Self(code)
    }

    /// That of what a signal ended.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(signal).unwrap_or_default().saturating_add(128))
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

    /// Told to end by this signal: nobody needs to be told why.
    pub(crate) fn by_signal(signal: i32) -> Self {
        Self::new(Status::of_signal(signal), "")
    }

    /// What the system refused this program.
    pub(crate) fn internal(error: io::Error) -> Self {
        Self::new(Status::INVALID, error)
    }

    /// The sentence.
    pub(crate) fn sentence(&self) -> &str {
        &self.sentence
    }

    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// Says it on the standard error.
    pub(crate) fn report(self) -> Status {
        if !self.sentence.is_empty() {
            say(&self.sentence);
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
            if let Some(words) = in_words(&cause.to_string()) {
                sentence = format!("{sentence}: {words}");
            }
            source = cause.source();
        }
        Self { sentence, status }
    }
}

/// What a driver says without what it dumps behind it. Nothing, where it only lists the servers that could not be
/// reached: the library names them, and says why.
fn in_words(cause: &str) -> Option<&str> {
    let words = cause.strip_prefix("Kind: ").unwrap_or(cause);
    let words = words.split(", labels: {").next().unwrap_or(words);
    (!words.starts_with("Server selection timeout")).then_some(words)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_driver_its_words_are_kept_and_not_its_dump() {
        assert_eq!(in_words("Unauthorized (code 13): no"), Some("Unauthorized (code 13): no"));
        assert_eq!(in_words("Kind: I/O error: refused, labels: {\"a\"}, source: None"), Some("I/O error: refused"));
        assert_eq!(in_words("Kind: Server selection timeout: No available servers. Topology: {"), None);
    }
}

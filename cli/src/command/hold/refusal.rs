//! Why a request was refused.

use mongoseal::Error;
use serde::Serialize;

use crate::exit_status::Failure;

/// Words of the library's messages, and the same with the member of a request or the option of the program.
const MEMBERS: [(&str, &str); 8] = [
    ("`min_hold`", "`min_hold_ms`"),
    ("`max_hold`", "`max_hold_ms`"),
    ("`shared_up_to`", "`shared`"),
    ("`operation_timeout`", "--timeout"),
    ("`retention`", "--retention"),
    ("set `allow_sharded` (--allow-sharded)", "pass --allow-sharded"),
    ("acquire the key without `shared`, or `upgrade` the lease", "acquire the key without `shared`"),
    (", or raise `queue_limit`", ""),
];

/// Why a request was refused.
#[derive(Debug, Serialize)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn busy() -> Self {
        Self::new("busy", "the lease has 16 unanswered requests: wait for an answer")
    }

    pub(super) fn unknown_lease() -> Self {
        Self::new("unknown_lease", "there is no such lease: it is over, or was never requested")
    }

    pub(super) fn unknown_observation() -> Self {
        Self::new("unknown_lease", "there is no such observation: it is over, or was never requested")
    }

    pub(super) fn not_granted() -> Self {
        Self::new("not_granted", "the lease is not granted yet: wait for the event granted")
    }

    pub(super) fn lost() -> Self {
        Self::new("lost", "the lease is lost: see the event lost")
    }

    /// Returns why a request failed that has ended its lease. A client goes on after `invalid`, so it has another code.
    pub(super) fn of_ended(error: &Error) -> Self {
        match Self::from(error) {
            Self { code: "invalid", message } => Self::new("failed", message),
            other => other,
        }
    }
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        let failure = Failure::of(error, &MEMBERS);
        Self::new(failure.code(), failure.message())
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Failure> for Refusal {
    fn from(failure: &Failure) -> Self {
        Self::new(failure.code(), failure.message())
    }
}

//! The error of this crate. Each variant is one thing that a caller can do about it.

use std::{convert::Infallible, fmt, time::Duration};

use crate::types::{duration::format_duration, key::Key, owner::Owner, parse_error::ParseError, token::FencingToken};

/// Why a call failed. Each variant is one thing that a caller can do about it.
///
/// | when I get… | I… |
/// |---|---|
/// | [`Held`](Self::Held) | retry later, or queue with `wait`; if it lasts, [find the holder](crate::guide::runbook#find-the-holder) |
/// | [`QueueFull`](Self::QueueFull) | shed load, or raise `queue_limit`; `mongoseal show` prints the waiters |
/// | [`RetriesExhausted`](Self::RetriesExhausted) | give up, or allow more attempts |
/// | [`Lost`](Self::Lost) | stop acting on the key at once; acquire again if still needed, and look at the [cause](LossCause) |
/// | [`Ended`](Self::Ended) | stop acting on the key. If the process is not about to end, find the call that ended the lease |
/// | [`Fenced`](Self::Fenced) | stop, and undo nothing: the later holder's writes stand. If all writers get it: [after a restore](crate::guide::runbook#after-a-restore) |
/// | [`Unavailable`](Self::Unavailable) | retry; before a fenced write or a transaction, read whether it was applied. The source has each server's cause; run `mongoseal doctor` |
/// | [`Invalid`](Self::Invalid) | do what the message says; the [privileges](crate::guide::privileges) are by task |
/// | [`Corrupt`](Self::Corrupt) | find the program that wrote it; move the document, or choose another key or collection |
///
/// A retry of the same call can succeed after `Unavailable`, and after `Held`, `QueueFull` and `RetriesExhausted` with a
/// pause. After the others it fails again: a loop that retries them never ends.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another lease holds the key, and held it until the end of the wait, if there was one. Nothing stays queued.
    ///
    /// The fields about the holder are a hint, for people and for the time of a retry: they were true at the store a
    /// moment ago.
    #[error("{key:?} is {} by {owner:?} with token {token}{}", if *is_released { "kept" } else { "held" }, lasting(*free_in, *is_released))]
    Held {
        /// The key of the acquire.
        key: Key,
        /// The owner of the holder.
        owner: Owner,
        /// The holder's token.
        token: FencingToken,
        /// How long until the key is free if the holder does not refresh, by the store's clock. [`Duration::MAX`]: without
        /// expiry.
        free_in: Duration,
        /// Whether the lease was released already. Its [minimum hold](crate::action::Acquire::min_hold) keeps the key unavailable
        /// for the time that remains.
        is_released: bool,
    },

    /// The key is held, and its queue is full, by default with 1,000 waiters, so nothing was written.
    #[error("{length} waiters are queued for {key:?} already: retry later, or raise `queue_limit`")]
    QueueFull {
        /// The key of the acquire.
        key: Key,
        /// How many wait for it.
        length: usize,
    },

    /// The key was held at each attempt that a [`Retry`](crate::Retry) allowed.
    #[error(
        "{key:?} was held at each of {attempts} attempts in {}: allow the retry policy more attempts or time, or queue with `wait`",
        format_duration(*elapsed)
    )]
    RetriesExhausted {
        /// The key of the acquire.
        key: Key,
        /// How many attempts were made.
        attempts: u32,
        /// How long they took, from the start of the first.
        elapsed: Duration,
        /// The error of the last attempt: always [`Held`](Self::Held).
        #[source]
        held: Box<Error>,
    },

    /// The lease ended although its holder did not end it. It never comes back.
    #[error("the lease on {key:?} with token {token} is lost, because {cause}: stop acting on the key")]
    Lost {
        /// The key that was held.
        key: Key,
        /// The token, which is older than that of the next holder.
        token: FencingToken,
        /// What ended the lease.
        cause: LossCause,
    },

    /// The holder ended the lease, and then used it. Work that runs under it, or another call on it, got this error.
    #[error("the lease on {key:?} with token {token} has ended, because {reason}: stop acting on the key")]
    Ended {
        /// The key that was held.
        key: Key,
        /// The token of the lease.
        token: FencingToken,
        /// How the holder ended it.
        reason: EndReason,
    },

    /// A later holder of the key has claimed or written there, so the storage refused this write and changed nothing.
    /// The earlier holder may not know yet that its lease has ended: it was paused, or cut off.
    #[error(
        "the write was refused, because the storage has seen the newer token {newer}: stop acting on the key, and acquire it again if it is still needed"
    )]
    Fenced {
        /// The token that the storage has.
        newer: FencingToken,
    },

    /// The store could not be reached or did not confirm in time, so the request may have been applied or not. Each
    /// request of a lease can be resent; a fenced write could write twice.
    #[error("{message}")]
    Unavailable {
        /// What failed and what to do.
        message: String,
        /// The error of the store or its driver.
        #[source]
        source: Option<Source>,
    },

    /// The request, the deployment or a privilege is wrong, and a retry returns the same error. If the record of a key has a
    /// newer format, this build must be upgraded.
    #[error("{message}")]
    Invalid {
        /// What is wrong and what to do.
        message: String,
        /// The error of the store or its driver.
        source: Option<Source>,
    },

    /// The document under this key is not a lease record, and was left as it was.
    #[error(
        "the record of {key:?} is not a lease record ({message}): move it to another collection, or choose another key or collection"
    )]
    Corrupt {
        /// The key whose record it is.
        key: Key,
        /// What is wrong with it.
        message: String,
    },
}

/// The cause of an [`Error`].
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What ended a lease that its holder did not end.
///
/// | when the cause is… | I… |
/// |---|---|
/// | [`Expired`](Self::Expired) | look in the log for an earlier `the lease is at risk`. With it: check set and network, or set a longer ttl. Without it, the process or its machine stood still, or the runtime of a client of yours was blocked: use `Mongoseal::connect` |
/// | [`TakenOver`](Self::TakenOver) | do as for `Expired` if the holder stood still or was cut off. Otherwise a server's clock is ahead: `mongoseal doctor`, check `clocks` |
/// | [`Revoked`](Self::Revoked) | read the name and the reason; `mongoseal show KEY` lists the last 8 revocations |
/// | [`Removed`](Self::Removed) | find the person, clean-up job or restore that did it. Tokens still grow |
/// | [`HeldTooLong`](Self::HeldTooLong) | find why the work took so long, or raise `max_hold` |
/// | [`Stalled`](Self::Stalled) | find where the work hangs; the key is free after the ttl and the grace |
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// The store did not confirm a refresh before the deadline, or the lease was not refreshed.
    Expired,
    /// The store granted the key to another lease, or an operator [raised](crate::Mongoseal::raise_token_floor) its version.
    TakenOver {
        /// The largest token that was issued since, or the version that was raised.
        token: FencingToken,
    },
    /// An operator revoked it, or a call released the whole group of the lease.
    Revoked {
        /// The operator.
        by: String,
        /// The reason.
        reason: String,
    },
    /// The record of the key was deleted, or an older copy of it was put back.
    Removed,
    /// The lease was held for its [maximum hold](crate::action::Acquire::max_hold), and its refreshes were confirmed.
    HeldTooLong,
    /// Its holder reported no [progress](crate::Lease::progress) for [too long](crate::action::Acquire::stalled_after).
    Stalled,
}

/// How a holder ended its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The holder released or dropped the lease.
    Released,
    /// The holder [transferred](crate::Lease::transfer) the lease to another lease id, or [upgraded](crate::Lease::upgrade) it.
    Transferred,
    /// The holder shut the handle down, or the runtime of the lease ended.
    ShutDown,
}

/// How long until the key is free, as text.
fn lasting(free_in: Duration, is_released: bool) -> String {
    if is_released {
        format!(", which was released, for the rest of its minimum hold, {}: retry later", format_duration(free_in))
    } else if free_in == Duration::MAX {
        " without expiry: retry after its release, or have it revoked".into()
    } else {
        let whole = if free_in.as_secs() == 0 { free_in } else { Duration::from_secs(free_in.as_secs()) };
        format!(" for another {}, longer if it is refreshed: retry later", format_duration(whole))
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its time ran out before the store confirmed a refresh"),
            Self::TakenOver { token } => write!(f, "the key has a newer token, {token}"),
            // Other processes wrote these texts. Quoted and escaped, they cannot control a terminal or begin a line of
            // a log.
            Self::Revoked { by, reason } if reason.is_empty() => write!(f, "it was revoked by {by:?}"),
            Self::Revoked { by, reason } => write!(f, "it was revoked by {by:?} (reason: {reason:?})"),
            Self::Removed => f.write_str("its record was deleted or replaced by an older one"),
            Self::HeldTooLong => f.write_str("it was held for the maximum time that its holder allowed"),
            Self::Stalled => f.write_str("its holder reported no progress for too long"),
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "its holder released it",
            Self::Transferred => "its holder transferred it to another lease id",
            Self::ShutDown => "the handle or its runtime was shut down",
        })
    }
}

impl LossCause {
    /// Returns the name of the variant in snake case, for a label of a metric or a field of a log.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::LossCause;
    ///
    /// assert_eq!(LossCause::HeldTooLong.kind(), "held_too_long");
    /// ```
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::TakenOver { .. } => "taken_over",
            Self::Revoked { .. } => "revoked",
            Self::Removed => "removed",
            Self::HeldTooLong => "held_too_long",
            Self::Stalled => "stalled",
        }
    }
}

impl EndReason {
    /// Returns the name of the variant in snake case, for a label of a metric or a field of a log.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::EndReason;
    ///
    /// assert_eq!(EndReason::ShutDown.kind(), "shut_down");
    /// ```
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Transferred => "transferred",
            Self::ShutDown => "shut_down",
        }
    }
}

/// How many characters of each cause are printed.
const MAX_CAUSE: usize = 300;

/// The text of the error and of its causes: what `fn main() -> mongoseal::Result<()>` and `unwrap` print.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let text = error.to_string();
            // An error of the driver has the whole reply of the server at its end.
            match text.char_indices().nth(MAX_CAUSE) {
                Some((end, _)) => write!(f, ": {}…", &text[..end])?,
                None => write!(f, ": {text}")?,
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl Error {
    /// For a field of a log, which then has the causes, too.
    pub(crate) fn as_std(&self) -> &(dyn std::error::Error + 'static) {
        self
    }

    /// Returns the name of the variant in snake case, for a label of a metric or a field of a log.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::Error;
    ///
    /// assert_eq!(Error::invalid("the ttl is zero: set one").kind(), "invalid");
    /// ```
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Held { .. } => "held",
            Self::QueueFull { .. } => "queue_full",
            Self::RetriesExhausted { .. } => "retries_exhausted",
            Self::Lost { .. } => "lost",
            Self::Ended { .. } => "ended",
            Self::Fenced { .. } => "fenced",
            Self::Unavailable { .. } => "unavailable",
            Self::Invalid { .. } => "invalid",
            Self::Corrupt { .. } => "corrupt",
        }
    }

    /// Creates an [`Invalid`](Self::Invalid) that says what is wrong and what to do.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), source: None }
    }

    /// Creates an [`Unavailable`](Self::Unavailable) that says what failed and what to do.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), source: None }
    }

    /// Adds the cause, if the variant has a field for it.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Source>) -> Self {
        if let Self::Unavailable { source, .. } | Self::Invalid { source, .. } = &mut self {
            *source = Some(cause.into());
        }
        self
    }
}

impl From<ParseError> for Error {
    fn from(error: ParseError) -> Self {
        Self::invalid(error.0)
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that clears a terminal, begins a line of a log, and reverses the reading order.
    const NASTY: &str = "eve\u{1b}[2J\nWARN \u{202e}all is well";
    const SHOWN: &str = r#""eve\u{1b}[2J\nWARN \u{202e}all is well""#;

    #[test]
    fn the_debug_text_of_an_error_is_its_message_and_its_causes() {
        let io = std::io::Error::other("connection reset");
        let error = Error::unavailable("the store did not answer: retry").caused_by(io);
        assert_eq!(format!("{error:?}"), "the store did not answer: retry: connection reset");
        assert_eq!(format!("{:?}", Error::invalid("the ttl is zero: set one")), "the ttl is zero: set one");
        let long = std::io::Error::other("ä".repeat(10_000));
        let text = format!("{:?}", Error::unavailable("retry").caused_by(long));
        assert!(text.ends_with("ää…") && text.chars().count() < 400, "{text}");
    }

    /// The owner of a holder is a text that another process chose.
    #[test]
    fn an_error_quotes_and_escapes_texts_of_other_processes() {
        let (key, owner, token) = (Key::try_from("k").unwrap(), Owner::try_from(NASTY).unwrap(), FencingToken::MIN);
        let held =
            Error::Held { key: key.clone(), owner, token, free_in: Duration::MAX, is_released: false }.to_string();
        assert_eq!(
            held,
            format!(
                "\"k\" is held by {SHOWN} with token 1 without expiry: retry after its release, or have it revoked"
            )
        );
        let cause = LossCause::Revoked { by: NASTY.into(), reason: NASTY.into() };
        assert_eq!(cause.to_string(), format!("it was revoked by {SHOWN} (reason: {SHOWN})"));
        let lost = Error::Lost { key, token, cause }.to_string();
        assert!(!lost.contains(char::is_control) && lost.contains(SHOWN), "{lost}");
        let unsaid = LossCause::Revoked { by: "alice".into(), reason: String::new() };
        assert_eq!(unsaid.to_string(), "it was revoked by \"alice\"");
    }
}

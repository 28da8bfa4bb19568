//! What each error of the driver means to whoever writes documents of his own.

use std::{error::Error as StdError, iter, time::Duration};

use mongodb::error::{Error as DriverError, ErrorKind, TRANSIENT_TRANSACTION_ERROR, WriteFailure};

use crate::{
    Error,
    store::mongo::error::{self as fault, DUPLICATE_KEY, Refusal},
};

/// The server knows nothing of the transaction, because it has aborted it or has become primary since.
const NO_SUCH_TRANSACTION: i32 = 251;

/// What an error means that came of a write to a caller's collection.
///
/// What the server says of the write itself, such as a duplicate key or a document that a validator
/// does not admit, is there as the driver's own error, as the source.
pub(super) fn meaning(error: DriverError, database: &str, collection: &str, needs: &str) -> Error {
    match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteConcernError(_)) => Error::unavailable(
            "a majority of the replica set did not confirm the write in time, so it may stand or not: read before you write again",
        )
        .caused_by(error),
        ErrorKind::Write(WriteFailure::WriteError(failure)) if !may_pass(failure.code) => refused(error),
        ErrorKind::Command(command) if command.code == DUPLICATE_KEY => refused(error),
        ErrorKind::Command(command) if command.code != fault::UNAUTHORIZED && is_final(&error) => refused(error),
        ErrorKind::InvalidArgument { .. } | ErrorKind::BsonSerialization(_) => refused(error),
        ErrorKind::BsonDeserialization(_) => Error::invalid(
            "the document was written, but it does not fit the type of the collection: see the source of this error",
        )
        .caused_by(error),
        // It was not sent.
        ErrorKind::ServerSelection { .. } => fault::meaning(error, database, collection, needs),
        _ => unconfirmed(fault::meaning(error, database, collection, needs)),
    }
}

/// What a write error means that the reply of a command names.
pub(super) fn written_not(code: i32, message: &str) -> Error {
    let error = if may_pass(code) {
        Error::unavailable("MongoDB did not confirm the write: read before you write again")
    } else {
        Error::invalid("MongoDB refused the write: see the source of this error")
    };
    error.caused_by(Refusal::whole(code, message))
}

/// The error of a write that may have been made. An equal token passes, so a retry could write twice.
pub(super) fn unconfirmed(error: Error) -> Error {
    match error {
        Error::Unavailable { source, .. } => Error::Unavailable {
            message: "MongoDB did not confirm the write, so it may have been made or not: read before you write again"
                .into(),
            source,
        },
        error => error,
    }
}

/// What it means that a write was not answered in time, or that its task ended early.
pub(super) fn unanswered(error: Error, within: Duration) -> Error {
    if matches!(error, Error::Unavailable { source: Some(_), .. }) {
        return unconfirmed(error);
    }
    Error::unavailable(format!(
        "MongoDB did not answer the write within {within:?}, so it may have been made or not: check that a primary can be reached and that the client has a free connection (`maxPoolSize`), and read before you write again"
    ))
}

/// Whether a document with the same `_id`, or the same entry of a unique index, is there.
pub(super) fn is_duplicate(error: &DriverError) -> bool {
    match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteError(failure)) => failure.code == DUPLICATE_KEY,
        _ => fault::code(error) == Some(DUPLICATE_KEY),
    }
}

/// Whether a code says the same.
pub(super) fn says_duplicate(code: i32) -> bool {
    code == DUPLICATE_KEY
}

fn may_pass(code: i32) -> bool {
    code != DUPLICATE_KEY && fault::is_transient(code)
}

/// Whether an error of a command stays the same if it is sent again.
fn is_final(error: &DriverError) -> bool {
    fault::is_refusal(error) && error.labels().is_empty()
}

fn refused(error: DriverError) -> Error {
    Error::invalid("MongoDB refused the write: see the source of this error").caused_by(error)
}

/// Whether a transaction can be run again that ended in this error, or in one that it caused.
pub(crate) fn is_transient(error: &(dyn StdError + 'static)) -> bool {
    of_driver(error).any(|error| error.contains_label(TRANSIENT_TRANSACTION_ERROR))
}

/// Whether the server had aborted the transaction before the statement that ended in this error, or in one that it
/// caused.
pub(super) fn had_aborted(error: &(dyn StdError + 'static)) -> bool {
    of_driver(error).any(|error| fault::code(error) == Some(NO_SUCH_TRANSACTION))
}

/// The errors of the driver among an error and its causes.
fn of_driver<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a DriverError> {
    iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
        .filter_map(|error| error.downcast_ref())
}

/// For `?` in the work of a [transaction](crate::Lease::transaction): what the driver said is the source.
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        let may_pass = match error.kind.as_ref() {
            ErrorKind::Write(WriteFailure::WriteError(failure)) => may_pass(failure.code),
            ErrorKind::InvalidArgument { .. }
            | ErrorKind::BsonSerialization(_)
            | ErrorKind::BsonDeserialization(_)
            | ErrorKind::Transaction { .. }
            | ErrorKind::Shutdown => false,
            _ => !is_final(&error),
        };
        if had_aborted(&error) {
            Self::unavailable(
                "MongoDB had aborted the transaction before this statement: return the first error of a statement from the work",
            )
            .caused_by(error)
        } else if may_pass {
            Self::unavailable("MongoDB did not confirm the statement: return this error from the work of the transaction, which then commits nothing; outside of one, read before you write again")
                .caused_by(error)
        } else {
            Self::invalid("MongoDB or its driver refused the operation: see the source of this error").caused_by(error)
        }
    }
}

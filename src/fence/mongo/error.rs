//! What each error of the driver means for a write of a caller's own documents.

use std::{error::Error as StdError, time::Duration};

use mongodb::error::{Error as DriverError, ErrorKind, TRANSIENT_TRANSACTION_ERROR};

use crate::{
    store::mongo::{
        error::{self as store_error, Meaning, Refusal, as_driver_error, causes, meaning},
        transaction::NO_SUCH_TRANSACTION,
    },
    types::{duration::format_duration, error::Error},
};

/// Translates an error of a write to a caller's collection.
///
/// If the server refuses the write itself, for example because of a duplicate key or a validator, the driver's error is
/// the source.
pub(super) fn translate(error: DriverError, database: &str, collection: &str, needs: &str) -> Error {
    match error.kind.as_ref() {
        ErrorKind::BsonDeserialization(_) => Error::invalid(
            "the document was written, but it does not fit the type of the collection: see the source of this error",
        )
        .caused_by(error),
        ErrorKind::InvalidArgument { .. } | ErrorKind::BsonSerialization(_) => refused(error, "write"),
        // The write was not sent.
        ErrorKind::ServerSelection { .. } => store_error::translate(error, database, collection, needs),
        _ => match meaning(&error) {
            Meaning::Duplicate | Meaning::Refused => refused(error, "write"),
            _ => unconfirmed(store_error::translate(error, database, collection, needs)),
        },
    }
}

/// The error for a write error in the reply of a command.
pub(super) fn not_written(code: i32, message: &str) -> Error {
    let error = if Meaning::of_code(code) == Meaning::Transient {
        Error::unavailable("MongoDB did not confirm the write: read before you write again")
    } else {
        refused_with(Some(code), "write")
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

/// The error of a write that was not answered in time, or whose task ended early.
pub(super) fn unanswered(error: Error, timeout: Duration) -> Error {
    if matches!(error, Error::Unavailable { source: Some(_), .. }) {
        return unconfirmed(error);
    }
    Error::unavailable(format!(
        "MongoDB did not answer the write within {}, so it may have been made or not: check that a primary can be reached and that the client has a free connection (`maxPoolSize`), and read before you write again",
        format_duration(timeout)
    ))
}

/// Whether a document with the same `_id`, or the same entry of a unique index, exists.
pub(super) fn is_duplicate(error: &DriverError) -> bool {
    meaning(error) == Meaning::Duplicate
}

/// Whether a code means a duplicate.
pub(super) fn says_duplicate(code: i32) -> bool {
    Meaning::of_code(code) == Meaning::Duplicate
}

/// The error of a write, or of a statement of a transaction, that is refused.
fn refused(error: DriverError, what: &str) -> Error {
    // The driver has no code for it.
    let is_of_foreign_session = matches!(error.kind.as_ref(), ErrorKind::InvalidArgument { message, .. } if message.contains("must be created from the same client"));
    let refused = if is_of_foreign_session {
        Error::invalid(
            "the collection is of another client than the session: take it from `session.client()`, which is the client of the lease",
        )
    } else {
        refused_with(store_error::code(&error), what)
    };
    refused.caused_by(error)
}

/// The error of what is refused with a code of the server, or by the driver.
fn refused_with(code: Option<i32>, what: &str) -> Error {
    Error::invalid(match code {
        Some(code) if says_duplicate(code) => format!(
            "MongoDB refused the {what} with code {code}: another document has the same `_id`, or the same entry of a unique index"
        ),
        Some(code) => format!("MongoDB refused the {what} with code {code}: see the source of this error"),
        None => format!("the MongoDB driver refused the {what}: see the source of this error"),
    })
}

/// Whether a transaction that ended with this error, or with an error that it caused, can be run again.
pub(crate) fn is_transient(error: &(dyn StdError + 'static)) -> bool {
    driver_errors(error).any(|error| error.contains_label(TRANSIENT_TRANSACTION_ERROR))
}

/// Whether the server had aborted the transaction before the statement that ended with this error, or with an error
/// that it caused.
pub(super) fn had_aborted(error: &(dyn StdError + 'static)) -> bool {
    driver_errors(error).any(|error| store_error::code(error) == Some(NO_SUCH_TRANSACTION))
}

/// The errors of the driver among an error and its causes.
fn driver_errors<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a DriverError> {
    causes(error).filter_map(as_driver_error)
}

/// For `?` in the work of a [transaction](crate::Lease::transaction). The driver's error is the source.
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        if had_aborted(&error) {
            Self::unavailable(
                "MongoDB had aborted the transaction before this statement: return the first error of a statement from the work",
            )
            .caused_by(error)
        } else if meaning(&error) == Meaning::Transient {
            Self::unavailable("MongoDB did not confirm the statement: return this error from the work of the transaction, which then commits nothing; outside of one, read before you write again")
                .caused_by(error)
        } else {
            refused(error, "statement")
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::{Client, options::ClientOptions};

    use super::*;

    #[tokio::test]
    async fn of_a_write_that_was_not_sent_the_error_does_not_say_that_it_may_have_been_made() {
        let nowhere = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1";
        let not_sent = Client::with_uri_str(nowhere).await.unwrap().list_database_names().await.unwrap_err();
        let error = translate(not_sent, "shop", "orders", "update");
        assert!(matches!(error, Error::Unavailable { .. }) && !error.to_string().contains("may have been"), "{error}");
        let not_accepted = ClientOptions::parse("mongodb://127.0.0.1/?w=-1").await.unwrap_err();
        let error = translate(not_accepted, "shop", "orders", "update");
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("refused the write"), "{error}");
    }
}

//! Translates the errors of the driver to those of this crate.
//!
//! Purpose: a caller learns from the variant of an error whether a retry can succeed.
//!
//! Mechanism: [`meaning`] decides that, for each error of each command: first by the labels, then by the code, then by
//! the kind. All other code asks it.
//!
//! Invariant: an error keeps the code of the server's error, and nothing that the server quotes.

mod unreachable;

use std::{error::Error as StdError, fmt, iter};

use mongodb::{
    bson::{Bson, Document},
    error::{
        BulkWriteError, CommandError, Error as DriverError, ErrorKind, InsertManyError, RETRYABLE_ERROR,
        RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
        WriteFailure,
    },
};

use crate::types::error::{Error, Result, Source};

/// What an error means to the call whose command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The server cannot do it now but may soon, or it did it and could not confirm it: a retry can succeed.
    Transient,
    /// Two documents would have the same `_id`, or the same entry of a unique index.
    Duplicate,
    /// The user may not send the command, or this deployment does not serve it.
    NotPermitted,
    /// The login is refused.
    Login,
    /// The server refuses the command, now and later.
    Refused,
    /// The driver refuses the call or its options, or cannot read the answer.
    Unusable,
}

impl Meaning {
    /// The meaning of a server's error with this code and without a label that decides.
    pub(crate) fn of_code(code: i32) -> Self {
        match code {
            DUPLICATE_KEY => Self::Duplicate,
            AUTHENTICATION_FAILED => Self::Login,
            _ if TRANSIENT_CODES.iter().any(|codes| codes.contains(&code)) => Self::Transient,
            _ if NOT_PERMITTED_CODES.contains(&code) => Self::NotPermitted,
            _ => Self::Refused,
        }
    }
}

/// Decides what an error means.
pub(crate) fn meaning(error: &DriverError) -> Meaning {
    if RETRY_LABELS.iter().any(|label| error.contains_label(label)) {
        return Meaning::Transient;
    }
    let of_code = code(error).map_or(Meaning::Transient, Meaning::of_code);
    match error.kind.as_ref() {
        // The write was made, and may be rolled back.
        ErrorKind::Write(WriteFailure::WriteConcernError(_)) => Meaning::Transient,
        // The driver wraps each error of a login, and sometimes drops its code.
        ErrorKind::Authentication { .. } if code(error).is_none() || of_code != Meaning::Transient => Meaning::Login,
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::SessionsNotSupported
        | ErrorKind::Shutdown
        | ErrorKind::Transaction { .. }
        | ErrorKind::BsonSerialization(_)
        | ErrorKind::BsonDeserialization(_) => Meaning::Unusable,
        _ => of_code,
    }
}

/// The codes of transient errors. MongoDB's `error_codes.yml` has the names.
const TRANSIENT_CODES: [&[i32]; 9] = [
    &[6, 7, 89, 9001], // host unreachable or not found, network timeout, socket error
    &[91, 189, 10107, 10058, 11600, 11602, 13435, 13436], // shutting down, stepping down, not primary
    &[TIME_LIMIT, 64, 202, 262, 365, 11601], // out of time, write concern not met, unavailable, interrupted
    &[433, 449, 450, 462], // overloaded
    &[24, 46, 112],    // lock timeout, lock busy, write conflict
    &[133, 134, 211, 239, 246], // no suitable member; read concern, keys or snapshot not yet available
    &[63, 150, 13388], // a router with an old configuration
    &[175, 215],       // the collection was dropped during the command, or its database is being dropped
    &[117],            // a conflicting operation is in progress
];

/// Labels of transient errors, from a server or the driver.
const RETRY_LABELS: [&str; 5] = [
    RETRYABLE_WRITE_ERROR,
    RETRYABLE_ERROR,
    SYSTEM_OVERLOADED_ERROR,
    TRANSIENT_TRANSACTION_ERROR,
    UNKNOWN_TRANSACTION_COMMIT_RESULT,
];

/// Codes of a server that is not the primary of its set, or no longer.
const NOT_PRIMARY_CODES: [i32; 4] = [10107, 10058, 13435, 13436];

/// Codes of a command that this user or client may not send, or that is not served: unauthorized, command not found or
/// not supported, not implemented, not of the stable API, refused by Atlas.
const NOT_PERMITTED_CODES: [i32; 6] = [UNAUTHORIZED, 59, 115, 238, 323, 8000];

pub(super) const UNAUTHORIZED: i32 = 13;
const DUPLICATE_KEY: i32 = 11000;
const AUTHENTICATION_FAILED: i32 = 18;
/// A database exists whose name differs in upper and lower case only.
const DATABASE_DIFFERS_IN_CASE: i32 = 13297;
/// The command did not end within its `maxTimeMS`. If its writes were made and not confirmed, the reply has a write
/// concern error instead.
pub(crate) const TIME_LIMIT: i32 = 50;

/// The actions that a user must be granted, by what a command does.
pub(crate) mod needs {
    pub(crate) const READ: &str = "find";
    pub(crate) const WATCH: &str = "find and changeStream";
    pub(crate) const HOLD: &str = "find, insert and update";
    pub(crate) const CHANGE: &str = "find and update";
    pub(crate) const INSERT: &str = "find and insert";
    pub(crate) const REMOVE: &str = "find and remove";
}

/// The features of the driver that a connection string can need. Those of this crate have the same names.
const FEATURES: [&str; 10] = [
    "dns-resolver",
    "zstd-compression",
    "zlib-compression",
    "snappy-compression",
    "aws-auth",
    "gssapi-auth",
    "azure-oidc",
    "gcp-oidc",
    "socks5-proxy",
    "cert-key-password",
];

/// The beginning of the driver's error for the option `compressors` if the driver was built without any compression.
const UNKNOWN_COMPRESSORS: &str = "compressors is an invalid option";

/// Translates the error with which the driver names a feature that it was built without.
pub(crate) fn missing_feature(error: &DriverError) -> Option<Error> {
    let (ErrorKind::InvalidArgument { message, .. } | ErrorKind::Authentication { message, .. }) = error.kind.as_ref()
    else {
        return None;
    };
    let feature = if message.starts_with(UNKNOWN_COMPRESSORS) {
        "zstd-compression`, `zlib-compression` or `snappy-compression"
    } else {
        FEATURES.iter().find(|feature| message.contains(**feature)).filter(|_| message.contains("feature"))?
    };
    Some(Error::invalid(format!(
        "the MongoDB connection string needs the cargo feature `{feature}` of mongoseal, which is off: turn it on and build again, or leave out of the connection string what needs it"
    )))
}

/// Translates an error of a command on this collection, which needs these actions.
pub(crate) fn translate(error: DriverError, database: &str, collection: &str, needs: &str) -> Error {
    if let Some(missing) = missing_feature(&error) {
        return missing.caused_by(error);
    }
    let code = code(&error);
    match (meaning(&error), error.kind.as_ref()) {
        (_, ErrorKind::ServerSelection { message, .. }) => unreachable::translate(message),
        (Meaning::Transient, _) if code.is_some_and(|code| NOT_PRIMARY_CODES.contains(&code)) => not_primary(),
        // A retry meets the document, or its absence.
        (Meaning::Transient | Meaning::Duplicate, _) => not_confirmed(),
        (Meaning::Login, _) => {
            Error::invalid("MongoDB refused the credentials: check user, password and authSource")
        }
        (Meaning::NotPermitted, _) if is_anonymous(&error) => Error::invalid(
            "the MongoDB server requires a login: put user, password and authSource into the connection string",
        ),
        (Meaning::NotPermitted, _) if code == Some(UNAUTHORIZED) => Error::invalid(format!(
            "the MongoDB user lacks a privilege on {database}.{collection}: grant it {needs} there"
        )),
        (_, ErrorKind::Command(_)) if code == Some(DATABASE_DIFFERS_IN_CASE) => Error::invalid(format!(
            "the MongoDB server has a database whose name differs from {database:?} in upper and lower case only: use that name, or another one"
        )),
        (_, ErrorKind::Command(CommandError { code, code_name, .. })) => Error::invalid(format!(
            "MongoDB refused a command on {database}.{collection} with {code_name} (code {code}): see the source of this error"
        )),
        (_, ErrorKind::Shutdown) => {
            Error::invalid("the MongoDB client was shut down: create the handle on a client that stays open")
        }
        (_, ErrorKind::BsonDeserialization(_)) => return unreadable(error),
        _ => Error::invalid("the options of the MongoDB client do not fit this deployment: check the connection string"),
    }
    .caused_by(source(error))
}

/// The source of an error. A server may quote the command or the record, and so the lease id, which is a secret. So
/// only the code of its error is kept, and the words before the first quote.
pub(crate) fn source(error: DriverError) -> Source {
    match error.kind.as_ref() {
        ErrorKind::Command(CommandError { code, code_name, message, .. }) => {
            Box::new(Refusal::new(*code, code_name, message))
        }
        _ => Box::new(error),
    }
}

/// A server's error without what it quotes.
#[derive(Debug)]
pub(crate) struct Refusal {
    code: i32,
    name: String,
    message: String,
}

impl Refusal {
    pub(crate) fn new(code: i32, name: &str, message: &str) -> Self {
        // It quotes the names of two databases, and no request.
        if code == DATABASE_DIFFERS_IN_CASE {
            return Self { code, name: name.to_owned(), message: message.to_owned() };
        }
        let quotes = ["{", "[", "UUID(", "BinData("].iter().filter_map(|quote| message.find(quote)).min();
        let said = quotes.and_then(|quotes| message.get(..quotes)).unwrap_or(message);
        Self { code, name: name.to_owned(), message: said.trim_end().to_owned() }
    }

    /// An error that quotes only what its reader wrote.
    pub(crate) fn whole(code: i32, message: &str) -> Self {
        Self { code, name: String::new(), message: message.to_owned() }
    }

    /// From a write error or a write concern error in a reply.
    fn of(error: &Bson) -> Self {
        let fields = error.as_document();
        let text = |name| fields.and_then(|fields| fields.get_str(name).ok()).unwrap_or_default();
        let code = fields.and_then(|fields| fields.get_i32("code").ok()).unwrap_or_default();
        Self::new(code, text("codeName"), text("errmsg"))
    }
}

impl Error {
    /// The code of the server's error, if a server of MongoDB answered with an error: see [its list of
    /// codes](https://www.mongodb.com/docs/manual/reference/error-codes/). For example, 121 is a document that the
    /// collection's validator refuses.
    ///
    /// The code is for logs and metrics. The variant says what to do.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        causes(self).find_map(|error| {
            let refused = error.downcast_ref::<Refusal>().map(|refusal| refusal.code);
            refused.or_else(|| as_driver_error(error).and_then(code))
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "code {}: {}", self.code, self.message),
            name => write!(f, "{name} (code {}): {}", self.code, self.message),
        }
    }
}

impl std::error::Error for Refusal {}

/// The error of a write without confirmation. A write concern error is never success: the write was made, and may be
/// rolled back.
pub(crate) fn unconfirmed(error: &Bson) -> Error {
    Error::unavailable("a majority of the replica set did not confirm the write in time: retry")
        .caused_by(Refusal::of(error))
}

/// Refuses the reply to a command whose writes failed or were not confirmed. Only the reply says so.
pub(super) fn ensure_written(reply: &Document) -> Result<()> {
    if let Some(error) = reply.get("writeConcernError") {
        return Err(unconfirmed(error));
    }
    let Some((refusal, meaning)) = write_error(reply) else { return Ok(()) };
    let failed = match meaning {
        Meaning::Transient | Meaning::Duplicate => not_confirmed(),
        _ => Error::invalid(format!(
            "MongoDB refused the write with code {}: see the source of this error",
            refusal.code
        )),
    };
    Err(failed.caused_by(refusal))
}

/// Whether the server refused a write of a command that succeeded, so that it has written nothing.
pub(super) fn is_write_refused(reply: &Document) -> bool {
    write_error(reply).is_some_and(|(_, meaning)| meaning != Meaning::Transient)
}

/// The first error of a write in the reply to a command that succeeded, and what it means.
fn write_error(reply: &Document) -> Option<(Refusal, Meaning)> {
    let refusal = Refusal::of(reply.get_array("writeErrors").ok()?.first()?);
    let labels = reply.get_array("errorLabels").map(Vec::as_slice).unwrap_or_default();
    let may_pass = labels.iter().filter_map(Bson::as_str).any(|label| RETRY_LABELS.contains(&label));
    let meaning = if may_pass { Meaning::Transient } else { Meaning::of_code(refusal.code) };
    Some((refusal, meaning))
}

/// The error of a reply without the fields that every server returns.
pub(super) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("the reply is not one of a MongoDB server: check whether a proxy or another product answers")
        .caused_by(error)
}

/// Whether the server refuses because the client is not logged in.
fn is_anonymous(error: &DriverError) -> bool {
    matches!(*error.kind, ErrorKind::Command(ref command) if command.message.contains("requires authentication"))
}

/// The code of the server's error, if there is one in this error.
pub(crate) fn code(error: &DriverError) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(failure)) => Some(failure.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(failure)) => Some(failure.code),
        ErrorKind::InsertMany(InsertManyError { write_errors: Some(failures), .. }) => Some(failures.first()?.code),
        ErrorKind::BulkWrite(BulkWriteError { write_errors, .. }) if !write_errors.is_empty() => {
            write_errors.iter().min_by_key(|(index, _)| **index).map(|(_, failure)| failure.code)
        }
        _ => error.source().and_then(as_driver_error).and_then(code),
    }
}

/// An error and its causes.
pub(crate) fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

/// The error of the driver, if this is one. The driver boxes the source of its own error.
pub(crate) fn as_driver_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a DriverError> {
    error.downcast_ref().or_else(|| error.downcast_ref::<Box<DriverError>>().map(Box::as_ref))
}

/// Whether the document of the key may be the cause: an upsert met one that its query does not match, or the update
/// failed on it. Then nothing was written.
pub(super) fn is_caused_by_document(error: &DriverError) -> bool {
    matches!(meaning(error), Meaning::Duplicate | Meaning::Refused)
}

/// Whether the server refuses the command, now and later, with one of these codes.
pub(super) fn is_refused_with(error: &DriverError, codes: &[i32]) -> bool {
    meaning(error) != Meaning::Transient && code(error).is_some_and(|code| codes.contains(&code))
}

/// Whether the server does not let this user send the command, or does not serve it. A client without a login lacks the
/// login.
pub(super) fn is_not_permitted(error: &DriverError) -> bool {
    meaning(error) == Meaning::NotPermitted && !is_anonymous(error)
}

/// The error of a server that is not the primary. A client that follows the set finds the next primary by itself.
pub(super) fn not_primary() -> Error {
    Error::unavailable(
        "the MongoDB server is not the primary of its replica set: retry, and leave out directConnection if the connection string has it",
    )
}

fn not_confirmed() -> Error {
    Error::unavailable(
        "MongoDB did not confirm the request: retry, and see the source of this error if that happens again",
    )
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn of_what_a_server_says_its_code_is_kept_and_not_what_it_quotes() {
        let quotes = [
            "Document failed validation",
            "E11000 duplicate key error dup key: { _id: \"k\" }",
            "cannot compare to [UUID(\"c0ffee00\")]",
            "no such entry UUID(\"c0ffee00\")",
            "no such entry BinData(4, \"wP/uAA==\")",
        ];
        for said in quotes {
            let error =
                doc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": said, "errInfo": { "c0ffee00": 1 } };
            let error = unconfirmed(&error.into());
            assert_eq!(error.code(), Some(64));
            let source = std::error::Error::source(&error).unwrap();
            for shown in [source.to_string(), format!("{error:?}")] {
                assert!(!shown.contains("c0ffee00") && !shown.contains("wP/") && !shown.contains("_id"), "{shown}");
                assert!(shown.contains(&said[..13]), "{shown}");
            }
        }
        assert_eq!(Error::invalid("no server").code(), None);
    }

    #[test]
    fn of_a_database_that_differs_in_case_the_names_are_kept() {
        let said = "db already exists with different case already have: [App] trying to create [app]";
        assert!(Refusal::new(DATABASE_DIFFERS_IN_CASE, "DatabaseDifferCase", said).to_string().contains(said));
    }

    #[test]
    fn a_failed_write_of_a_reply_is_what_its_label_and_then_its_code_says() {
        let table = [
            (462, "", true),
            (112, "", true),
            (121, "", false),
            (121, "NoWritesPerformed", false),
            (121, RETRYABLE_ERROR, true),
            (13, SYSTEM_OVERLOADED_ERROR, true),
        ];
        for (code, label, may_pass) in table {
            let reply = doc! { "ok": 1, "writeErrors": [{ "code": code, "errmsg": "said" }], "errorLabels": [label] };
            let error = ensure_written(&reply).unwrap_err();
            assert_eq!(matches!(error, Error::Unavailable { .. }), may_pass, "{code} {label}: {error:?}");
            assert_eq!((error.code(), is_write_refused(&reply)), (Some(code), !may_pass), "{code} {label}");
        }
    }

    #[test]
    fn an_error_of_the_caller_is_invalid_and_one_of_the_moment_is_unavailable() {
        let invalid = translate(ErrorKind::Shutdown.into(), "d", "c", needs::READ);
        assert!(matches!(invalid, Error::Invalid { .. }));
        let moment = translate(std::io::Error::other("reset").into(), "d", "c", needs::READ);
        assert!(matches!(moment, Error::Unavailable { .. }));
        assert!(!moment.to_string().contains("reset"), "the source is not repeated");
    }
}

//! Translates the errors of the driver to those of this crate.
//!
//! Invariant: an error keeps the code of the server's error, and nothing that the server quotes.

mod unreachable;

use std::fmt;

use mongodb::{
    bson::{Bson, Document},
    error::{
        CommandError, Error as DriverError, ErrorKind, RETRYABLE_ERROR, RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR,
        TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
    },
};
pub(crate) use unreachable::misnamed_set;

use crate::{Error, Result, Source};

/// Codes of a server that cannot do it now but may soon, or that did it and could not confirm it. MongoDB's
/// `error_codes.yml` has the names.
const TRANSIENT_CODES: [i32; 30] = [
    6,
    7,
    89,
    9001, // host unreachable or not found, network timeout, socket error
    91,
    189,
    10107,
    10058,
    11600,
    11602,
    13435,
    13436, // shutting down, stepping down, not primary
    TIME_LIMIT,
    64,
    202,
    262,
    365,
    11601, // out of time, write concern not met, unavailable, interrupted
    24,
    46,
    112, // lock timeout, lock busy, write conflict
    133,
    134,
    211, // no suitable member, read concern not yet available, keys not found yet
    63,
    150,
    13388,         // a router with an old configuration
    175,           // the collection was dropped during the command
    DUPLICATE_KEY, // two concurrent first inserts of a key
    117,           // a conflicting operation is in progress
];

/// Labels with the same meaning, from a server or the driver.
const RETRY_LABELS: [&str; 5] = [
    RETRYABLE_WRITE_ERROR,
    RETRYABLE_ERROR,
    SYSTEM_OVERLOADED_ERROR,
    TRANSIENT_TRANSACTION_ERROR,
    UNKNOWN_TRANSACTION_COMMIT_RESULT,
];

/// Codes of a server that is not the primary of its set, or no longer.
const NOT_PRIMARY_CODES: [i32; 4] = [10107, 10058, 13435, 13436];

pub(crate) const UNAUTHORIZED: i32 = 13;
/// Two documents would have the same `_id`, or the same entry of a unique index.
pub(crate) const DUPLICATE_KEY: i32 = 11000;
const AUTHENTICATION_FAILED: i32 = 18;
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
    match error.kind.as_ref() {
        ErrorKind::Command(_) if code == Some(UNAUTHORIZED) && is_anonymous(&error) => Error::invalid(
            "the MongoDB server requires a login: put user, password and authSource into the connection string",
        ),
        ErrorKind::Command(_) if code == Some(UNAUTHORIZED) => Error::invalid(format!(
            "the MongoDB user lacks a privilege on {database}.{collection}: grant it {needs} there"
        )),
        // The driver wraps each error of a login.
        ErrorKind::Authentication { .. } if code.is_some_and(|code| TRANSIENT_CODES.contains(&code)) => not_confirmed(),
        ErrorKind::Authentication { .. } => refused_credentials(),
        ErrorKind::Command(_) if code == Some(AUTHENTICATION_FAILED) => refused_credentials(),
        ErrorKind::Command(_) if code.is_some_and(|code| NOT_PRIMARY_CODES.contains(&code)) => not_primary(),
        ErrorKind::Command(_) if code.is_some_and(|code| TRANSIENT_CODES.contains(&code)) => not_confirmed(),
        ErrorKind::Command(_) if RETRY_LABELS.iter().any(|label| error.contains_label(label)) => not_confirmed(),
        ErrorKind::Command(CommandError { code, code_name, .. }) => Error::invalid(format!(
            "MongoDB refused a command on {database}.{collection} with {code_name} (code {code}): see the source of this error"
        )),
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::SessionsNotSupported => {
            Error::invalid("the options of the MongoDB client do not fit this deployment: check the connection string")
        }
        ErrorKind::Shutdown => {
            Error::invalid("the MongoDB client was shut down: create the handle on a client that stays open")
        }
        ErrorKind::ServerSelection { message, .. } => unreachable::translate(message),
        _ => not_confirmed(),
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
        let mut next = std::error::Error::source(self);
        while let Some(error) = next {
            let refused = error.downcast_ref::<Refusal>().map(|refusal| refusal.code);
            if let Some(code) = refused.or_else(|| error.downcast_ref::<DriverError>().and_then(code)) {
                return Some(code);
            }
            next = error.source();
        }
        None
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

/// The error of a change stream that ended.
pub(super) fn stream_failed(error: DriverError) -> Error {
    Error::unavailable("the change stream ended: it is opened again").caused_by(source(error))
}

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
    match reply.get_array("writeErrors").ok().and_then(|errors| errors.first()) {
        Some(error) => Err(unwritten(error)),
        None => Ok(()),
    }
}

/// The error of a command that succeeded but whose write failed.
fn unwritten(error: &Bson) -> Error {
    let refusal = Refusal::of(error);
    let failed = if TRANSIENT_CODES.contains(&refusal.code) {
        not_confirmed()
    } else {
        Error::invalid(format!("MongoDB refused the write with code {}: see the source of this error", refusal.code))
    };
    failed.caused_by(refusal)
}

/// The error of a reply without the fields that every server returns.
pub(super) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("the reply is not one of a MongoDB server: check whether a proxy or another product answers")
        .caused_by(error)
}

/// Whether the server refuses because the client is not logged in.
pub(super) fn is_anonymous(error: &DriverError) -> bool {
    matches!(*error.kind, ErrorKind::Command(ref command) if command.message.contains("requires authentication"))
}

/// The code of the server's error, if there is one in this error.
pub(crate) fn code(error: &DriverError) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(failure)) => Some(failure.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(failure)) => Some(failure.code),
        _ => std::error::Error::source(error)?.downcast_ref::<DriverError>().and_then(code),
    }
}

/// Whether a code is one of a server that cannot do it now but may soon.
pub(crate) fn is_transient(code: i32) -> bool {
    TRANSIENT_CODES.contains(&code)
}

/// Whether the server refuses this command, now and later.
pub(crate) fn is_refusal(error: &DriverError) -> bool {
    matches!(*error.kind, ErrorKind::Command(ref command) if !TRANSIENT_CODES.contains(&command.code))
}

/// Whether the document of the key may be the cause: an upsert met one that its query does not match, or the update
/// failed on it. Then nothing was written.
pub(super) fn is_caused_by_document(error: &DriverError) -> bool {
    code(error) == Some(DUPLICATE_KEY) || (is_refusal(error) && code(error) != Some(UNAUTHORIZED))
}

fn refused_credentials() -> Error {
    Error::invalid("MongoDB refused the credentials: check user, password and authSource")
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
    fn an_error_of_the_caller_is_invalid_and_one_of_the_moment_is_unavailable() {
        let invalid = translate(ErrorKind::Shutdown.into(), "d", "c", needs::READ);
        assert!(matches!(invalid, Error::Invalid { .. }));
        let moment = translate(std::io::Error::other("reset").into(), "d", "c", needs::READ);
        assert!(matches!(moment, Error::Unavailable { .. }));
        assert!(!moment.to_string().contains("reset"), "the source is not repeated");
    }
}

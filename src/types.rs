//! The values of the public interface, and the errors of parsing them: keys, tokens, durations, ids.
//!
//! Invariant: this is the lowest layer, which uses nothing else of this crate. The errors are here, because parsing a
//! value returns [`Error`](error::Error), and an error has keys, owners and tokens.

pub(crate) mod acquire_id;
pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod duration;
pub(crate) mod error;
pub(crate) mod group;
pub(crate) mod instant;
pub(crate) mod into_name;
pub(crate) mod json;
pub(crate) mod keep;
pub(crate) mod key;
pub(crate) mod lease_id;
pub(crate) mod lock;
pub(crate) mod metadata;
pub(crate) mod owner;
pub(crate) mod parse_error;
pub(crate) mod sharing;
pub(crate) mod string_newtype;
pub(crate) mod token;
pub(crate) mod ttl;

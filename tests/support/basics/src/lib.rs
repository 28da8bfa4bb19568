//! What tests need that start no server. It costs little to compile.
//!
//! - [`secs`], [`millis`] and [`eventually`] are short forms that most tests use.
//! - [`by_length`] gives a test one size for a push and another for the night.

mod times;

pub use times::{by_length, eventually, is_long, millis, secs};

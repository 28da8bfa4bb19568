//! What tests need that start no server. It costs little to compile.
//!
//! - [`secs`], [`millis`] and [`eventually`] are short forms that most tests use.
//! - [`by_length`] gives a test one size for a push and another for the night.
//! - [`harness`] runs tests that are known only at run time.

pub mod harness;
mod times;

pub use times::{by_length, eventually, is_long, millis, secs};

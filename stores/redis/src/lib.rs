//! Leases of [mongoseal] on Redis.
//!
//! ```no_run
//! # async fn report() -> mongoseal::Result<()> {
//! let seal = mongoseal_redis::connect("redis://:password@redis0:6379/0").await?;
//! let lease = seal.acquire("reports/nightly").await?;
//! println!("acting with token {}", lease.token());
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A handle has the API of [`mongoseal::Mongoseal`]. The promises are weaker than on MongoDB: see
//! [the page `redis`](mongoseal::guide::redis) of the guide.
//!
//! | to | see |
//! |---|---|
//! | connect with the default settings | [`connect`] |
//! | connect with other settings, with replicas, or without async | [`Builder::connect_to`](mongoseal::Builder::connect_to) and [`RedisBackend`] |
//! | keep the records of tenants apart | [`Builder::collection`](mongoseal::Builder::collection) is the prefix of the keys, also for [`Builder::sibling_of`](mongoseal::Builder::sibling_of) |
//! | make a handle on a store that is open | [`RedisStore`] |
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `rustls` | no | connection strings with `rediss://` |
//!
//! # Mechanism
//!
//! [`CompareAndSwap`](mongoseal::store::CompareAndSwap) runs the protocol on a [`RedisBackend`]: see `backend.rs`.
//!
//! | file | contains |
//! |---|---|
//! | `error.rs` | what each error of the driver means |
//! | `script.rs` | the scripts |
//! | `connections.rs` | the connections to the server |
//! | `preflight.rs` | checks of the server |
//! | `backend.rs` | the backend |

#![warn(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, and that is right"))]

mod backend;
mod connections;
mod error;
mod preflight;
mod script;

use std::time::Duration;

pub use backend::{RedisBackend, RedisStore};
use mongoseal::{Mongoseal, Result};

/// Connects to a Redis server with the default settings, and checks it. The keys begin with `mongoseal:`.
///
/// The connections belong to the handle, and [`shutdown`](Mongoseal::shutdown) closes them.
///
/// # Errors
///
/// [`Error::Invalid`](mongoseal::Error::Invalid) if the connection string or the server must be changed.
/// [`Error::Unavailable`](mongoseal::Error::Unavailable) if the server did not answer within the operation timeout.
///
/// # Cancel safety
///
/// Dropping the future closes the connections. A check that is in flight may go on and does no harm.
pub async fn connect(uri: impl AsRef<str>) -> Result<Mongoseal> {
    Mongoseal::builder().connect_to(RedisBackend::new(uri)?).await
}

/// A duration in whole milliseconds.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The page of the guide, whose examples are tests of this package.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/redis.md")]
mod page {}

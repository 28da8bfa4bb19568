#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod clock;
mod error;
mod key;
mod lease;
mod lease_id;
mod metadata;
mod open;
mod owner;
pub mod record;
mod refresh;
mod retry;
mod seal;
pub mod store;
mod token;
mod ttl;

pub use acquire::Acquire;
pub use clock::Clock;
pub use error::{Error, LossCause, Result, Source};
pub use key::Key;
pub use lease::{Lease, LeaseState, Released};
pub use lease_id::LeaseId;
pub use metadata::Metadata;
pub use owner::Owner;
pub use seal::{Builder, Mongoseal};
pub use token::{FencingToken, Tick};
pub use ttl::Ttl;

#[cfg(feature = "mongodb")]
#[doc(no_inline)]
pub use mongodb;

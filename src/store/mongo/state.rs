//! What is kept between the requests of a store. No file here uses a file that sends commands.

pub(super) mod admission;
pub(super) mod client;
pub(super) mod index;
pub(super) mod known_keys;
pub(super) mod subscribers;

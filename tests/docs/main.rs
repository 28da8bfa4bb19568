//! What the documents and the source say of each other.

#[cfg(feature = "mongodb")]
mod features;
mod layers;
mod links;
mod monitoring;

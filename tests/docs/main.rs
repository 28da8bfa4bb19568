//! What the documents and the source say of each other.

mod errors;
#[cfg(feature = "mongodb")]
mod features;
mod layers;
mod links;
mod monitoring;
mod numbers;
mod options;
mod track_record;

use std::{fs, path::Path};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

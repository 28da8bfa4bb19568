//! The file of `run --value-file`: the value of the key before the command, and after it.

use std::{fs, path::Path};

use mongoseal::{Json, Lease};

use crate::exit_status::Failure;

/// A file that has the value of a key.
pub(super) struct ValueFile<'a> {
    path: &'a Path,
    lease: &'a Lease,
    /// Its bytes when the command began.
    begun: Vec<u8>,
}

impl<'a> ValueFile<'a> {
    /// Writes the value to the file. If the key has none, empties the file.
    pub(super) async fn write(path: &'a Path, lease: &'a Lease) -> Result<Self, Failure> {
        let value = lease.value::<Json>().await?;
        let begun = value.map(|value| format!("{}\n", value.content).into_bytes()).unwrap_or_default();
        fs::write(path, &begun)
            .map_err(|error| Failure::invalid(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { path, lease, begun })
    }

    /// Stores what the command has made of the file, if it has changed it.
    pub(super) async fn store(self) -> Result<(), Failure> {
        let ended = read(self.path)?;
        if ended == self.begun {
            return Ok(());
        }
        if ended.trim_ascii().is_empty() {
            self.lease.clear_value().await?;
        } else {
            self.lease.put_value(&parse(self.path, &ended)?).await?;
        }
        Ok(())
    }
}

/// Reads a file, or the standard input if it is `-`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    read.map_err(|error| Failure::invalid(format!("cannot read {}: {error}", path.display())))
}

/// Reads the JSON of a file.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Json, Failure> {
    Json::from_text(bytes).map_err(|error| {
        let error = Failure::from(error);
        Failure::invalid(format!("{} cannot be stored as the value: {}", path.display(), error.message()))
    })
}

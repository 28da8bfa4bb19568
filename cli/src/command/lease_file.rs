//! The lease file, by which `refresh` and `release` find the lease that `acquire` has left: its form, and how it is
//! written and read.
//!
//! Invariants: only this user can read the file. No error quotes its content. The file exists, empty, before the key is
//! acquired. A lease that cannot be written is released.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use mongoseal::{FencingToken, Key, Lease, LeaseId, Mongoseal, action::Resume};
use nix::libc::O_NONBLOCK;
use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use crate::{
    command::driver,
    connection::{Connection, Product},
    exit_status::Failure,
    ui::message::print_warning,
};

/// The version of the form that this program writes and reads.
const VERSION: u64 = 1;
/// The largest lease file.
const MAX_BYTES: u64 = 64 * 1024;
/// The permissions of other users.
const OTHERS: u32 = 0o077;

/// The content of a lease file.
#[derive(Deserialize, Serialize)]
struct Content {
    version: u64,
    #[serde(flatten)]
    location: Location,
    key: String,
    lease_id: String,
    token: u64,
}

/// A place of leases. It does not name the servers: they have several addresses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Location {
    store: Product,
    /// On Redis its number.
    database: String,
    /// On Redis the prefix of the keys.
    collection: String,
}

impl Location {
    fn of(connection: &Connection) -> Result<Self, Failure> {
        let (uri, product) = connection.target()?;
        let database = match product {
            #[cfg(feature = "redis")]
            Product::Redis => crate::command::redis::database_number(&uri).to_string(),
            _ => driver::database_name(&uri, connection),
        };
        Ok(Self { store: product, database, collection: connection.collection.clone() })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, database, collection } = self;
        match store {
            Product::MongoDb => write!(f, "the collection {collection:?} of the database {database:?} on {store}"),
            Product::Redis => write!(f, "the prefix {collection:?} of the database {database:?} on {store}"),
        }
    }
}

/// Opens a lease file, and refuses what can have no lease: for example a file that other users can read.
fn open(path: &Path, options: &OpenOptions, is_new: bool) -> Result<File, Failure> {
    let failed = |error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound if is_new => {
            Failure::invalid(format!("there is no folder for {}: create the folder, or pass another path", named(path)))
        }
        io::ErrorKind::NotFound => Failure::invalid(format!(
            "there is no {}: pass the path that `mongoseal acquire` has written, or acquire the key",
            named(path)
        )),
        io::ErrorKind::AlreadyExists => Failure::invalid(format!(
            "{} exists: run `mongoseal release --lease-file {}` to end its lease, or pass another path",
            named(path),
            path.display()
        )),
        _ => Failure::invalid(format!("cannot open {}: {error}", named(path))),
    };
    let file = options.open(path).map_err(|error| failed(&error))?;
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    let remedy = match metadata.permissions().mode() & OTHERS {
        _ if !metadata.is_file() => {
            return Err(Failure::invalid(format!("{} is no regular file: pass another path", named(path))));
        }
        0 => return Ok(file),
        _ if is_new => {
            fs::remove_file(path).ok();
            "pass a path on a file system that has permissions".into()
        }
        _ => format!("run chmod 600 {}", path.display()),
    };
    Err(Failure::invalid(format!("other users can read or write {}, which has a secret: {remedy}", named(path))))
}

/// Returns the name of a lease file in messages.
fn named(path: &Path) -> String {
    format!("lease file {}", path.display())
}

/// A lease file that is being written. Dropping it removes it, unless it is kept.
pub(super) struct LeaseFile {
    path: PathBuf,
    file: File,
    location: Location,
    is_kept: bool,
}

impl LeaseFile {
    /// Creates the file of a lease that is not granted yet. Fails if the file exists: it can have another lease.
    pub(super) fn create(path: &Path, connection: &Connection) -> Result<Self, Failure> {
        let location = Location::of(connection)?;
        let file = open(path, OpenOptions::new().write(true).create_new(true).mode(0o600), true)?;
        Ok(Self { path: path.to_owned(), file, location, is_kept: false })
    }

    /// Writes the lease, which was granted.
    pub(super) fn write(&mut self, lease: &Lease) -> Result<(), Failure> {
        let (key, lease_id, token) = (lease.key().as_str().to_owned(), lease.id().expose(), lease.token().get());
        let content = Content { version: VERSION, location: self.location.clone(), key, lease_id, token };
        let written = serde_json::to_string(&content).map_err(io::Error::from).and_then(|line| {
            writeln!(self.file, "{line}")?;
            // Some file systems report only now that there is no space.
            self.file.sync_all()
        });
        let failed =
            |error| Failure::invalid(format!("cannot write {}, so the key is not held: {error}", named(&self.path)));
        written.map_err(failed)
    }

    /// Keeps the file.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for LeaseFile {
    fn drop(&mut self) {
        if !self.is_kept {
            fs::remove_file(&self.path).ok();
        }
    }
}

/// A lease that an earlier `acquire` has left.
pub(super) struct LeftLease {
    path: PathBuf,
    key: Key,
    id: LeaseId,
    token: FencingToken,
}

impl LeftLease {
    /// Reads the lease, and checks that it is where this connection keeps leases.
    pub(super) fn read(path: &Path, connection: &Connection) -> Result<Self, Failure> {
        // Otherwise the opening of a named pipe waits for a writer.
        let file = open(path, OpenOptions::new().read(true).custom_flags(O_NONBLOCK), false)?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| {
            Failure::invalid(format!("cannot read {}: {error}: check that the file can be read", named(path)))
        })?;
        let Content { location, key, lease_id, token, .. } = parse(&bytes, path)?;
        let is_wrong = || foreign(path);
        let key: Key = key.parse().map_err(|_| is_wrong())?;
        let id = lease_id.parse().map_err(|_| is_wrong())?;
        let token = FencingToken::new(token).map_err(|_| is_wrong())?;
        let here = Location::of(connection)?;
        if location != here {
            return Err(Failure::invalid(format!(
                "the lease of {} is in {location}, and the options name {here}: pass the connection options of `mongoseal acquire`",
                named(path)
            )));
        }
        Ok(Self { path: path.to_owned(), key, id, token })
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    /// Takes the lease up, without refreshes in the background.
    pub(super) fn resume(&self, seal: &Mongoseal) -> Resume {
        seal.resume(&self.key, self.id, self.token).without_refresh()
    }

    /// Removes the file, after the lease has ended.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path) {
            print_warning(&format!("cannot remove {}: {error}: remove it, its lease has ended", named(&self.path)));
        }
    }
}

/// Parses the content of a lease file. The parser's errors quote parts of it, so they are left out.
fn parse(bytes: &[u8], path: &Path) -> Result<Content, Failure> {
    let place = named(path);
    if bytes.is_empty() {
        return Err(Failure::invalid(format!(
            "{place} is empty: wait until the `mongoseal acquire` that writes it has ended; if it was killed, remove the file, and the key is free after its ttl"
        )));
    }
    let is_cut = |error: &serde_json::Error| error.classify() == Category::Eof;
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| {
        if is_cut(&error) {
            Failure::invalid(format!("{place} is cut off: remove it; its lease ends with its ttl"))
        } else {
            foreign(path)
        }
    })?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(VERSION) => serde_json::from_value(value).map_err(|_| foreign(path)),
        Some(version) if version > VERSION => Err(Failure::invalid(format!(
            "{place} has the format version {version}, and this program reads {VERSION}: upgrade mongoseal"
        ))),
        _ => Err(foreign(path)),
    }
}

fn foreign(path: &Path) -> Failure {
    Failure::invalid(format!("{} has no lease: pass the file that `mongoseal acquire` has written", named(path)))
}

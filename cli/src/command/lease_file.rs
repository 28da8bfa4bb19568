//! The lease file, by which `refresh` and `release` find the lease that `acquire` has left: its form, and how it is
//! written and read.
//!
//! Invariants: only this user can read the file. No error quotes its content. The file exists, empty, before the key is
//! acquired. A lease that cannot be written is released.

use std::{
    fmt,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, IsTerminal, Read, Seek, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::PathBuf,
};

use mongoseal::{FencingToken, Key, Lease, LeaseId, Mongoseal, action::Resume};
use nix::libc::O_NONBLOCK;
use serde::{Deserialize, Serialize};
use serde_json::error::Category;

use crate::{
    arguments::LeasePlace,
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
/// The smallest descriptor that `acquire` accepts: the smaller ones have the other output.
const MIN_WRITTEN: u32 = 3;

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

/// A lease file or descriptor, as messages name it.
#[derive(Clone, Debug)]
enum Place {
    Path(PathBuf),
    Descriptor(u32),
}

impl Place {
    fn of(place: &LeasePlace) -> Result<Self, Failure> {
        match (&place.lease_file, place.lease_fd) {
            (Some(path), None) => Ok(Self::Path(path.clone())),
            (None, Some(number)) => Ok(Self::Descriptor(number)),
            _ => Err(Failure::invalid("there is no place for the lease: pass --lease-file or --lease-fd")),
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Descriptor(number) => format!("/dev/fd/{number}").into(),
        }
    }

    /// Opens it, and refuses what can have no lease: for example a file that other users can read.
    fn open(&self, options: &OpenOptions, is_new: bool) -> Result<File, Failure> {
        let failed = |error: &io::Error| match (self, error.kind()) {
            (Self::Path(_), io::ErrorKind::NotFound) if is_new => {
                Failure::invalid(format!("there is no folder for {self}: create the folder, or pass another path"))
            }
            (Self::Path(_), io::ErrorKind::NotFound) => Failure::invalid(format!(
                "there is no {self}: pass the path that `mongoseal acquire` has written, or acquire the key"
            )),
            (Self::Path(path), io::ErrorKind::AlreadyExists) => Failure::invalid(format!(
                "{self} exists: run `mongoseal release --lease-file {}` to end its lease, or pass another path",
                path.display()
            )),
            (Self::Path(_), _) => Failure::invalid(format!("cannot open {self}: {error}")),
            (Self::Descriptor(_), _) => Failure::invalid(format!(
                "cannot open {self}: {error}: pass the number of an open pipe or file, for example with 3>file"
            )),
        };
        let file = options.open(self.path()).map_err(|error| failed(&error))?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        match self.refusal(&file, &metadata, is_new) {
            None => Ok(file),
            Some(message) => {
                if let (Self::Path(path), true) = (self, is_new) {
                    fs::remove_file(path).ok();
                }
                Err(Failure::invalid(message))
            }
        }
    }

    /// Returns why it can have no lease, and what to do, if that is so.
    fn refusal(&self, file: &File, metadata: &Metadata, is_new: bool) -> Option<String> {
        if file.is_terminal() {
            return Some(format!("{self} is a terminal, and the lease is a secret: pass a pipe or a file"));
        }
        if !metadata.is_file() {
            let is_path = matches!(self, Self::Path(_));
            return is_path.then(|| format!("{self} is no regular file: pass a descriptor by --lease-fd"));
        }
        let remedy = match self {
            _ if metadata.permissions().mode() & OTHERS == 0 => return None,
            Self::Path(_) if is_new => "pass a path on a file system that has permissions".into(),
            Self::Path(path) => format!("run chmod 600 {}", path.display()),
            Self::Descriptor(_) => "run chmod 600 on it, or create it under umask 077".into(),
        };
        Some(format!("other users can read or write {self}, which has a secret: {remedy}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "lease file {}", path.display()),
            Self::Descriptor(number) => write!(f, "descriptor {number} of --lease-fd"),
        }
    }
}

/// A lease file that is being written. Dropping it removes it, unless it is kept.
pub(super) struct LeaseFile {
    place: Place,
    file: File,
    location: Location,
    is_regular: bool,
    is_kept: bool,
}

impl LeaseFile {
    /// Creates the file of a lease that is not granted yet. Fails if the file exists: it can have another lease.
    pub(super) fn create(place: &LeasePlace, connection: &Connection) -> Result<Self, Failure> {
        let place = Place::of(place)?;
        let location = Location::of(connection)?;
        let mut options = OpenOptions::new();
        options.write(true);
        if let Place::Descriptor(number) = place {
            if number < MIN_WRITTEN {
                return Err(Failure::invalid(format!(
                    "{place} has other output: pass {MIN_WRITTEN} or more, for example with {MIN_WRITTEN}>file"
                )));
            }
        } else {
            options.create_new(true).mode(0o600);
        }
        let file = place.open(&options, true)?;
        let metadata = file.metadata()?;
        if metadata.len() > 0 {
            return Err(Failure::invalid(format!("{place} is a file with content: pass an empty file or a pipe")));
        }
        Ok(Self { place, file, location, is_regular: metadata.is_file(), is_kept: false })
    }

    /// Writes the lease, which was granted.
    pub(super) fn write(&mut self, lease: &Lease) -> Result<(), Failure> {
        let (key, lease_id, token) = (lease.key().as_str().to_owned(), lease.id().expose(), lease.token().get());
        let content = Content { version: VERSION, location: self.location.clone(), key, lease_id, token };
        let written = serde_json::to_string(&content).map_err(io::Error::from).and_then(|line| {
            writeln!(self.file, "{line}")?;
            // Some file systems report only now that there is no space.
            if self.is_regular { self.file.sync_all() } else { Ok(()) }
        });
        written
            .map_err(|error| Failure::invalid(format!("cannot write {}, so the key is not held: {error}", self.place)))
    }

    /// Keeps the file.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for LeaseFile {
    fn drop(&mut self) {
        if !self.is_kept && self.is_regular {
            match &self.place {
                Place::Path(path) => fs::remove_file(path).ok(),
                Place::Descriptor(_) => self.file.set_len(0).ok(),
            };
        }
    }
}

/// A lease that an earlier `acquire` has left.
pub(super) struct LeftLease {
    place: Place,
    key: Key,
    id: LeaseId,
    token: FencingToken,
}

impl LeftLease {
    /// Reads the lease, and checks that it is where this connection keeps leases.
    pub(super) fn read(place: &LeasePlace, connection: &Connection) -> Result<Self, Failure> {
        let place = Place::of(place)?;
        let mut options = OpenOptions::new();
        options.read(true);
        if matches!(place, Place::Path(_)) {
            // Otherwise the opening of a named pipe waits for a writer.
            options.custom_flags(O_NONBLOCK);
        }
        let mut file = place.open(&options, false)?;
        let mut bytes = Vec::new();
        // A descriptor can be at its end, because an earlier command has read it. A pipe has no beginning to return to.
        file.rewind().ok();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| {
            Failure::invalid(format!("cannot read {place}: {error}: check that the file can be read"))
        })?;
        let Content { location, key, lease_id, token, .. } = parse(&bytes, &place)?;
        let is_wrong = || foreign(&place);
        let key: Key = key.parse().map_err(|_| is_wrong())?;
        let id = lease_id.parse().map_err(|_| is_wrong())?;
        let token = FencingToken::new(token).map_err(|_| is_wrong())?;
        let here = Location::of(connection)?;
        if location != here {
            return Err(Failure::invalid(format!(
                "the lease of {place} is in {location}, and the options name {here}: pass the connection options of `mongoseal acquire`"
            )));
        }
        Ok(Self { place, key, id, token })
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

    /// Removes the file, after the lease has ended. A descriptor stays as it is.
    pub(super) fn remove(&self) {
        if let Place::Path(path) = &self.place
            && let Err(error) = fs::remove_file(path)
        {
            print_warning(&format!("cannot remove {}: {error}: remove it, its lease has ended", self.place));
        }
    }
}

/// Parses the content of a lease file. The parser's errors quote parts of it, so they are left out.
fn parse(bytes: &[u8], place: &Place) -> Result<Content, Failure> {
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
            foreign(place)
        }
    })?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(VERSION) => serde_json::from_value(value).map_err(|_| foreign(place)),
        Some(version) if version > VERSION => Err(Failure::invalid(format!(
            "{place} has the format version {version}, and this program reads {VERSION}: upgrade mongoseal"
        ))),
        _ => Err(foreign(place)),
    }
}

fn foreign(place: &Place) -> Failure {
    Failure::invalid(format!("{place} has no lease: pass the file or descriptor that `mongoseal acquire` has written"))
}

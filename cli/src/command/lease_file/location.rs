//! Where the leases of a connection are, as a lease file names it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    command::driver,
    connection::{Connection, Product, Target},
    exit_status::Failure,
};

/// A place of leases. It does not name the servers: they have several addresses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Location {
    store: Product,
    /// On Redis its number.
    database: String,
    /// On Redis the prefix of the keys.
    collection: String,
}

impl Location {
    pub(super) fn of(connection: &Connection) -> Result<Self, Failure> {
        let Target { uri, product } = connection.target()?;
        let database = match product {
            #[cfg(feature = "redis")]
            Product::Redis => crate::command::redis::database_number(&uri).to_string(),
            _ => driver::database_name(&uri, connection),
        };
        Ok(Self { store: product, database, collection: connection.collection().to_owned() })
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

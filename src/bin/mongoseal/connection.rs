//! Where the leases are.

use std::time::Duration;

use clap::Args;
use mongoseal::{Builder, Mongoseal};

use crate::{status::Failure, time};

/// Said by each command that asks MongoDB.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Connection string of the replica set
    #[arg(long, global = true, env = "MONGODB_URI", hide_env_values = true, value_name = "URI")]
    uri: Option<String>,
    /// Database of the leases; the one in the connection string, or `mongoseal`, unless it is said
    #[arg(long, global = true, env = "MONGOSEAL_DB", value_name = "NAME")]
    db: Option<String>,
    /// Collection of the leases
    #[arg(long, global = true, env = "MONGOSEAL_COLLECTION", default_value = "mongoseal", value_name = "NAME")]
    collection: String,
    /// How long one request is tried before MongoDB counts as unavailable
    #[arg(long, global = true, default_value = "10s", value_parser = time::parse, value_name = "TIME")]
    timeout: Duration,
    /// How long the records of idle keys are kept, as all users of the collection must agree
    #[arg(long, global = true, default_value = "24h", value_parser = time::parse, value_name = "TIME")]
    retention: Duration,
}

impl Connection {
    /// The settings that every command shares.
    pub(crate) fn builder(&self) -> Builder {
        let builder =
            Mongoseal::builder().collection(&self.collection).operation_timeout(self.timeout).retention(self.retention);
        match &self.db {
            Some(db) => builder.database(db),
            None => builder,
        }
    }

    pub(crate) async fn open(&self) -> Result<Mongoseal, Failure> {
        self.open_with(self.builder()).await
    }

    /// Opens it with further settings.
    pub(crate) async fn open_with(&self, builder: Builder) -> Result<Mongoseal, Failure> {
        Ok(builder.connect(self.uri()?).await?)
    }

    pub(crate) fn uri(&self) -> Result<&str, Failure> {
        self.uri.as_deref().ok_or_else(|| {
            Failure::invalid(
                "no replica set was named: give --uri, or MONGODB_URI in the environment, which others cannot read",
            )
        })
    }

    /// As it was said.
    pub(crate) fn db(&self) -> Option<&str> {
        self.db.as_deref()
    }

    pub(crate) fn collection(&self) -> &str {
        &self.collection
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn retention(&self) -> Duration {
        self.retention
    }
}

//! The connection options, and how they become a handle.

mod product;
mod reach;
mod uri;

use std::{path::PathBuf, pin::pin, sync::OnceLock, time::Duration};

use clap::{Args, builder::NonEmptyStringValueParser};
use mongoseal::{Builder, Mongoseal};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

pub(crate) use self::{
    product::Product,
    uri::{HIDDEN_URI, hide_uri},
};
use crate::{exit_status::Failure, time, ui::message::print_note};

/// The variable of the connection string, and the variable that is read if that is unset.
pub(crate) const URI_VARIABLES: [&str; 2] = ["MONGOSEAL_URI", "MONGODB_URI"];

/// The wait for the server after which the wait is reported.
const PATIENCE: Duration = Duration::from_secs(1);

/// The options of all commands that connect to a server.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
#[allow(clippy::unsafe_derive_deserialize, reason = "the unsafe code is that of `tokio::select`")]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Connection string of MongoDB or Redis
    ///
    /// For example `mongodb://db0,db1,db2/app?replicaSet=rs0`, or `redis://redis0:6379/0`. Environment: `MONGODB_URI`, or
    /// `MONGOSEAL_URI`, which precedes it. Other users cannot read variables. They can read arguments for some milliseconds.
    #[arg(long, global = true, env = URI_VARIABLES[0], hide_env = true, value_name = "URI")]
    uri: Option<String>,
    /// File with the connection string
    ///
    /// It precedes `MONGODB_URI` and `MONGOSEAL_URI`.
    #[arg(long, global = true, value_name = "PATH")]
    uri_file: Option<PathBuf>,
    /// What the file contains. A pipe can be read only once.
    #[arg(skip)]
    #[serde(skip)]
    read_uri: OnceLock<String>,
    /// Database; default: that of the URI, or mongoseal
    ///
    /// Only on MongoDB. Environment: `MONGOSEAL_DB`.
    #[arg(
        long,
        global = true,
        env = "MONGOSEAL_DB",
        hide_env = true,
        value_parser = NonEmptyStringValueParser::new(),
        value_name = "NAME"
    )]
    pub(crate) db: Option<String>,
    /// Lease collection; on Redis: prefix of the keys
    ///
    /// Environment: `MONGOSEAL_COLLECTION`.
    #[arg(
        long,
        global = true,
        env = "MONGOSEAL_COLLECTION",
        hide_env = true,
        default_value = "mongoseal",
        value_name = "NAME"
    )]
    pub(crate) collection: String,
    /// Time limit of a request to the server
    ///
    /// After this time the server counts as unavailable. For example 30s.
    #[arg(long, global = true, default_value = "10s", value_parser = time::parse, value_name = "TIME")]
    pub(crate) timeout: Duration,
    /// Retention of idle records
    ///
    /// The server deletes idle records after this time. It must be the same in all programs that use the collection.
    /// Environment: `MONGOSEAL_RETENTION`.
    #[arg(
        long,
        global = true,
        env = "MONGOSEAL_RETENTION",
        hide_env = true,
        hide_short_help = true,
        default_value = "24h",
        value_parser = time::parse,
        value_name = "TIME"
    )]
    pub(crate) retention: Duration,
    /// Accept a sharded cluster
    ///
    /// Only on MongoDB. On a sharded cluster only expiry is promised.
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) allow_sharded: bool,
    /// Redis replicas that acknowledge each write
    ///
    /// If fewer do so in time, the request is not confirmed. Default: none.
    #[arg(long, global = true, hide_short_help = true, value_name = "N")]
    redis_replicas: Option<u32>,
}

impl Connection {
    /// Returns a builder with the settings of these options.
    pub(crate) fn builder(&self) -> Builder {
        let builder =
            Mongoseal::builder().collection(&self.collection).operation_timeout(self.timeout).retention(self.retention);
        let builder = if self.allow_sharded { builder.allow_sharded() } else { builder };
        match &self.db {
            Some(db) => builder.database(db),
            None => builder,
        }
    }

    /// Returns the same options with the connection string, wherever it came from.
    pub(crate) fn resolved(&self) -> Result<Self, Failure> {
        Ok(Self { uri: Some(self.uri()?), uri_file: None, ..self.clone() })
    }

    /// Returns the connection string, and the product that it is for. Fails if an option is for the other product.
    pub(crate) fn target(&self) -> Result<(String, Product), Failure> {
        let uri = self.uri()?;
        let product = Product::of(&uri);
        let misfit = match product {
            Product::Redis if cfg!(not(feature = "redis")) => {
                "this program was built without Redis: install mongoseal-cli with its feature `redis-rustls`, or connect to MongoDB"
            }
            Product::Redis if self.db.is_some() => {
                "--db and MONGOSEAL_DB are for MongoDB: leave them out, and put the number of the Redis database into the connection string, for example redis://redis0:6379/0"
            }
            Product::Redis if self.allow_sharded => "--allow-sharded is for MongoDB: leave it out on Redis",
            Product::MongoDb if self.redis_replicas.is_some() => {
                "--redis-replicas is for Redis: leave it out on MongoDB, where a majority confirms each write"
            }
            Product::Redis | Product::MongoDb => return Ok((uri, product)),
        };
        Err(Failure::invalid(misfit))
    }

    /// Fails on Redis, before anything is sent. `why`: a clause with the reason, and what to do.
    pub(crate) fn require_mongodb(&self, command: &str, why: &str) -> Result<(), Failure> {
        match self.target()? {
            (_, Product::MongoDb) => Ok(()),
            (_, Product::Redis) => Err(Failure::invalid(format!("`mongoseal {command}` does not run on Redis, {why}"))),
        }
    }

    /// Connects, and checks the deployment.
    pub(crate) async fn open(&self) -> Result<Mongoseal, Failure> {
        self.open_with(self.builder()).await
    }

    /// Connects, runs `work` with the handle, and shuts the handle down.
    pub(crate) async fn with_handle<T>(&self, work: impl AsyncFnOnce(&Mongoseal) -> T) -> Result<T, Failure> {
        let seal = self.open().await?;
        let done = work(&seal).await;
        seal.shutdown().await;
        Ok(done)
    }

    /// Connects with the settings of `builder`, and checks the deployment. Reports that the server does not answer.
    pub(crate) async fn open_with(&self, builder: Builder) -> Result<Mongoseal, Failure> {
        let (uri, product) = self.target()?;
        let connecting = async {
            match product {
                #[cfg(feature = "redis")]
                Product::Redis => {
                    let redis = mongoseal_redis::RedisBackend::new(uri.as_str())?.with_replicas(self.redis_replicas());
                    builder.connect_to(redis).await
                }
                #[cfg(not(feature = "redis"))]
                Product::Redis => unreachable!("`target` refuses it"),
                Product::MongoDb => builder.connect(uri.as_str()).await,
            }
        };
        Ok(self.report_wait(&uri, product, connecting).await?)
    }

    /// Waits for `connected`, and reports that the server does not answer, with the cause.
    async fn report_wait<T>(&self, uri: &str, product: Product, connected: impl Future<Output = T>) -> T {
        let mut connected = pin!(connected);
        let causes = async {
            sleep(PATIENCE).await;
            reach::causes(uri, product).await
        };
        let causes = tokio::select! {
            biased;
            done = &mut connected => return done,
            causes = causes => causes,
        };
        let (elapsed, limit) = (time::brief(PATIENCE), time::brief(self.timeout));
        let causes = if causes.is_empty() { causes } else { format!(": {causes}") };
        print_note(&format!("{product} has not answered for {elapsed}{causes}; waiting up to {limit} (--timeout)"));
        connected.await
    }

    /// The number of replicas that must acknowledge each write.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_replicas(&self) -> u32 {
        self.redis_replicas.unwrap_or_default()
    }
}

//! A real server under a program: in real time, and in a collection of its own.

use std::sync::Arc;

use mongodb::{Collection, bson::Document};
use mongoseal::{
    Builder, Mongoseal, Result,
    store::{BoxFuture, Store},
};

use crate::{choices::Choice, run::Place};

/// Opens a handle with a client of its own.
type Connect = dyn Fn(Choice, Builder) -> BoxFuture<Result<Mongoseal>> + Send + Sync;

/// The collection of a program.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) place: Place,
    /// Makes the store of a handle.
    pub(crate) open: Arc<dyn Fn() -> Arc<dyn Store> + Send + Sync>,
    pub(crate) connect: Arc<Connect>,
    /// What is written under leases, by the clients of the processes and by the judge's. Redis has none.
    pub(crate) documents: Option<[Collection<Document>; 2]>,
    /// A store by which the rules look at records. No fault is for it.
    pub(crate) judge: Arc<dyn Store>,
}

//! The scratch collection.

use std::sync::Arc;

use mongoseal::store::Store;

use super::{SCRATCH, Scratch};
use crate::{
    command::{
        driver::{Deployment, Refusal, doc},
        finding::Finding,
    },
    connection::Connection,
};

const NAMESPACE_EXISTS: i32 = 48;

/// A collection in the database of the leases.
pub(in super::super) struct ScratchCollection<'a> {
    pub(in super::super) deployment: &'a Deployment,
    pub(in super::super) connection: &'a Connection,
    pub(in super::super) name: String,
}

impl ScratchCollection<'_> {
    fn namespace(&self) -> String {
        format!("{}.{}", self.deployment.database(), self.name)
    }
}

impl Scratch for ScratchCollection<'_> {
    async fn create(self) -> Result<Self, Finding> {
        let namespace = self.namespace();
        // MongoDB 7.0 and routers report success if there is a collection with the same options. No other collection
        // has this validator, and the server does not apply it.
        let create = doc! {
            "create": &self.name,
            "validator": { "_id": { "$ne": super::name(&crate::arguments::Doctor::default()) } },
            "validationLevel": "off",
            "writeConcern": { "w": "majority", "wtimeout": 10_000 },
        };
        let fail = |found: String, advice: String| Err(Finding::fail(SCRATCH, found, advice));
        match self.deployment.run(create).await {
            Ok(_) => Ok(self),
            Err(Refusal::Server(NAMESPACE_EXISTS, _)) => fail(
                format!("the collection {namespace} exists, and is left as it is"),
                "pass another name with --scratch".into(),
            ),
            Err(Refusal::Unauthorized) => fail(
                format!("the user may not create the collection {namespace}"),
                format!(
                    "grant createCollection and dropCollection on it, or the role readWrite on {}",
                    self.deployment.database()
                ),
            ),
            Err(Refusal::Server(_, message)) => fail(
                format!("cannot create the collection {namespace} ({message})"),
                "pass another name with --scratch, or another database with --db".into(),
            ),
            Err(refusal) => fail(
                format!("cannot create the collection {namespace} ({refusal})"),
                "retry, and drop the collection if it exists".into(),
            ),
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.deployment.store(&self.name, self.connection)
    }

    async fn remove(&self) -> Finding {
        let drop = doc! { "drop": &self.name, "writeConcern": { "w": "majority", "wtimeout": 10_000 } };
        match self.deployment.run(drop).await {
            Ok(_) | Err(Refusal::NoCollection) => {
                Finding::pass(SCRATCH, format!("{} was created, and is dropped", self.namespace()))
            }
            Err(Refusal::Unauthorized) => self.left("the user lacks dropCollection"),
            Err(refusal) => self.left(&refusal.to_string()),
        }
    }

    fn left(&self, why: &str) -> Finding {
        let drop = format!("db.getCollection({:?}).drop()", self.name);
        let advice = format!("an operator can run {drop} in the database {}", self.deployment.database());
        Finding::fail(SCRATCH, format!("cannot drop {}, which may be left ({why})", self.namespace()), advice)
    }
}

//! The scratch collection: created by this program, dropped at its end.

use mongoseal::store::HandleId;

use crate::{
    command::{
        driver::{Deployment, Refusal, doc},
        finding::Finding,
    },
    exit_status::{Failure, Status},
};

/// The first part of the name, unless the caller names the collection. Random digits follow.
const PREFIX: &str = "mongoseal.conform.";
const CHECK: &str = "scratch";
const NAMESPACE_EXISTS: i32 = 48;

/// A collection that this program has created.
pub(super) struct Scratch {
    pub(super) collection: String,
    /// The names of the database and of the collection.
    pub(super) namespace: String,
}

impl Scratch {
    /// Creates the collection. Fails if it exists.
    pub(super) async fn create(deployment: &Deployment, name: Option<String>) -> Result<Self, Failure> {
        let collection = name.unwrap_or_else(random_name);
        let namespace = format!("{}.{collection}", deployment.database());
        // MongoDB 7.0 and routers report success if there is a collection with the same options. No other collection
        // has this validator, and the server does not apply it.
        let create = doc! {
            "create": &collection,
            "validator": { "_id": { "$ne": random_name() } },
            "validationLevel": "off",
            "writeConcern": { "w": "majority", "wtimeout": 10_000 },
        };
        deployment.run(create).await.map_err(|refusal| match refusal {
            Refusal::Server(NAMESPACE_EXISTS, _) => Failure::invalid(format!(
                "the collection {namespace} exists, and is left as it is: pass another name with --scratch"
            )),
            Refusal::Unauthorized => Failure::invalid(format!(
                "the user may not create the collection {namespace}: grant createCollection and dropCollection on it, or the role readWrite on {}",
                deployment.database()
            )),
            Refusal::Server(..) => Failure::invalid(format!(
                "cannot create the collection {namespace} ({refusal}): pass another name with --scratch, or another database with --db"
            )),
            other => Failure::new(
                Status::UNAVAILABLE,
                format!("cannot create the collection {namespace} ({other}): retry, and drop the collection if it exists"),
            ),
        })?;
        Ok(Self { collection, namespace })
    }

    /// Drops the collection, and reports whether that succeeded.
    pub(super) async fn remove(&self, deployment: &Deployment) -> Finding {
        let drop = doc! { "drop": &self.collection, "writeConcern": { "w": "majority", "wtimeout": 10_000 } };
        match deployment.run(drop).await {
            Ok(_) | Err(Refusal::NoCollection) => {
                Finding::pass(CHECK, format!("{} was created, and is dropped", self.namespace))
            }
            Err(Refusal::Unauthorized) => self.left(deployment, "the user lacks dropCollection"),
            Err(refusal) => self.left(deployment, &refusal.to_string()),
        }
    }

    /// Reports that the collection may not be dropped.
    pub(super) fn left(&self, deployment: &Deployment, why: &str) -> Finding {
        let Self { collection, namespace } = self;
        let drop = format!("db.getCollection({collection:?}).drop()");
        let advice = format!("an operator can run {drop} in the database {}", deployment.database());
        Finding::fail(CHECK, format!("cannot drop {namespace}, which may be left ({why})"), advice)
    }
}

/// Returns a name with random decimal digits.
pub(super) fn random_name() -> String {
    let random = u64::from_str_radix(&HandleId::random().to_string(), 16).unwrap_or_default();
    format!("{PREFIX}{}", random % 1_000_000_000)
}

//! The scratch collection.

use std::sync::Arc;

use mongoseal::store::Store;
use tokio::time::{sleep, timeout};

use super::{QUIET, REMOVAL_TIMEOUT, SCRATCH, Scratch};
use crate::{
    command::{
        driver::{Answer, Deployment, Refusal, doc, first_batch},
        finding::Finding,
    },
    connection::Connection,
};

const NAMESPACE_EXISTS: i32 = 48;
/// In milliseconds. The driver waits longer, so that the server's error is the first.
const WTIMEOUT: i32 = 8_000;

/// A collection in the database of the leases.
struct ScratchCollection<'a> {
    deployment: Deployment,
    connection: &'a Connection,
    name: String,
}

/// Creates the collection. Fails if there is one with the name.
pub(super) async fn create<'a>(
    uri: &str,
    connection: &'a Connection,
    name: String,
) -> Result<impl Scratch + use<'a>, Finding> {
    let fail = |found: String, advice: &str| Err(Finding::fail(SCRATCH, found, advice));
    let deployment = match Deployment::open(uri, connection, "doctor").await {
        Ok(deployment) => deployment,
        Err(refusal) => return fail(format!("cannot connect ({refusal})"), "retry"),
    };
    // MongoDB 7.0 and routers report success if there is a collection with the same options. No other collection
    // has this validator, and the server does not apply it.
    let create = doc! {
        "create": &name,
        "validator": { "_id": { "$ne": super::random_name() } },
        "validationLevel": "off",
        "writeConcern": { "w": "majority", "wtimeout": WTIMEOUT },
    };
    let created = deployment.run(create).await;
    let place = ScratchCollection { deployment, connection, name };
    let namespace = place.namespace();
    match created {
        Ok(_) => Ok(place),
        Err(Refusal::Server(NAMESPACE_EXISTS, _)) => {
            let found = format!("the collection {namespace} exists, and is left as it is");
            fail(found, "pass another name with --scratch")
        }
        Err(Refusal::Unauthorized) => {
            let found = format!("the user may not create the collection {namespace}");
            let database = place.deployment.database();
            fail(
                found,
                &format!("grant createCollection and dropCollection on it, or the role readWrite on {database}"),
            )
        }
        Err(Refusal::Server(_, message)) => fail(
            format!("cannot create the collection {namespace} ({message})"),
            "pass another name with --scratch, or another database with --db",
        ),
        Err(refusal) => {
            let advice = "retry, and drop the collection if it exists";
            fail(format!("cannot create the collection {namespace} ({refusal})"), advice)
        }
    }
}

impl ScratchCollection<'_> {
    fn namespace(&self) -> String {
        format!("{}.{}", self.deployment.database(), self.name)
    }

    /// Drops the collection until no late request of a requirement has created it again.
    async fn drop_for_good(&self) -> Answer<()> {
        let list = doc! {
            "listCollections": 1, "filter": { "name": &self.name }, "nameOnly": true, "authorizedCollections": true,
        };
        loop {
            let drop = doc! { "drop": &self.name, "writeConcern": { "w": "majority", "wtimeout": WTIMEOUT } };
            match self.deployment.run(drop).await {
                Ok(_) | Err(Refusal::NoCollection) => {}
                Err(refusal) => return Err(refusal),
            }
            sleep(QUIET).await;
            if first_batch(&self.deployment.run(list.clone()).await?).next().is_none() {
                return Ok(());
            }
        }
    }
}

impl Scratch for ScratchCollection<'_> {
    fn store(&self) -> Arc<dyn Store> {
        self.deployment.store(&self.name, self.connection)
    }

    async fn remove(&self) -> Finding {
        match timeout(REMOVAL_TIMEOUT, self.drop_for_good()).await {
            Ok(Ok(())) => Finding::pass(SCRATCH, format!("{} was created, and is dropped", self.namespace())),
            Ok(Err(Refusal::Unauthorized)) => self.left("the user lacks dropCollection"),
            Ok(Err(refusal)) => self.left(&refusal.to_string()),
            Err(_elapsed) => self.left("another program creates it again"),
        }
    }

    fn left(&self, why: &str) -> Finding {
        let drop = format!("db.getCollection({:?}).drop()", self.name);
        let advice = format!("an operator can run {drop} in the database {}", self.deployment.database());
        Finding::fail(SCRATCH, format!("cannot drop {}, which may be left ({why})", self.namespace()), advice)
    }
}

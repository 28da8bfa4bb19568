//! The probes: each checks one behaviour of the server that the protocol of the library depends on.
//!
//! | file | probes |
//! |---|---|
//! | `writes.rs` | updates by a pipeline, the clocks in them, write concerns, transactions |
//! | `reads.rs` | linearizable and snapshot reads, change streams |
//! | `index.rs` | the TTL index |

mod index;
mod reads;
mod writes;

use std::{env, pin::Pin, sync::Arc};

pub(super) use index::{deletion, deletion_not_checked, insert_expired};

use mongoseal::store::{Deadline, Store};

use super::scratch::Scratch;
use crate::{
    command::{
        driver::{Deployment, Document, Refusal, doc},
        finding::Finding,
    },
    connection::Connection,
    exit_status::Failure,
};

/// What the probes use.
#[derive(Clone, Copy)]
pub(super) struct Lab<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) scratch: &'a Scratch,
    pub(super) connection: &'a Connection,
    pub(super) store: &'a Arc<dyn Store>,
}

/// Why a probe failed.
enum Unmet {
    /// The server or the driver refused a command.
    Refused(Refusal),
    /// The server did something else, or the library refused the deployment.
    Differs(String),
}

impl From<Refusal> for Unmet {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What a probe found.
type Probed = Result<String, Unmet>;

/// Fails a probe unless a condition holds.
fn ensure(holds: bool, otherwise: impl Into<String>) -> Result<(), Unmet> {
    if holds { Ok(()) } else { Err(Unmet::Differs(otherwise.into())) }
}

/// A behaviour of the server.
pub(super) struct Probe<'a> {
    pub(super) name: &'static str,
    /// The effect on leases if the server lacks it.
    otherwise: &'static str,
    /// The actions that the user needs.
    actions: &'static str,
    /// Whether all requirements of the suite need it.
    pub(super) is_vital: bool,
    run: Pin<Box<dyn Future<Output = Probed> + 'a>>,
}

impl Probe<'_> {
    /// Runs the probe.
    pub(super) async fn run(self, lab: Lab<'_>) -> Finding {
        let Self { name, otherwise, actions, run, .. } = self;
        match run.await {
            Ok(found) => Finding::pass(name, found),
            Err(Unmet::Refused(Refusal::Unauthorized)) => {
                let (namespace, database) = (&lab.scratch.namespace, lab.deployment.database());
                let advice = format!("grant {actions} on {namespace}, or the role readWrite on {database}");
                Finding::fail(name, format!("the user lacks a privilege, so {otherwise}"), advice)
            }
            Err(Unmet::Refused(refusal @ (Refusal::TooSlow | Refusal::Transient(..) | Refusal::Other(_)))) => {
                Finding::fail(name, format!("{refusal}, so the probe has no result"), "run mongoseal doctor, and retry")
            }
            Err(Unmet::Refused(refusal)) => {
                let refusal = refusal.to_string();
                Finding::fail(name, format!("{}, so {otherwise}", refusal.trim_end_matches('.')), REMEDY)
            }
            Err(Unmet::Differs(found)) => Finding::fail(name, format!("{found}, so {otherwise}"), REMEDY),
        }
    }
}

const REMEDY: &str = "use a replica set of MongoDB 6.0 or later";

const READ_AND_WRITE: &str = "find, insert and update";

/// Lists the probes. None of them is running yet.
pub(super) fn all(lab: Lab<'_>) -> Vec<Probe<'_>> {
    let vital = |name, otherwise, run| Probe { name, otherwise, actions: READ_AND_WRITE, is_vital: true, run };
    let other = |name, otherwise, actions, run| Probe { name, otherwise, actions, is_vital: false, run };
    vec![
        vital("update pipeline", "no lease can be granted", Box::pin(writes::pipeline(lab))),
        vital("clocks in an update", "no lease has a token or an end", Box::pin(writes::clocks(lab))),
        vital("clock projection", "no write can be confirmed", Box::pin(writes::projection(lab))),
        vital("constants", "texts of callers would be evaluated", Box::pin(writes::constants(lab))),
        vital("duplicate key", "foreign documents are not recognised", Box::pin(writes::duplicate_key(lab))),
        vital("majority write", "a failover can lose a lease", Box::pin(writes::majority(lab))),
        vital("linearizable read", "a loss cannot be confirmed", Box::pin(reads::linearizable(lab))),
        other(
            "write concern error",
            "an unconfirmed write would count as confirmed",
            READ_AND_WRITE,
            Box::pin(writes::concern_error(lab)),
        ),
        other("change count", "batches are not confirmed", READ_AND_WRITE, Box::pin(writes::change_count(lab))),
        other("snapshot read", "watches poll", "find", Box::pin(reads::snapshot(lab))),
        other(
            "change stream",
            "waiters and watches poll",
            "find and changeStream",
            Box::pin(reads::change_stream(lab)),
        ),
        other("resumed stream", "watches miss events", "find and changeStream", Box::pin(reads::resumed(lab))),
        other(
            "transaction",
            "a group is not refreshed at once, and no transaction runs under a lease",
            READ_AND_WRITE,
            Box::pin(writes::transaction(lab)),
        ),
        other("write conflict", "a transaction can overwrite a lease", READ_AND_WRITE, Box::pin(writes::conflict(lab))),
        other("TTL index", "idle records stay", "createIndex", Box::pin(index::ttl_index(lab))),
    ]
}

/// Checks what the server reports about itself.
pub(super) async fn server(deployment: &Deployment) -> Finding {
    let build = deployment.run_admin(doc! { "buildInfo": 1 }).await.unwrap_or_default();
    let version = version_of(&build).unwrap_or_else(|| "no version".to_owned());
    let wire = deployment.hello.get_i32("maxWireVersion").unwrap_or(0);
    let kind = match deployment.hello.get_str("setName") {
        _ if deployment.is_router() => "a router of a sharded cluster".to_owned(),
        Ok(name) => format!("a member of the replica set {name}"),
        Err(_) => "a standalone server".to_owned(),
    };
    Finding::pass("server", format!("{} reports {version}, wire version {wire}, and is {kind}", deployment.answering()))
}

/// The version of a server, its build and its platform.
fn version_of(build: &Document) -> Option<String> {
    let version = build.get_str("version").ok()?;
    let commit = build.get_str("gitVersion").unwrap_or("unknown");
    let environment = build.get_document("buildEnvironment").cloned().unwrap_or_default();
    let [os, arch] = ["target_os", "target_arch"].map(|part| environment.get_str(part).unwrap_or("unknown"));
    Some(format!("version {version}, build {commit}, for {os} {arch}"))
}

/// Checks whether the library accepts the deployment. It recognises other products, and says what they lack.
pub(super) async fn library(lab: Lab<'_>) -> Finding {
    let deadline = Deadline::after(lab.store.clock(), lab.connection.timeout);
    match lab.store.prepare(deadline).await {
        Ok(()) => {
            // The program has the version of the library.
            let (version, os, arch) = (env!("CARGO_PKG_VERSION"), env::consts::OS, env::consts::ARCH);
            Finding::pass("library", format!("mongoseal {version} for {os} {arch} accepts this deployment"))
        }
        Err(error) => Finding::refused("library", &Failure::from(error)),
    }
}

impl Lab<'_> {
    /// Builds a `findAndModify` of one document of the scratch collection, an upsert that returns the new document.
    fn upsert(self, query: Document, update: Vec<Document>) -> Document {
        doc! {
            "findAndModify": &self.scratch.collection,
            "query": query,
            "update": update,
            "upsert": true,
            "new": true,
            "writeConcern": { "w": "majority", "j": true, "wtimeout": 10_000 },
        }
    }

    /// Runs a `findAndModify`, and returns the document of its reply.
    async fn modify(self, command: Document) -> Result<Document, Unmet> {
        let reply = self.deployment.run(command).await?;
        reply.get_document("value").cloned().map_err(|_| Unmet::Differs("the reply has no document".into()))
    }
}

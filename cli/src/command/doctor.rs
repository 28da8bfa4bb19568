//! `mongoseal doctor`: checks whether a deployment is fit for leases.
//!
//! | file | checks |
//! |---|---|
//! | `deployment.rs` | the replica set, its version, its journal, its change streams |
//! | `collection.rs` | the TTL index, and documents that are not lease records |
//! | `privileges.rs` | the user's privileges |
//! | `times.rs` | clocks, round trips, commits |
//! | `records.rs` | judges the records of either store |
//! | `deep.rs`, `deep/` | the conformance suite, for `--deep` |
//! | `redis.rs`, `redis/` | a Redis server |

mod collection;
mod deep;
mod deployment;
mod privileges;
mod records;
#[cfg(feature = "redis")]
mod redis;
mod times;

use std::time::Duration;

use mongoseal::Mongoseal;

use super::{
    driver::{Deployment, doc},
    finding::{Finding, Report, Verdict},
};
use crate::{
    arguments::{Doctor, DoctorOutput},
    connection::{Connection, Product},
    exit_status::{Failure, Status},
};

pub(crate) async fn perform(connection: &Connection, options: Doctor) -> Result<Status, Failure> {
    let (uri, product) = connection.target()?;
    let mut report = match options.output {
        Some(DoctorOutput::Prometheus) if options.deep => {
            return Err(Failure::invalid("--deep prints no gauges: leave it out, or pass --json"));
        }
        Some(DoctorOutput::Prometheus) => {
            Report::of_gauges("mongoseal_doctor_check", "1: the check of mongoseal doctor has this verdict")
        }
        form => Report::new(options.json || form.is_some()),
    };
    let opened = connection.open().await;
    examine_all(&uri, connection, product, &opened, options.grace, &mut report).await?;
    match opened {
        Ok(seal) => {
            seal.shutdown().await;
            if options.deep {
                deep::perform(&uri, connection, product, &options, &mut report).await?;
            }
        }
        Err(_) if options.deep => report.add(&deep::skipped())?,
        Err(_) => {}
    }
    report.finish()
}

/// Examines the deployment, and reports why it could not be `opened`.
async fn examine_all(
    uri: &str,
    connection: &Connection,
    product: Product,
    opened: &Result<Mongoseal, Failure>,
    grace: Option<Duration>,
    report: &mut Report,
) -> Result<(), Failure> {
    if let Err(failure) = opened {
        if failure.status() == Status::UNAVAILABLE {
            return report.add(&Finding::refused("reachable", failure));
        }
        if let Some(name) = Deployment::misnamed_set(uri, connection).await {
            let found = format!("the replica set is called {name}");
            let advice = format!("write replicaSet={name} into the connection string");
            return report.add(&Finding::fail("reachable", found, advice));
        }
    }
    let seal = opened.as_ref().ok();
    let unreachable = match product {
        #[cfg(feature = "redis")]
        Product::Redis => redis::examine(uri, connection, seal, grace, report).await?,
        _ => examine(uri, connection, seal, grace, report).await?,
    };
    match (unreachable, opened) {
        // The library's message is better than the driver's.
        (Some(_), Err(failure)) => report.add(&Finding::refused("reachable", failure)),
        (Some(error), Ok(_)) => report.add(&Finding::fail("reachable", error, "retry")),
        // The library refuses the deployment for a reason that no check covers.
        (None, Err(failure)) if report.worst != Verdict::Fail => report.add(&Finding::refused("library", failure)),
        (None, _) => Ok(()),
    }
}

/// Examines a deployment of MongoDB. If the connection of the checks cannot be opened, returns why.
async fn examine(
    uri: &str,
    connection: &Connection,
    seal: Option<&Mongoseal>,
    grace: Option<Duration>,
    report: &mut Report,
) -> Result<Option<String>, Failure> {
    let deployment = match Deployment::open(uri, connection, "doctor").await {
        Ok(deployment) => deployment,
        Err(refusal) => return Ok(Some(refusal.to_string())),
    };
    let examined = check(&deployment, seal, connection, grace, report).await;
    deployment.close().await;
    examined.map(|()| None)
}

async fn check(
    deployment: &Deployment,
    seal: Option<&Mongoseal>,
    connection: &Connection,
    grace: Option<Duration>,
    report: &mut Report,
) -> Result<(), Failure> {
    report.add(&Finding::pass("reachable", format!("{} answers", deployment.answering())))?;
    report.add(&deployment::replica_set(deployment, connection.allow_sharded).await)?;
    report.add(&deployment::version(deployment).await)?;
    if !deployment.is_standalone() {
        report.add(&deployment::journal(deployment).await)?;
    }
    report.add(&collection::index(deployment, connection.retention).await)?;
    report.add_all(&privileges::of_the_user(deployment).await)?;
    if !deployment.is_standalone() {
        report.add(&times::clocks(deployment, grace).await)?;
    }
    report.add(&times::round_trip("primary", async || deployment.run_admin(doc! { "ping": 1 }).await).await)?;
    if !deployment.is_standalone() {
        report.add(&deployment::change_stream(deployment).await)?;
    }
    // The other checks use the library, which refuses the deployment if a check above failed.
    let Some(seal) = seal else { return Ok(()) };
    report.add(&times::commit(seal, "a write that a majority confirms", "replica set").await)?;
    report.add(&collection::foreign(deployment).await)
}

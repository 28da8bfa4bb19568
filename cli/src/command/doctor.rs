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

use mongoseal::Mongoseal;

use self::deep::collection::ScratchCollection;
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
        Some(DoctorOutput::Prometheus) => {
            Report::of_gauges("mongoseal_doctor_check", "1: the check of mongoseal doctor has this verdict")
        }
        form => Report::new(options.json || form.is_some()),
    };
    let opened = connection.open().await;
    if let Err(failure) = &opened
        && failure.status() == Status::UNAVAILABLE
    {
        report.add(&Finding::refused("reachable", failure))?;
        return report.finish();
    }
    if opened.is_err()
        && let Some(name) = Deployment::misnamed_set(&uri, connection).await
    {
        let found = format!("the replica set is called {name}");
        report.add(&Finding::fail(
            "reachable",
            found,
            format!("write replicaSet={name} into the connection string"),
        ))?;
        return report.finish();
    }
    let examined = examine_all(&uri, connection, product, &opened, &options, &mut report).await;
    if let Ok(seal) = opened {
        seal.shutdown().await;
    }
    examined?;
    report.finish()
}

/// Examines the deployment, and reports why it could not be `opened`.
async fn examine_all(
    uri: &str,
    connection: &Connection,
    product: Product,
    opened: &Result<Mongoseal, Failure>,
    options: &Doctor,
    report: &mut Report,
) -> Result<(), Failure> {
    let seal = opened.as_ref().ok();
    let unreachable = match product {
        #[cfg(feature = "redis")]
        Product::Redis => redis::examine(uri, connection, seal, options, report).await?,
        _ => examine(uri, connection, seal, options, report).await?,
    };
    match (unreachable, opened) {
        // The library's message is better than the driver's.
        (Some(_), Err(failure)) => report.add(&Finding::refused("reachable", failure))?,
        (Some(error), Ok(_)) => report.add(&Finding::fail("reachable", error, "retry"))?,
        // The library refuses the deployment for a reason that no check covers.
        (None, Err(failure)) if report.worst != Verdict::Fail => report.add(&Finding::refused("library", failure))?,
        (None, _) => {}
    }
    Ok(())
}

/// Examines a deployment of MongoDB. If the connection of the checks cannot be opened, returns why.
async fn examine(
    uri: &str,
    connection: &Connection,
    seal: Option<&Mongoseal>,
    options: &Doctor,
    report: &mut Report,
) -> Result<Option<String>, Failure> {
    let deployment = match Deployment::open(uri, connection, "doctor").await {
        Ok(deployment) => deployment,
        Err(refusal) => return Ok(Some(refusal.to_string())),
    };
    let examined = check(&deployment, seal, connection, options, report).await;
    deployment.close().await;
    examined.map(|()| None)
}

async fn check(
    deployment: &Deployment,
    seal: Option<&Mongoseal>,
    connection: &Connection,
    options: &Doctor,
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
        report.add(&times::clocks(deployment, options.grace).await)?;
    }
    report.add(&times::round_trip("primary", async || deployment.run_admin(doc! { "ping": 1 }).await).await)?;
    if !deployment.is_standalone() {
        report.add(&deployment::change_stream(deployment).await)?;
    }
    // The other checks use the library, which refuses the deployment if a check above failed.
    let Some(seal) = seal else { return deep::skip(options, report) };
    report.add(&times::commit(seal, "a write that a majority confirms", "replica set").await)?;
    report.add(&collection::foreign(deployment).await)?;
    let scratch = ScratchCollection { deployment, connection, name: deep::name(options) };
    deep::perform(scratch, connection.timeout, options, report).await
}

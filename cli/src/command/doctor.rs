//! `mongoseal doctor`: checks whether a deployment is fit for leases.
//!
//! | file | checks |
//! |---|---|
//! | `deployment.rs` | the replica set, its version, its journal, its change streams |
//! | `collection.rs` | the TTL index, and documents that are not lease records |
//! | `privileges.rs` | the user's privileges |
//! | `times.rs` | clocks, round trips, commits |

mod collection;
mod deployment;
mod privileges;
mod times;

use std::time::Duration;

use mongoseal::Mongoseal;

use super::{
    driver::Deployment,
    finding::{Finding, Verdict},
};
use crate::{
    arguments::Doctor,
    connection::Connection,
    exit_status::{Failure, Status},
    output,
};

/// The width of the column with the names of the checks.
const COLUMN: usize = 16;

/// Prints each finding at once, and keeps the worst verdict.
struct Report {
    json: bool,
    worst: Verdict,
}

impl Report {
    fn add(&mut self, finding: &Finding) -> Result<(), Failure> {
        self.worst = self.worst.max(finding.verdict);
        if self.json {
            output::json(finding)?;
        } else {
            output::lines(&finding.lines(COLUMN))?;
        }
        Ok(())
    }

    fn add_all(&mut self, findings: &[Finding]) -> Result<(), Failure> {
        findings.iter().try_for_each(|finding| self.add(finding))
    }

    fn status(&self) -> Status {
        if self.worst == Verdict::Fail { Status::NO } else { Status::DONE }
    }
}

pub(crate) async fn perform(connection: &Connection, options: Doctor) -> Result<Status, Failure> {
    let uri = connection.uri()?;
    let mut report = Report { json: options.json, worst: Verdict::Pass };
    let opened = connection.open().await;
    if let Err(failure) = &opened
        && failure.status() == Status::UNAVAILABLE
    {
        report.add(&Finding::refused("reachable", failure))?;
        return Ok(report.status());
    }
    match Deployment::open(&uri, connection, "doctor").await {
        Ok(deployment) => {
            let examined = examine(&deployment, opened.as_ref().ok(), connection, options.grace, &mut report).await;
            deployment.close().await;
            examined?;
            // The library refuses the deployment for a reason that no check covers.
            if let Err(failure) = &opened
                && report.worst != Verdict::Fail
            {
                report.add(&Finding::refused("library", failure))?;
            }
        }
        // The library's message is better than the driver's.
        Err(error) => match &opened {
            Err(failure) => report.add(&Finding::refused("reachable", failure))?,
            Ok(_) => report.add(&Finding::fail("reachable", error.to_string(), "retry"))?,
        },
    }
    if let Ok(seal) = opened {
        seal.shutdown().await;
    }
    Ok(report.status())
}

async fn examine(
    deployment: &Deployment,
    seal: Option<&Mongoseal>,
    connection: &Connection,
    grace: Option<Duration>,
    report: &mut Report,
) -> Result<(), Failure> {
    report.add(&Finding::pass("reachable", format!("{} answers", deployment.answering())))?;
    report.add(&deployment::replica_set(deployment, connection.allows_sharded()).await)?;
    report.add(&deployment::version(deployment).await)?;
    if !deployment.is_standalone() {
        report.add(&deployment::journal(deployment).await)?;
    }
    report.add(&collection::index(deployment, connection.retention()).await)?;
    report.add_all(&privileges::of_the_user(deployment).await)?;
    if !deployment.is_standalone() {
        report.add(&times::clocks(deployment, grace).await)?;
    }
    report.add(&times::round_trip(deployment).await)?;
    if !deployment.is_standalone() {
        report.add(&deployment::change_stream(deployment).await)?;
    }
    // The other checks use the library, which refuses the deployment if a check above failed.
    let Some(seal) = seal else { return Ok(()) };
    report.add(&times::commit(seal).await)?;
    report.add(&collection::foreign(deployment).await)
}

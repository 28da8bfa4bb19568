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
use serde::Serialize;

use super::driver::Deployment;
use crate::{
    arguments::Doctor,
    connection::Connection,
    escape,
    exit_status::{Failure, Status},
    output,
};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Pass,
    Warn,
    Fail,
}

/// A check, its result, what it found, and what to do.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    advice: Option<String>,
}

impl Finding {
    fn pass(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Pass, found: found.into(), advice: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, found: found.into(), advice: Some(advice.into()) }
    }

    /// A failure that the library reports: its message includes the advice.
    fn refused(check: &'static str, failure: &Failure) -> Self {
        Self { check, verdict: Verdict::Fail, found: failure.message().into(), advice: None }
    }
}

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
            output::lines(&text(finding, output::width()))?;
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

/// Formats a finding as one line; on a terminal, wraps it.
fn text(finding: &Finding, width: Option<usize>) -> Vec<String> {
    use anstyle::{AnsiColor, Style};
    let (word, colour) = match finding.verdict {
        Verdict::Pass => ("pass", AnsiColor::Green),
        Verdict::Warn => ("warn", AnsiColor::Yellow),
        Verdict::Fail => ("fail", AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    let advice = finding.advice.as_ref().map(|advice| format!(": {advice}")).unwrap_or_default();
    let sentence = escape::visible(&format!("{}{advice}", finding.found));
    let check = format!("{:<16}  ", finding.check);
    let indent = "pass  ".len() + check.len();
    let lines = wrapped(&sentence, width.map(|width| width.saturating_sub(indent).max(20)));
    let first = |line: &String| format!("{style}{word}{style:#}  {check}{line}");
    let further = |line: &String| format!("{}{line}", " ".repeat(indent));
    lines.iter().take(1).map(first).chain(lines.iter().skip(1).map(further)).collect()
}

/// Splits a text between words into lines of at most `width`. A longer word is a line of its own.
fn wrapped(sentence: &str, width: Option<usize>) -> Vec<String> {
    use unicode_width::UnicodeWidthStr;
    let Some(width) = width else { return vec![sentence.to_owned()] };
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

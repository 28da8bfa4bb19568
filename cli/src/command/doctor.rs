//! `mongoseal doctor`: whether a deployment is fit for leases.
//!
//! | file | looks at |
//! |---|---|
//! | `deployment.rs` | the replica set, its version, its journal |
//! | `collection.rs` | the index, and records of foreign shape |
//! | `privileges.rs` | what the user may do |
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

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Pass,
    Warn,
    Fail,
}

/// A check, what it found, and what to do.
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

    /// What the library says comes with what to do.
    fn refused(check: &'static str, failure: &Failure) -> Self {
        Self { check, verdict: Verdict::Fail, found: failure.sentence().into(), advice: None }
    }
}

/// Shows findings as they come.
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
            output::lines(&in_words(finding, output::width()))?;
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
            // What the library refuses for a reason of its own.
            if let Err(failure) = &opened
                && report.worst != Verdict::Fail
            {
                report.add(&Finding::refused("library", failure))?;
            }
        }
        // The library says the same in better words.
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
    // The rest is asked of the library, which refuses where something above failed.
    let Some(seal) = seal else { return Ok(()) };
    report.add(&times::commit(seal).await)?;
    report.add(&collection::foreign(deployment, seal).await)
}

/// A finding as a line; on a terminal, wrapped below itself.
fn in_words(finding: &Finding, width: Option<usize>) -> Vec<String> {
    use anstyle::{AnsiColor, Style};
    let (word, colour) = match finding.verdict {
        Verdict::Pass => ("pass", AnsiColor::Green),
        Verdict::Warn => ("warn", AnsiColor::Yellow),
        Verdict::Fail => ("fail", AnsiColor::Red),
    };
    let style = Style::new().fg_color(Some(colour.into()));
    let advice = finding.advice.as_ref().map(|advice| format!(": {advice}")).unwrap_or_default();
    let sentence = escape::visible(&format!("{}{advice}", finding.found));
    let beside = format!("{:<16}  ", finding.check);
    let indent = "pass  ".len() + beside.len();
    let lines = wrapped(&sentence, width.map(|width| width.saturating_sub(indent).max(20)));
    let first = |line: &String| format!("{style}{word}{style:#}  {beside}{line}");
    let further = |line: &String| format!("{}{line}", " ".repeat(indent));
    lines.iter().take(1).map(first).chain(lines.iter().skip(1).map(further)).collect()
}

/// Lines of whole words, each as wide as this at most unless it is one word.
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

//! The findings of `doctor` and `conform`, one line for each check, and the report that prints them.

use mongoseal::store::{Clock, Instant};
use serde::Serialize;

use crate::{
    exit_status::{Failure, Status},
    ui::escape,
    ui::output,
    ui::prometheus::Gauges,
    ui::wrap,
};

/// The smallest width of a line, beside the column with the name of the check.
const MIN_WIDTH: usize = 28;

/// Prints each finding at once, and keeps the worst verdict.
pub(super) struct Report {
    pub(super) json: bool,
    /// The width of the column with the names of the checks.
    column: usize,
    pub(super) worst: Verdict,
    /// The results, in place of the lines, if they are printed for Prometheus.
    gauges: Option<Gauges>,
    /// When, on the clock, the finding before was added.
    since: Instant,
}

/// A finding with its kind and its time, as JSON.
#[derive(Serialize)]
struct TimedView<'a> {
    kind: &'static str,
    #[serde(flatten)]
    finding: &'a Finding,
    /// The milliseconds since the finding before.
    ms: u128,
}

impl Report {
    pub(super) fn new(json: bool, column: usize) -> Self {
        Self { json, column, worst: Verdict::Pass, gauges: None, since: Clock::Boot.now() }
    }

    /// A report that is printed as gauges, at its end.
    pub(super) fn of_gauges(name: &'static str, help: &str) -> Self {
        Self { gauges: Some(Gauges::new(name, help)), ..Self::new(false, 0) }
    }

    pub(super) fn add(&mut self, finding: &Finding) -> Result<(), Failure> {
        self.print(finding, finding)
    }

    pub(super) fn add_all(&mut self, findings: &[Finding]) -> Result<(), Failure> {
        findings.iter().try_for_each(|finding| self.add(finding))
    }

    /// Adds a finding whose JSON has a kind and a time.
    pub(super) fn add_timed(&mut self, kind: &'static str, finding: &Finding) -> Result<(), Failure> {
        let now = Clock::Boot.now();
        let ms = now.since(std::mem::replace(&mut self.since, now)).as_millis();
        self.print(finding, &TimedView { kind, finding, ms })
    }

    fn print(&mut self, finding: &Finding, json: &impl Serialize) -> Result<(), Failure> {
        self.worst = self.worst.max(finding.verdict);
        if let Some(gauges) = &mut self.gauges {
            for verdict in [Verdict::Pass, Verdict::Skip, Verdict::Warn, Verdict::Fail] {
                let value = if verdict == finding.verdict { 1.0 } else { 0.0 };
                gauges.add(&[("check", finding.check), ("verdict", verdict.name())], value);
            }
            return Ok(());
        }
        Ok(if self.json { output::json(json) } else { output::lines(&finding.lines(self.column)) }?)
    }

    /// Ends the report, and returns the status for it.
    pub(super) fn finish(&self) -> Result<Status, Failure> {
        if let Some(gauges) = &self.gauges {
            output::raw(gauges.text())?;
        }
        Ok(if self.worst == Verdict::Fail { Status::NO } else { Status::DONE })
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Pass,
    /// Not checked.
    Skip,
    Warn,
    Fail,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A check, its result, what it found, and what to do.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn pass(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Pass, found: found.into(), advice: None }
    }

    pub(super) fn skip(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Skip, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    pub(super) fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Fail, found: found.into(), advice: Some(advice.into()) }
    }

    /// A failure that the library reports: its message includes the advice.
    pub(super) fn refused(check: &'static str, failure: &Failure) -> Self {
        Self { check, verdict: Verdict::Fail, found: failure.message().into(), advice: None }
    }

    /// Formats the finding as one line, with the name of the check in a column of this width; on a terminal, wraps it.
    fn lines(&self, column: usize) -> Vec<String> {
        use anstyle::{AnsiColor, Style};
        let (word, colour) = match self.verdict {
            Verdict::Pass => ("pass", AnsiColor::Green),
            Verdict::Skip => ("skip", AnsiColor::Yellow),
            Verdict::Warn => ("warn", AnsiColor::Yellow),
            Verdict::Fail => ("fail", AnsiColor::Red),
        };
        let style = Style::new().fg_color(Some(colour.into()));
        let advice = self.advice.as_ref().map(|advice| format!(": {advice}")).unwrap_or_default();
        let text = escape::visible(&format!("{}{advice}", self.found));
        let label = format!("{style}{word}{style:#}  {:<column$}  ", self.check);
        wrap::labelled(&label, &text, output::width().map(|width| width.max(column + MIN_WIDTH)))
    }
}

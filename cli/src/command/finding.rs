//! The findings of `doctor`, one line for each check, and the report that prints them.

use serde::Serialize;

use crate::{
    exit_status::{Failure, Status},
    ui::escape,
    ui::output,
    ui::prometheus::Gauges,
    ui::wrap,
};

/// The width of the column with the name of the check.
const COLUMN: usize = 16;
/// The smallest width of a line, beside that column.
const MIN_WIDTH: usize = 28;

/// Prints each finding at once, and keeps the worst verdict.
pub(super) struct Report {
    pub(super) json: bool,
    pub(super) worst: Verdict,
    /// The results, in place of the lines, if they are printed for Prometheus.
    gauges: Option<Gauges>,
}

impl Report {
    pub(super) fn new(json: bool) -> Self {
        Self { json, worst: Verdict::Pass, gauges: None }
    }

    /// A report that is printed as gauges, at its end.
    pub(super) fn of_gauges(name: &'static str, help: &str) -> Self {
        Self { gauges: Some(Gauges::new(name, help)), ..Self::new(false) }
    }

    pub(super) fn add(&mut self, finding: &Finding) -> Result<(), Failure> {
        self.worst = self.worst.max(finding.verdict);
        if let Some(gauges) = &mut self.gauges {
            for verdict in [Verdict::Pass, Verdict::Skip, Verdict::Warn, Verdict::Fail] {
                let value = if verdict == finding.verdict { 1.0 } else { 0.0 };
                gauges.add(&[("check", finding.check), ("verdict", verdict.name())], value);
            }
            return Ok(());
        }
        Ok(if self.json { output::json(finding) } else { output::lines(&finding.lines()) }?)
    }

    pub(super) fn add_all(&mut self, findings: &[Finding]) -> Result<(), Failure> {
        findings.iter().try_for_each(|finding| self.add(finding))
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

    /// Formats the finding as one line; on a terminal, wraps it.
    fn lines(&self) -> Vec<String> {
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
        let label = format!("{style}{word}{style:#}  {:<COLUMN$}  ", self.check);
        wrap::labelled(&label, &text, output::width().map(|width| width.max(COLUMN + MIN_WIDTH)))
    }
}

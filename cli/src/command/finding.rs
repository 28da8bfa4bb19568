//! The findings of `doctor` and `conform`, one line for each check, and the report that prints them.

use mongoseal::{Clock, Reading};
use serde::Serialize;

use crate::{
    exit_status::{Failure, Status},
    ui::escape,
    ui::output,
};

/// Prints each finding at once, and keeps the worst verdict.
pub(super) struct Report {
    pub(super) json: bool,
    /// The width of the column with the names of the checks.
    column: usize,
    pub(super) worst: Verdict,
    /// When, on the clock, the finding before was added.
    since: Reading,
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
        Self { json, column, worst: Verdict::Pass, since: Clock::Boot.now() }
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
        Ok(if self.json { output::json(json) } else { output::lines(&finding.lines(self.column)) }?)
    }

    pub(super) fn status(&self) -> Status {
        if self.worst == Verdict::Fail { Status::NO } else { Status::DONE }
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
        let title = format!("{:<column$}  ", self.check);
        let indent = "pass  ".len() + title.len();
        let width = output::width().map(|width| width.saturating_sub(indent).max(20));
        let advice = self.advice.as_ref().map(|advice| format!(": {advice}")).unwrap_or_default();
        let lines = wrapped(&escape::visible(&format!("{}{advice}", self.found)), width);
        let first = |line: &String| format!("{style}{word}{style:#}  {title}{line}");
        let further = |line: &String| format!("{}{line}", " ".repeat(indent));
        lines.iter().take(1).map(first).chain(lines.iter().skip(1).map(further)).collect()
    }
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

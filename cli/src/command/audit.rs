//! `mongoseal audit`: reads the oplog, and has the package `mongoseal-audit` judge it.

use std::time::Duration;

use mongoseal::inspect::StoreTime;
use mongoseal_audit::{Auditor, Finding, Kind};
use serde_json::json;

use super::driver::{Answer, Deployment, Document, Refusal, Timestamp};
use crate::{
    arguments::Audit,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    ui::output,
};

/// How many findings are printed as text. All are counted.
const PRINTED: u64 = 20;
/// How often a follower looks for new entries.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn perform(connection: &Connection, options: Audit) -> Result<Status, Failure> {
    connection.require_mongodb("audit", "which has no log of its writes: use MongoDB")?;
    // The library's error explains an unusable deployment better than the driver's.
    connection.with_handle(async |_| ()).await?;
    let (uri, _) = connection.target()?;
    let deployment = Deployment::open(&uri, connection, "audit").await.map_err(|refusal| refused(&refusal))?;
    let mut signals = Signals::terminating()?;
    let mut audit = Reading::new(&deployment, &options);
    let read = signals.unless(audit.read(&deployment, connection.timeout)).await;
    deployment.close().await;
    match read {
        Ok(read) => read.map_err(|refusal| refused(&refusal))??,
        Err(_signal) if options.follow => {}
        Err(signal) => return Err(Failure::by_signal(signal)),
    }
    audit.print_summary()?;
    Ok(if audit.auditor.summary().is_clean() { Status::DONE } else { Status::NO })
}

fn refused(refusal: &Refusal) -> Failure {
    match refusal {
        Refusal::Unauthorized => Failure::invalid(
            "the user has no permission to read the oplog: grant the role `read` on the database `local`, or the privilege `find` on local.oplog.rs",
        ),
        other => Failure::new(Status::UNAVAILABLE, format!("cannot read the oplog ({other}): retry")),
    }
}

/// The oplog as it is read.
struct Reading<'a> {
    options: &'a Audit,
    auditor: Auditor,
    /// The times of the first entry and of the last, in milliseconds since the Unix epoch.
    window: (i64, i64),
    /// Whether `--since` asks for more than the oplog has.
    is_truncated: bool,
    found: u64,
}

impl<'a> Reading<'a> {
    fn new(deployment: &Deployment, options: &'a Audit) -> Self {
        let database = deployment.database();
        let named: Vec<_> =
            options.fenced.iter().map(|name| name.rsplit_once(':').unwrap_or((name, "fence"))).collect();
        let fenced: Vec<_> = named.iter().map(|(name, field)| (format!("{database}.{name}"), *field)).collect();
        let fenced = fenced.iter().map(|(name, field)| (name.as_str(), *field));
        let auditor = Auditor::new(&format!("{database}.{}", deployment.collection), fenced);
        Self { options, auditor, window: (0, 0), is_truncated: false, found: 0 }
    }

    /// Reads the oplog up to now, or for ever if it is to follow.
    async fn read(&mut self, deployment: &Deployment, within: Duration) -> Answer<Result<(), Failure>> {
        let oldest = deployment.oldest_entry(within).await?.unwrap_or(Timestamp { time: 0, increment: 0 });
        let mut until = deployment.majority_time().await?;
        let wanted = self.options.since.map_or(0, |since| u64::from(until.time).saturating_sub(since.as_secs()));
        self.is_truncated = self.options.since.is_some() && wanted < u64::from(oldest.time);
        let first = u64::from(oldest.time).max(wanted);
        self.window.0 = millis(first);
        let mut after = Timestamp { time: u32::try_from(first).unwrap_or(u32::MAX), increment: 0 };
        let namespaces = self.auditor.namespaces();
        loop {
            let mut batches = deployment.entries(after, until, &namespaces);
            while let Some(batch) = batches.recv().await {
                for entry in batch? {
                    if let Err(error) = self.judge(&entry) {
                        return Ok(Err(error.into()));
                    }
                }
            }
            self.window.1 = millis(until.time.into());
            if !self.options.follow {
                return Ok(Ok(()));
            }
            after = until;
            tokio::time::sleep(FOLLOW_INTERVAL).await;
            until = deployment.majority_time().await?;
        }
    }

    fn judge(&mut self, entry: &Document) -> std::io::Result<()> {
        let findings = self.auditor.judge(entry);
        if findings.is_empty() {
            return Ok(());
        }
        let at = StoreTime::from_millis(entry.get_datetime("wall").map_or(0, |wall| wall.timestamp_millis()));
        findings.iter().try_for_each(|finding| self.print(finding, at))
    }

    fn print(&mut self, finding: &Finding, at: StoreTime) -> std::io::Result<()> {
        self.found = self.found.saturating_add(1);
        let Finding { kind, of, what, .. } = finding;
        if self.options.json {
            return output::json(&json!({ "finding": kind, "at": at.to_string(), "of": of, "what": what }));
        }
        match self.found {
            ..=PRINTED => output::lines(&[format!("{at}  {:9}  {of}: {what}", name(*kind))]),
            _ => Ok(()),
        }
    }

    fn print_summary(&self) -> std::io::Result<()> {
        let (summary, is_clean) = (self.auditor.summary(), self.auditor.summary().is_clean());
        let [from, to] = [self.window.0, self.window.1].map(|time| StoreTime::from_millis(time).to_string());
        if self.options.json {
            let truncated = self.is_truncated;
            return output::json(&json!({
                "from": from, "to": to, "truncated": truncated, "clean": is_clean, "summary": summary,
            }));
        }
        let more = self.found.saturating_sub(PRINTED);
        let mut lines = Vec::new();
        if more > 0 {
            lines.push(format!("… and {more} more: --json prints all"));
        }
        let cut = if self.is_truncated { ", where the oplog begins" } else { "" };
        let all = summary.read.saturating_add(summary.unread);
        lines.push(format!("From       {from}{cut}"));
        lines.push(format!("To         {to}"));
        lines.push(format!("Read       {} of {all} writes", summary.read));
        lines.push(format!("Keys       {}, with {} grants", summary.keys, summary.grants));
        for of in &summary.fenced {
            let (name, documents, writes) = (&of.collection, of.documents, of.writes);
            lines.push(format!("Fenced     {name}: {writes} writes of {documents} documents"));
            for (count, what) in [
                (of.without_token, "without a token"),
                (of.exposed, "exposed: after a later grant, before its claim"),
                (of.late, "late: after the lease had ended, before the next grant"),
                (of.unplaced, "unplaced: the grant of the token is not in the oplog"),
            ] {
                if count > 0 {
                    lines.push(format!("           {count} {what}"));
                }
            }
        }
        let verdict = match (is_clean, summary.violations) {
            (true, _) => "no promise was broken".into(),
            (false, 0) => "no promise was broken, but writers carried no token".into(),
            (false, violations) => format!("{violations} violations"),
        };
        lines.push(format!("Verdict    {verdict}"));
        output::lines(&lines)
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Violation => "violation",
        Kind::Unfenced => "unfenced",
        Kind::Exposed => "exposed",
        Kind::Late => "late",
        _ => "finding",
    }
}

/// A time of a timestamp, in milliseconds.
fn millis(seconds: u64) -> i64 {
    i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX)
}

//! `mongoseal audit`: reads the oplog, and has the package `mongoseal-audit` judge it.

use std::{io, time::Duration};

use mongoseal::inspect::StoreTime;
use mongoseal_audit::{Auditor, Finding, Kind};
use serde_json::json;

use super::driver::{Answer, Deployment, Document, Refusal, Timestamp};
use crate::{
    arguments::Audit,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    ui::{message::print_warning, output},
};

/// How many findings are printed as text. All are counted.
const PRINTED: u64 = 20;
/// How often a follower looks for new entries.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn perform(connection: &Connection, options: Audit) -> Result<Status, Failure> {
    connection.require_mongodb("audit", "which has no log of its writes: use MongoDB")?;
    let fenced: Vec<_> = options.fenced.iter().map(|name| name.rsplit_once(':').unwrap_or((name, "fence"))).collect();
    if let Some((name, field)) = fenced.iter().find(|(_, field)| !is_top_level(field)) {
        return Err(Failure::invalid(format!(
            "{field:?} cannot be the field of the tokens of {name}: pass a top-level field, without `$` and `.`"
        )));
    }
    // The library's error explains an unusable deployment better than the driver's.
    connection.with_handle(async |_| ()).await?;
    let (uri, _) = connection.target()?;
    let deployment = Deployment::open(&uri, connection, "audit").await.map_err(|refusal| refused(&refusal))?;
    if deployment.is_router() {
        deployment.close().await;
        return Err(Failure::invalid("a router has no oplog: audit a replica set"));
    }
    let mut signals = Signals::terminating()?;
    let mut log = Log::new(&deployment, &options, &fenced);
    let read = signals.unless(log.read(&deployment, connection.timeout)).await;
    deployment.close().await;
    match read {
        Ok(read) => read?,
        Err(_signal) if options.follow => {}
        Err(signal) => return Err(Failure::by_signal(signal)),
    }
    log.print_summary()?;
    Ok(if log.auditor.summary().is_clean() { Status::DONE } else { Status::NO })
}

/// Returns whether this can be the field of the tokens of a fenced collection.
fn is_top_level(field: &str) -> bool {
    !field.is_empty() && field != "_id" && !field.contains(['$', '.', '\0'])
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
struct Log<'a> {
    options: &'a Audit,
    auditor: Auditor,
    /// The first entry that can be read, and the last that was.
    window: (Timestamp, Timestamp),
    /// Whether the oplog has no longer what was to be read.
    is_truncated: bool,
    found: u64,
}

impl<'a> Log<'a> {
    fn new(deployment: &Deployment, options: &'a Audit, fenced: &[(&str, &str)]) -> Self {
        let database = deployment.database();
        let fenced: Vec<_> = fenced.iter().map(|(name, field)| (format!("{database}.{name}"), *field)).collect();
        let fenced = fenced.iter().map(|(name, field)| (name.as_str(), *field));
        let auditor = Auditor::new(&format!("{database}.{}", deployment.collection), fenced);
        let never = Timestamp { time: 0, increment: 0 };
        Self { options, auditor, window: (never, never), is_truncated: false, found: 0 }
    }

    /// Reads the oplog up to now, or for ever if it is to follow. A follower reads on after an error that may pass.
    async fn read(&mut self, deployment: &Deployment, within: Duration) -> Result<(), Failure> {
        let until = deployment.majority_time().await.map_err(|refusal| refused(&refusal))?;
        let oldest = deployment.oldest_entry(within).await.map_err(|refusal| refused(&refusal))?;
        let since = self.options.since.map_or(0, |since| u64::from(until.time).saturating_sub(since.as_secs()));
        let first = Timestamp { time: u32::try_from(since).unwrap_or(u32::MAX), increment: 0 };
        self.is_truncated = self.options.since.is_some() && oldest > first;
        self.window = (first.max(oldest), first);
        loop {
            match self.read_new(deployment, within).await {
                Ok(read) => read?,
                Err(refusal @ (Refusal::Unauthorized | Refusal::NoCollection)) => return Err(refused(&refusal)),
                Err(refusal) if !self.options.follow => return Err(refused(&refusal)),
                Err(refusal) => print_warning(&format!("cannot read the oplog ({refusal}): retrying")),
            }
            if !self.options.follow {
                return Ok(());
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
    }

    /// Judges the entries after the last one that was judged, up to what a majority has.
    async fn read_new(&mut self, deployment: &Deployment, within: Duration) -> Answer<io::Result<()>> {
        // Another member may know less.
        let until = deployment.majority_time().await?.max(self.window.1);
        if self.window.0 < self.window.1 && deployment.oldest_entry(within).await? > self.window.1 {
            self.is_truncated = true;
            self.auditor.skip();
            print_warning("the oplog has no longer all that was to be read: make it larger, or audit more often");
        }
        let mut batches = deployment.entries(self.window.1, until, &self.auditor.namespaces());
        while let Some(batch) = batches.recv().await {
            for entry in batch? {
                if let Err(error) = self.judge(&entry) {
                    return Ok(Err(error));
                }
            }
        }
        self.window.1 = until;
        Ok(Ok(()))
    }

    fn judge(&mut self, entry: &Document) -> io::Result<()> {
        let findings = self.auditor.judge(entry);
        self.window.1 = entry.get_timestamp("ts").unwrap_or(self.window.1);
        if findings.is_empty() {
            return Ok(());
        }
        let at = StoreTime::from_millis(entry.get_datetime("wall").map_or(0, |wall| wall.timestamp_millis()));
        findings.iter().try_for_each(|finding| self.print(finding, at))
    }

    fn print(&mut self, finding: &Finding, at: StoreTime) -> io::Result<()> {
        self.found = self.found.saturating_add(1);
        let Finding { kind, of, what, .. } = finding;
        if self.options.json {
            return output::json(&json!({ "finding": kind, "at": at.to_string(), "of": of, "what": what }));
        }
        if self.options.follow || self.found <= PRINTED {
            return output::lines(&[format!("{at}  {:9}  {of}: {what}", name(*kind))]);
        }
        Ok(())
    }

    fn print_summary(&self) -> io::Result<()> {
        let summary = self.auditor.summary();
        let is_clean = summary.is_clean();
        let [from, to] = [self.window.0, self.window.1].map(|at| StoreTime::from_millis(millis(at)).to_string());
        if self.options.json {
            let truncated = self.is_truncated;
            return output::json(&json!({
                "from": from, "to": to, "truncated": truncated, "clean": is_clean, "summary": summary,
            }));
        }
        let more = if self.options.follow { 0 } else { self.found.saturating_sub(PRINTED) };
        let mut lines = Vec::new();
        if more > 0 {
            lines.push(format!("… and {more} more: --json prints all"));
        }
        let cut = if self.is_truncated { ", because the oplog has not all" } else { "" };
        let all = summary.read.saturating_add(summary.unread);
        lines.push(format!("From       {from}{cut}"));
        lines.push(format!("To         {to}"));
        lines.push(format!("Read       {} of {all} writes", summary.read));
        lines.push(format!("Keys       {}, grants: {}", summary.keys, summary.grants));
        for of in &summary.fenced {
            let (name, documents, writes) = (&of.collection, of.documents, of.writes);
            lines.push(format!("Fenced     {name}, writes: {writes}, documents: {documents}"));
            for (count, what) in [
                (of.without_token, "without a token"),
                (of.exposed, "exposed: after a later grant, before its claim"),
                (of.late, "late: after the lease had ended, before the next grant"),
                (of.unplaced, "unplaced: the grant of the token is not in the oplog"),
                (of.unclaimed, "inserted without a token: no holder had claimed them"),
            ] {
                if count > 0 {
                    lines.push(format!("           {count} {what}"));
                }
            }
        }
        let is_whole = summary.unread == 0 && !self.is_truncated;
        let verdict = match (is_clean, summary.violations) {
            (true, _) if is_whole => "no promise was broken".into(),
            (true, _) => "no promise was broken in what was read".into(),
            (false, 0) => "writers carried no token".into(),
            (false, violations) => format!("violations: {violations}"),
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

/// The second of an entry, in milliseconds.
fn millis(at: Timestamp) -> i64 {
    i64::from(at.time).saturating_mul(1_000)
}

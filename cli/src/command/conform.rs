//! `mongoseal conform`: checks whether a server does what the library needs, in a scratch collection, or on Redis under a
//! scratch prefix.
//!
//! | file | contains |
//! |---|---|
//! | `scratch.rs` | the scratch collection |
//! | `probes.rs` | probes of single behaviours of the server |
//! | `clauses.rs` | runs the conformance suite of the library |
//! | `redis.rs` | the same on Redis, without probes |

mod clauses;
mod probes;
#[cfg(feature = "redis")]
mod redis;
mod scratch;

use std::{pin::pin, sync::Arc, time::Duration};

use mongoseal::{
    Clock, Deadline,
    conformance::{self, Clause},
    store::Store,
};
use serde::Serialize;
use tokio::sync::watch;

use self::{clauses::Running, probes::Lab, scratch::Scratch};
use super::{
    driver::Deployment,
    finding::{self, Finding, Verdict},
};
use crate::{
    arguments::Conform,
    connection::{Connection, Target},
    exit_status::{Failure, Status},
    output, print_message,
    signals::Signals,
};

/// The width of the column with the names of the checks.
const COLUMN: usize = 19;
/// How long the program waits for the requests of clauses that it has ended, before it drops the collection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the library may take to explain an error of the driver.
const EXPLANATION_TIME: Duration = Duration::from_secs(2);

pub(crate) async fn perform(connection: &Connection, options: Conform) -> Result<Status, Failure> {
    // Before the collection is created, so that no signal leaves it behind.
    let mut signals = Signals::terminating().map_err(Failure::internal)?;
    let Target { uri, product } = connection.target()?;
    #[cfg(feature = "redis")]
    if product == crate::connection::Product::Redis {
        return Box::pin(redis::perform(&uri, connection, options, &mut signals)).await;
    }
    let opened = signals.unless(connection.report_wait(product, open(&uri, connection))).await;
    let deployment = opened.map_err(Failure::by_signal)??;
    let ended = check(&deployment, connection, options, &mut signals).await;
    deployment.close().await;
    ended
}

/// Connects. If that fails, returns the library's error, which explains more than the driver's.
async fn open(uri: &str, connection: &Connection) -> Result<Deployment, Failure> {
    if let Ok(deployment) = Deployment::open(uri, connection, "conform").await {
        return Ok(deployment);
    }
    // If it can connect, the library creates its collection.
    let name = scratch::random_name();
    let timeout = EXPLANATION_TIME.min(connection.timeout());
    let seal = connection.builder().collection(&name).operation_timeout(timeout).connect(uri).await?;
    seal.shutdown().await;
    Err(Failure::new(
        Status::UNAVAILABLE,
        format!("MongoDB did not answer at first: retry, and drop the empty collection {name}"),
    ))
}

/// Creates the scratch collection, runs all checks, and drops the collection.
async fn check(
    deployment: &Deployment,
    connection: &Connection,
    options: Conform,
    signals: &mut Signals,
) -> Result<Status, Failure> {
    let mut report = Report::of(&options);
    let scratch = Scratch::create(deployment, options.scratch).await?;
    let store = deployment.store(&scratch.collection, connection);
    let lab = Lab { deployment, scratch: &scratch, connection, store: &store };
    let (stop, stopped) = watch::channel(false);
    let ended = until_signal(signals, &stop, run_checks(lab, options.slow, &mut report, stopped)).await;
    let dropped = signals.finish(async {
        // A late request of a clause would create the collection again.
        store.close(Deadline::after(store.clock(), CLOSE_TIMEOUT)).await;
        scratch.remove(deployment).await
    });
    let dropped = dropped.await.unwrap_or_else(|| scratch.left(deployment, "no answer"));
    report.end(ended, &dropped)
}

/// Runs checks until a signal. Then sends `true` to `stop`, and waits for the checks. Returns the number of the signal.
async fn until_signal(
    signals: &mut Signals,
    stop: &watch::Sender<bool>,
    checks: impl Future<Output = Result<(), Failure>>,
) -> Result<Option<i32>, Failure> {
    let mut checks = pin!(checks);
    match signals.unless(&mut checks).await {
        Ok(done) => done.map(|()| None),
        Err(number) => {
            print_message("a signal was received: the remaining checks do not run");
            stop.send_replace(true);
            // After a second signal, the program does not wait for the probe that is running.
            drop(signals.unless(checks).await);
            Ok(Some(number))
        }
    }
}

/// Runs the probes and the clauses until `stopped` is true.
async fn run_checks(
    lab: Lab<'_>,
    is_slow: bool,
    report: &mut Report,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Failure> {
    report.add(PROBE, &probes::server(lab.deployment).await)?;
    report.add(PROBE, &probes::library(lab).await)?;
    let inserted = if is_slow { Some(probes::insert_expired(lab).await) } else { None };
    let mut missing = None;
    for probe in probes::all(lab) {
        if *stopped.borrow() {
            return Ok(());
        }
        let is_vital = probe.is_vital;
        let finding = probe.run(lab).await;
        report.add(PROBE, &finding)?;
        if is_vital && finding.verdict == Verdict::Fail {
            missing.get_or_insert(finding.check);
        }
    }
    match missing {
        Some(probe) => skip_clauses(report, probe)?,
        None => run_clauses(lab.store, report, &mut stopped).await?,
    }
    let Some(inserted) = inserted else { return report.add(PROBE, &probes::deletion_not_checked()) };
    tokio::select! {
        finding = probes::deletion(lab, inserted) => report.add(PROBE, &finding),
        _ = stopped.wait_for(|is_stopped| *is_stopped) => Ok(()),
    }
}

/// Runs the clauses of the conformance suite that the store declares, until `stopped` is true.
async fn run_clauses(
    store: &Arc<dyn Store>,
    report: &mut Report,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), Failure> {
    let (clauses, left_out) = conformance::clauses_of(&**store);
    let mut running = Running::start(&clauses, store);
    let (mut names, mut held) = (clauses.iter().map(|clause| clause.name()), 0);
    let ended = loop {
        let result = tokio::select! {
            biased;
            _ = stopped.wait_for(|is_stopped| *is_stopped) => break Ok(false),
            result = running.next() => result,
        };
        let (Some(result), Some(name)) = (result, names.next()) else { break Ok(true) };
        held += usize::from(result.is_ok());
        let finding = match result {
            Ok(()) => Finding::pass(name, "holds"),
            Err(message) => Finding::fail(name, message, "report it, with the version of the server"),
        };
        if let Err(failure) = report.add_clause(&finding) {
            break Err(failure);
        }
    };
    running.stop().await;
    if !ended? {
        return Ok(());
    }
    for clause in &left_out {
        report.add_left_out(clause)?;
    }
    report.count_clauses(held, clauses.len())
}

/// Reports that no clause can run, because this probe has failed.
fn skip_clauses(report: &mut Report, probe: &str) -> Result<(), Failure> {
    let clauses = conformance::clauses();
    let found = format!("not run, because the probe {probe:?} failed");
    for clause in clauses {
        report.add_clause(&Finding::skip(clause.name(), found.as_str(), NO_CLAUSE))?;
    }
    let summary = format!("{} clauses of the conformance suite were {found}", clauses.len());
    report.summarize(&Finding::skip(CLAUSES, summary, NO_CLAUSE))
}

const NO_CLAUSE: &str = "make the failed probes pass first";
const CLAUSES: &str = "clauses";
const PROBE: &str = "probe";

/// Prints each finding at once, and keeps the worst verdict.
struct Report {
    json: bool,
    verbose: bool,
    worst: Verdict,
    /// When, on the clock, the check before ended.
    since: Duration,
}

/// A finding with its kind and its time, as JSON.
#[derive(Serialize)]
struct FindingView<'a> {
    kind: &'static str,
    #[serde(flatten)]
    finding: &'a Finding,
    /// The milliseconds since the check before.
    ms: u128,
}

impl Report {
    fn of(options: &Conform) -> Self {
        Self { json: options.json, verbose: options.verbose, worst: Verdict::Pass, since: Clock::Boot.now() }
    }

    /// Adds what became of the scratch place, and returns the status of the program. `ended`: how the checks ended, with the
    /// number of a signal.
    fn end(&mut self, ended: Result<Option<i32>, Failure>, removed: &Finding) -> Result<Status, Failure> {
        let printed = self.add("scratch", removed);
        if printed.is_err() && removed.verdict == Verdict::Fail {
            print_message(&removed.found);
        }
        let signal = ended?;
        printed?;
        Ok(signal.map_or_else(|| self.status(), Status::of_signal))
    }

    fn add(&mut self, kind: &'static str, finding: &Finding) -> Result<(), Failure> {
        self.worst = self.worst.max(finding.verdict);
        if self.json {
            let now = Clock::Boot.now();
            let ms = now.saturating_sub(std::mem::replace(&mut self.since, now)).as_millis();
            output::json(&FindingView { kind, finding, ms })?;
        } else {
            output::lines(&finding.lines(COLUMN))?;
        }
        Ok(())
    }

    /// Adds the finding of a clause. As text, prints only failed clauses, or all with `--verbose`.
    fn add_clause(&mut self, finding: &Finding) -> Result<(), Failure> {
        let Finding { check, verdict, found, advice } = finding;
        if self.json {
            return self.add("clause", finding);
        }
        self.worst = self.worst.max(*verdict);
        if self.verbose || *verdict == Verdict::Fail {
            let sentence = match advice {
                Some(advice) => format!("{check}: {found}: {advice}"),
                None => (*check).to_owned(),
            };
            output::lines(&finding::line(*verdict, "clause", COLUMN, &sentence))?;
        }
        Ok(())
    }

    /// Adds a clause about what the store does not declare.
    fn add_left_out(&mut self, clause: &Clause) -> Result<(), Failure> {
        let (found, advice) = ("not run, because this store does not declare it", "use MongoDB if you need it");
        let finding = Finding::skip(clause.name(), found, advice);
        if self.json {
            return self.add("clause", &finding);
        }
        self.worst = self.worst.max(Verdict::Skip);
        output::lines(&finding::line(Verdict::Skip, "clause", COLUMN, &format!("{}: {found}: {advice}", clause.name())))
            .map_err(Failure::from)
    }

    fn count_clauses(&mut self, held: usize, all: usize) -> Result<(), Failure> {
        let found = format!("{held} of {all} clauses of the conformance suite hold");
        self.summarize(&if held == all {
            Finding::pass(CLAUSES, found)
        } else {
            Finding::fail(CLAUSES, found, "see the failed clauses above")
        })
    }

    /// Prints a summary, which JSON does not need.
    fn summarize(&mut self, finding: &Finding) -> Result<(), Failure> {
        if self.json { Ok(()) } else { self.add(CLAUSES, finding) }
    }

    fn status(&self) -> Status {
        if self.worst == Verdict::Fail { Status::NO } else { Status::DONE }
    }
}

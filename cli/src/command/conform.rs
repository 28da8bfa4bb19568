//! `mongoseal conform`: checks whether a server does what the library needs, in a scratch collection, or on Redis under a
//! scratch prefix.
//!
//! | file | contains |
//! |---|---|
//! | `scratch.rs` | the scratch collection |
//! | `probes.rs` | probes of single behaviours of the server |
//! | `requirements.rs` | runs the conformance suite |
//! | `redis.rs` | the same on Redis, without probes |

mod probes;
#[cfg(feature = "redis")]
mod redis;
mod requirements;
mod scratch;

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::StreamExt;
use mongoseal::store::{Deadline, Store};
use mongoseal_conformance::{Requirement, requirements, requirements_of};
use tokio::{sync::watch, time::interval};

use self::{
    probes::Lab,
    requirements::{Checked, Progress},
    scratch::Scratch,
};
use super::{
    driver::Deployment,
    finding::{Finding, Report, Verdict},
};
use crate::{
    arguments::Conform,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    ui::message::{self, ProgressLine, print_error, print_warning},
};

/// The width of the column with the names of the checks.
const COLUMN: usize = 19;
/// How often the progress line is rewritten.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);
/// How long the program waits for the requests of requirements that it has ended, before it drops the collection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the library may take to explain an error of the driver.
const EXPLANATION_TIME: Duration = Duration::from_secs(2);

pub(crate) async fn perform(connection: &Connection, options: Conform) -> Result<Status, Failure> {
    // Before the collection is created, so that no signal leaves it behind.
    let mut signals = Signals::terminating()?;
    let (uri, product) = connection.target()?;
    #[cfg(feature = "redis")]
    if product == crate::connection::Product::Redis {
        return Box::pin(redis::perform(&uri, connection, options, &mut signals)).await;
    }
    let opened = signals.unless(connection.report_wait(&uri, product, open(&uri, connection))).await;
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
    let timeout = EXPLANATION_TIME.min(connection.timeout);
    let seal = connection.builder().collection(&name).operation_timeout(timeout).connect(uri).await?;
    seal.shutdown().await;
    Err(Failure::new(
        Status::UNAVAILABLE,
        format!("MongoDB has not answered at first: retry, and drop the empty collection {name}"),
    ))
}

/// Creates the scratch collection, runs all checks, and drops the collection.
async fn check(
    deployment: &Deployment,
    connection: &Connection,
    options: Conform,
    signals: &mut Signals,
) -> Result<Status, Failure> {
    let mut report = Report::new(options.json, COLUMN);
    let scratch = Scratch::create(deployment, options.scratch.clone()).await?;
    let store = deployment.store(&scratch.collection, connection);
    let lab = Lab { deployment, scratch: &scratch, connection, store: &store };
    let (stop, stopped) = watch::channel(false);
    let ended = until_signal(signals, &stop, run_checks(lab, &options, &mut report, stopped)).await;
    let dropped = signals.finish(async {
        // A late request of a requirement would create the collection again.
        store.close(Deadline::after(store.clock(), CLOSE_TIMEOUT)).await;
        scratch.remove(deployment).await
    });
    let dropped = dropped.await.unwrap_or_else(|| scratch.left(deployment, "no answer"));
    end(&mut report, ended, &dropped)
}

/// Reports what became of the scratch place, and returns the status of the program. `ended`: how the checks ended, with the
/// number of a signal.
fn end(report: &mut Report, ended: Result<Option<i32>, Failure>, removed: &Finding) -> Result<Status, Failure> {
    let printed = report.add_timed("scratch", removed);
    if printed.is_err() && removed.verdict == Verdict::Fail {
        print_error(&removed.found);
    }
    let signal = ended?;
    printed?;
    signal.map_or_else(|| report.finish(), |number| Ok(Status::of_signal(number)))
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
            print_warning("a signal was received: the remaining checks do not run");
            stop.send_replace(true);
            // After a second signal, the program does not wait for the probe that is running.
            drop(signals.unless(checks).await);
            Ok(Some(number))
        }
    }
}

/// Runs the probes and the requirements until `stopped` is true.
async fn run_checks(
    lab: Lab<'_>,
    options: &Conform,
    report: &mut Report,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Failure> {
    report.add_timed(PROBE, &probes::server(lab.deployment).await)?;
    report.add_timed(PROBE, &probes::library(lab).await)?;
    let inserted = if options.slow { Some(probes::insert_expired(lab).await) } else { None };
    let mut missing = None;
    for probe in probes::all(lab) {
        if *stopped.borrow() {
            return Ok(());
        }
        let is_vital = probe.is_vital;
        let finding = probe.run(lab).await;
        report.add_timed(PROBE, &finding)?;
        if is_vital && finding.verdict == Verdict::Fail {
            missing.get_or_insert(finding.check);
        }
    }
    match missing {
        Some(probe) => skip_requirements(report, probe, options.verbose)?,
        None => run_requirements(lab.store, report, options.verbose, &mut stopped).await?,
    }
    let Some(inserted) = inserted else { return report.add_timed(PROBE, &probes::deletion_not_checked()) };
    let mut line = message::has_progress_line().then(ProgressLine::default);
    if let Some(line) = &mut line {
        line.show("waiting until the server has deleted an expired document, which it does once a minute");
    }
    tokio::select! {
        finding = probes::deletion(lab, inserted) => {
            drop(line);
            report.add_timed(PROBE, &finding)
        }
        _ = stopped.wait_for(|is_stopped| *is_stopped) => Ok(()),
    }
}

/// Runs the requirements of the conformance suite that the store declares, until `stopped` is true.
async fn run_requirements(
    store: &Arc<dyn Store>,
    report: &mut Report,
    is_verbose: bool,
    stopped: &mut watch::Receiver<bool>,
) -> Result<(), Failure> {
    let (requirements, left_out) = requirements_of(&**store);
    let progress = Progress::default();
    let mut results = pin!(requirements::run(&requirements, store, &progress));
    let (mut held, mut slow) = (0, 0);
    let mut line = message::has_progress_line().then(ProgressLine::default);
    let mut updates = interval(UPDATE_INTERVAL);
    for requirement in &requirements {
        let checked = loop {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|is_stopped| *is_stopped) => return Ok(()),
                checked = results.next() => break checked,
                _ = updates.tick(), if line.is_some() => {
                    if let Some(line) = &mut line {
                        line.show(&progress.text(requirements.len()));
                    }
                }
            }
        };
        let Some(checked) = checked else { break };
        let finding = finding_of(requirement, checked);
        held += usize::from(finding.verdict != Verdict::Fail);
        slow += usize::from(finding.verdict == Verdict::Warn);
        let is_shown = is_verbose || finding.verdict != Verdict::Pass;
        if let Some(line) = line.as_mut().filter(|_| is_shown || report.json) {
            line.erase();
        }
        add_requirement(report, &finding, is_shown)?;
    }
    drop(line);
    for requirement in &left_out {
        let (found, advice) = ("not run, because this store does not declare it", "use MongoDB if you need it");
        add_requirement(report, &Finding::skip(requirement.name(), found, advice), true)?;
    }
    let found = format!("{held} of {} requirements of the conformance suite hold", requirements.len());
    let summary = if held < requirements.len() {
        Finding::fail(REQUIREMENTS, found, "see the failed requirements above")
    } else if slow > 0 {
        Finding::warn(REQUIREMENTS, format!("{found}, {slow} of them only with longer times"), SLOW)
    } else {
        Finding::pass(REQUIREMENTS, found)
    };
    summarize(report, &summary)
}

fn finding_of(requirement: &Requirement, checked: Checked) -> Finding {
    let name = requirement.name();
    match checked {
        Checked::Holds => Finding::pass(name, "holds"),
        Checked::HoldsSlowly(message) => Finding::warn(
            name,
            format!("holds only with longer times, so the server or this machine is slow ({message})"),
            SLOW,
        ),
        Checked::Fails(message) => Finding::fail(name, message, "report it, with the version of the server"),
    }
}

/// Reports that no requirement can run, because this probe has failed.
fn skip_requirements(report: &mut Report, probe: &str, is_verbose: bool) -> Result<(), Failure> {
    let requirements = requirements();
    let found = format!("not run, because the probe {probe:?} failed");
    for requirement in requirements {
        add_requirement(report, &Finding::skip(requirement.name(), found.as_str(), NO_REQUIREMENT), is_verbose)?;
    }
    let summary = format!("{} requirements of the conformance suite were {found}", requirements.len());
    summarize(report, &Finding::skip(REQUIREMENTS, summary, NO_REQUIREMENT))
}

/// Reports a requirement. As text, it is one sentence, and printed only if `is_shown`.
fn add_requirement(report: &mut Report, finding: &Finding, is_shown: bool) -> Result<(), Failure> {
    if report.json {
        return report.add_timed("requirement", finding);
    }
    if !is_shown {
        return Ok(());
    }
    let Finding { check, verdict, found, advice } = finding;
    let found = match advice {
        Some(advice) => format!("{check}: {found}: {advice}"),
        None => (*check).to_owned(),
    };
    report.add(&Finding { check: "requirement", verdict: *verdict, found, advice: None })
}

/// Reports a summary of the requirements, which JSON does not need.
fn summarize(report: &mut Report, finding: &Finding) -> Result<(), Failure> {
    if report.json { Ok(()) } else { report.add(finding) }
}

const SLOW: &str = "repeat it when the server and this machine have less to do";
const NO_REQUIREMENT: &str = "make the failed probes pass first";
const REQUIREMENTS: &str = "requirements";
const PROBE: &str = "probe";

//! Runs the library's conformance suite at a scratch place, which is removed at the end, also after a signal.
//!
//! | file | contains |
//! |---|---|
//! | `requirements.rs` | runs the requirements of the suite |
//! | `collection.rs` | the scratch place on MongoDB: a collection |
//! | `prefix.rs` | the scratch place on Redis: the keys with a prefix |

mod collection;
#[cfg(feature = "redis")]
mod prefix;
mod requirements;

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::StreamExt;
use mongoseal::store::{Deadline, HandleId, Store};
use mongoseal_conformance::{Requirement, requirements_of};
use tokio::time::interval;

use self::requirements::{Checked, Progress};
use super::{Finding, Report, Verdict};
use crate::{
    arguments::Doctor,
    connection::{Connection, Product},
    exit_status::Failure,
    job::signals::Signals,
    ui::message::{self, ProgressLine, print_error, print_warning},
};

/// The check of the scratch place.
const SCRATCH: &str = "scratch";
const REQUIREMENTS: &str = "requirements";
const SLOW: &str = "repeat it when the server and this machine have less to do";
/// How often the progress line is rewritten.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);
/// How long the program waits for the requests of requirements that it has ended, before it removes the scratch place.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the removal may take. Each of its commands has a time limit of its own.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long nothing may appear at the scratch place until it counts as removed. A request of a requirement that was ended is
/// repeated sooner than that.
const QUIET: Duration = Duration::from_secs(1);

/// A place that this program has created for the suite.
trait Scratch {
    /// Returns a store at this place.
    fn store(&self) -> Arc<dyn Store>;

    /// Removes the place, and reports whether that succeeded.
    async fn remove(&self) -> Finding;

    /// Reports that the place may be left.
    fn left(&self, why: &str) -> Finding;
}

fn random_name() -> String {
    let random = u64::from_str_radix(&HandleId::random().to_string(), 16).unwrap_or_default();
    format!("mongoseal.doctor.{}", random % 1_000_000_000)
}

/// The finding if the suite was not run.
pub(super) fn skipped() -> Finding {
    let found = "the conformance suite was not run, because the library cannot use the deployment";
    Finding::skip(REQUIREMENTS, found, "make the failed check pass first")
}

/// Runs the suite.
pub(super) async fn perform(
    uri: &str,
    connection: &Connection,
    product: Product,
    options: &Doctor,
    report: &mut Report,
) -> Result<(), Failure> {
    // Before the place is created, so that no signal leaves it behind.
    let mut signals = Signals::terminating()?;
    let name = options.scratch.clone().unwrap_or_else(random_name);
    match product {
        #[cfg(feature = "redis")]
        Product::Redis => match prefix::create(uri, connection, name).await {
            Ok(place) => use_and_remove(&place, connection.timeout, options, &mut signals, report).await,
            Err(finding) => report.add(&finding),
        },
        _ => match collection::create(uri, connection, name).await {
            Ok(place) => use_and_remove(&place, connection.timeout, options, &mut signals, report).await,
            Err(finding) => report.add(&finding),
        },
    }
}

/// Runs the suite at a place, and removes the place.
async fn use_and_remove(
    place: &impl Scratch,
    timeout: Duration,
    options: &Doctor,
    signals: &mut Signals,
    report: &mut Report,
) -> Result<(), Failure> {
    let store = place.store();
    let ended = signals.unless(run(&store, timeout, options, report)).await;
    if ended.is_err() {
        print_warning("a signal was received: the remaining requirements do not run");
    }
    let removed = signals.finish(async {
        // A late request of a requirement would create the place again.
        store.close(Deadline::after(store.clock(), CLOSE_TIMEOUT)).await;
        place.remove().await
    });
    let removed = removed.await.unwrap_or_else(|| place.left("no answer"));
    let printed = report.add(&removed);
    if printed.is_err() && removed.verdict == Verdict::Fail {
        print_error(&removed.found);
    }
    ended.map_err(Failure::by_signal)?.and(printed)
}

/// Runs the requirements of the suite that the store declares.
async fn run(store: &Arc<dyn Store>, timeout: Duration, options: &Doctor, report: &mut Report) -> Result<(), Failure> {
    if let Err(error) = store.prepare(Deadline::after(store.clock(), timeout)).await {
        return report.add(&Finding::refused(REQUIREMENTS, &error.into()));
    }
    let (requirements, undeclared) = requirements_of(&**store);
    let progress = Progress::default();
    let mut results = pin!(requirements::run(&requirements, store, &progress));
    let (mut held, mut slow) = (0, 0);
    let mut line = message::has_progress_line().then(ProgressLine::default);
    let mut updates = interval(UPDATE_INTERVAL);
    for requirement in &requirements {
        let checked = loop {
            tokio::select! {
                biased;
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
        if options.verbose || report.json || finding.verdict != Verdict::Pass {
            if let Some(line) = &mut line {
                line.erase();
            }
            add(report, finding)?;
        }
    }
    drop(line);
    for requirement in undeclared {
        add(report, Finding::skip(requirement.name(), "the store does not declare it", "use MongoDB if you need it"))?;
    }
    let found = format!("{held} of {} requirements of the conformance suite hold", requirements.len());
    report.add(&if held < requirements.len() {
        Finding::fail(REQUIREMENTS, found, "see the failed requirements above")
    } else if slow > 0 {
        Finding::warn(REQUIREMENTS, format!("{found}, {slow} of them only with longer times"), SLOW)
    } else {
        Finding::pass(REQUIREMENTS, found)
    })
}

fn finding_of(requirement: &Requirement, checked: Checked) -> Finding {
    let name = requirement.name();
    match checked {
        Checked::Holds => Finding::pass(name, "holds"),
        Checked::HoldsSlowly(message) => {
            let found = format!("holds only with longer times, so the server or this machine is slow ({message})");
            Finding::warn(name, found, SLOW)
        }
        Checked::Fails(message) => Finding::fail(name, message, "report it, with the version of the server"),
    }
}

/// Adds the finding of a requirement. Its name is too long for the column of the checks, so the text has it.
fn add(report: &mut Report, finding: Finding) -> Result<(), Failure> {
    if report.json {
        return report.add(&finding);
    }
    let found = format!("{}: {}", finding.check, finding.found);
    report.add(&Finding { check: "requirement", found, ..finding })
}

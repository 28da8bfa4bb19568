//! Runs the library's conformance suite at a scratch place, which is removed at the end, also after a signal.
//!
//! | file | contains |
//! |---|---|
//! | `requirements.rs` | runs the requirements of the suite |
//! | `collection.rs` | the scratch place on MongoDB: a collection |
//! | `prefix.rs` | the scratch place on Redis: the keys with a prefix |

pub(super) mod collection;
#[cfg(feature = "redis")]
pub(super) mod prefix;
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

/// A place that this program has created for the suite.
pub(super) trait Scratch: Sized {
    /// Creates the place. Fails if there is something.
    async fn create(self) -> Result<Self, Finding>;

    /// Returns a store at this place.
    fn store(&self) -> Arc<dyn Store>;

    /// Removes the place, and reports whether that succeeded.
    async fn remove(&self) -> Finding;

    /// Reports that the place may be left.
    fn left(&self, why: &str) -> Finding;
}

/// Returns the name of the scratch place: random, unless the caller chose one.
pub(super) fn name(options: &Doctor) -> String {
    let random = u64::from_str_radix(&HandleId::random().to_string(), 16).unwrap_or_default();
    options.scratch.clone().unwrap_or_else(|| format!("mongoseal.doctor.{}", random % 1_000_000_000))
}

/// Reports, if the suite is wanted, that it was not run.
pub(super) fn skip(options: &Doctor, report: &mut Report) -> Result<(), Failure> {
    let found = "the conformance suite was not run, because a check failed";
    let finding = Finding::skip(REQUIREMENTS, found, "make the failed checks pass first");
    if options.deep { report.add(&finding) } else { Ok(()) }
}

/// Runs the suite if that is wanted, unless a check has failed.
pub(super) async fn perform(
    place: impl Scratch,
    timeout: Duration,
    options: &Doctor,
    report: &mut Report,
) -> Result<(), Failure> {
    if !options.deep || report.worst == Verdict::Fail {
        return skip(options, report);
    }
    // Before the place is created, so that no signal leaves it behind.
    let mut signals = Signals::terminating()?;
    let place = match place.create().await {
        Ok(place) => place,
        Err(finding) => return report.add(&finding),
    };
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
    let (requirements, _) = requirements_of(&**store);
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
            report.add(&if report.json { finding } else { as_sentence(finding) })?;
        }
    }
    drop(line);
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

/// Moves the name of a requirement, which is too long for the column of the checks, into the text.
fn as_sentence(Finding { check, verdict, found, advice }: Finding) -> Finding {
    Finding { check: "requirement", verdict, found: format!("{check}: {found}"), advice }
}

//! Invariant I19: no tick is completed twice, the work of a completed tick does not begin again, and the history of the
//! schedule has its last completions.

use std::collections::BTreeMap;

use mongoseal::record::Record;

use super::{Case, Violation};
use crate::words::{Event, Micros, Ticked};

/// The expected outcomes of a call.
const EXPECTED: [&str; 5] = ["done", "busy", "lost", "unavailable", "ran"];

impl Case<'_> {
    /// I19, and I8 for the outcomes.
    pub(super) fn ticks_are_completed_once(&self, found: &mut Vec<Violation>) {
        // By key, in the order in which they were confirmed.
        let mut completed: BTreeMap<&str, Vec<&Ticked>> = BTreeMap::new();
        for ticked in self.ticked() {
            if !EXPECTED.contains(&ticked.outcome.as_str()) {
                let what = format!("tick {} of {} at {}: {}", ticked.tick, ticked.key, ticked.end, ticked.outcome);
                found.push(Violation { of: "I8", what });
            }
            if ticked.outcome == "ran" {
                completed.entry(&ticked.key).or_default().push(ticked);
            }
        }
        for (key, completed) in &mut completed {
            completed.sort_by_key(|ticked| ticked.end);
            let mut once: BTreeMap<u64, &Ticked> = BTreeMap::new();
            for ticked in completed.iter().copied() {
                if let Some(first) = once.insert(ticked.tick, ticked)
                    && !self.may_be_forgotten(first, ticked.end)
                {
                    let tokens = (first.token.unwrap_or_default(), ticked.token.unwrap_or_default());
                    let what =
                        format!("tick {} of {key} was completed with {} and {}", ticked.tick, tokens.0, tokens.1);
                    found.push(Violation { of: "I19", what });
                }
            }
            self.completed_work_does_not_begin(key, completed, found);
            self.completions_are_in_the_history(key, completed, found);
        }
    }

    /// I19: if a completion was confirmed before some work began, the tick of that work is a later one.
    fn completed_work_does_not_begin(&self, of: &str, completed: &[&Ticked], found: &mut Vec<Violation>) {
        // For each completion, that with the latest tick until then.
        let mut latest: Vec<&Ticked> = Vec::new();
        for ticked in completed.iter().copied() {
            let before = latest.last().copied().filter(|before| before.tick > ticked.tick);
            latest.push(before.unwrap_or(ticked));
        }
        for event in self.events {
            let Event::Works { worker, key, tick, token, at } = event else { continue };
            if key != of {
                continue;
            }
            let before = completed.partition_point(|ticked| ticked.end < *at);
            let Some(done) = before.checked_sub(1).map(|last| latest[last]).filter(|done| done.tick >= *tick) else {
                continue;
            };
            if !self.may_be_forgotten(done, *at) {
                let what = format!(
                    "worker {worker} began tick {tick} of {key} with {token} at {at}, and tick {} was completed by {}",
                    done.tick, done.end
                );
                found.push(Violation { of: "I19", what });
            }
        }
    }

    /// I19: the history is in order, and has each confirmed completion since its first run.
    fn completions_are_in_the_history(&self, of: &str, completed: &[&Ticked], found: &mut Vec<Violation>) {
        for event in self.events {
            let Event::Runs { key, runs, at } = event else { continue };
            if key != of {
                continue;
            }
            if !runs.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1) {
                found.push(Violation { of: "I19", what: format!("the history of {key} is not in order: {runs:?}") });
            }
            let first = runs.first().filter(|_| runs.len() == Record::MAX_RUNS).map_or(0, |first| first.0);
            let is_kept = |ticked: &&&Ticked| ticked.tick >= first && !self.may_be_forgotten(ticked, *at);
            for ticked in completed.iter().filter(is_kept) {
                if !runs.contains(&(ticked.tick, ticked.token.unwrap_or_default())) {
                    let what =
                        format!("tick {} of {key}, completed by {}, is not in {runs:?}", ticked.tick, ticked.end);
                    found.push(Violation { of: "I19", what });
                }
            }
        }
    }

    /// Whether the record with this completion may have been deleted by a time. The retention, which is shorter than a run,
    /// deletes none.
    fn may_be_forgotten(&self, ticked: &Ticked, by: Micros) -> bool {
        self.was_dropped(ticked.begin, by)
    }

    pub(crate) fn ticked(&self) -> impl Iterator<Item = &Ticked> {
        self.events.iter().filter_map(|event| match event {
            Event::Ticked(ticked) => Some(ticked),
            _ => None,
        })
    }
}

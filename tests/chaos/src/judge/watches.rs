//! Invariant I21: a watch sees each grant of its keys in order, and what it does not see it reports as missed.

use std::collections::{BTreeSet, HashMap};

use super::{Case, Violation};
use crate::words::Event;

impl Case<'_> {
    /// Between two grants that a watch reported, without a report in between that events may be missing, no other grant of
    /// the key is left out. A lease may be reported again: a write that a lock of its record delayed has the time at which it
    /// was sent, so a lease that has expired meanwhile holds at that time.
    pub(super) fn watches_are_whole(&self, found: &mut Vec<Violation>) {
        let tokens = |leases: &Vec<super::Lease<'_>>| leases.iter().map(|lease| lease.token).collect::<BTreeSet<_>>();
        let granted: HashMap<&str, BTreeSet<u64>> =
            self.leases.iter().map(|(key, leases)| (*key, tokens(leases))).collect();
        let mut last: HashMap<(u32, &str), HashMap<&str, u64>> = HashMap::new();
        for event in self.events {
            match event {
                Event::Missed { worker, watch, .. } => drop(last.remove(&(*worker, watch.as_str()))),
                Event::Watched { worker, watch, key, token, .. } => {
                    let of_watch = last.entry((*worker, watch.as_str())).or_default();
                    let Some(before) = of_watch.insert(key, *token) else { continue };
                    let between = (before + 1).min(*token)..*token;
                    let left_out = granted.get(key.as_str()).and_then(|granted| granted.range(between).next());
                    let what = if *token < before {
                        format!("the {watch} watch of worker {worker} reported {token} of {key} after {before}")
                    } else if let Some(left_out) = left_out {
                        format!("the {watch} watch of worker {worker} left out {left_out} of {key}, before {token}")
                    } else {
                        continue;
                    };
                    found.push(Violation { of: "I21", what });
                }
                _ => {}
            }
        }
    }
}

//! The times in which processes did not run, or writes were slow. Calls may take longer then.

use std::collections::HashMap;

use crate::words::{Event, Micros};

#[derive(Default)]
pub(crate) struct Stalls {
    by_worker: HashMap<u32, Vec<(Micros, Micros)>>,
    /// When writes beside all leases were slow.
    slow: HashMap<u32, Vec<(Micros, Micros)>>,
}

impl Stalls {
    pub(super) fn of(events: &[Event]) -> Self {
        let mut stalls = Self::default();
        for event in events {
            match event {
                Event::Stall { worker, from, to } => {
                    stalls.by_worker.entry(*worker).or_default().push((*from, *to));
                }
                Event::Slow { worker, from, to } => stalls.slow.entry(*worker).or_default().push((*from, *to)),
                _ => {}
            }
        }
        for stalls in stalls.by_worker.values_mut() {
            stalls.sort_unstable();
        }
        stalls
    }

    /// For how long in between the process did not run.
    pub(super) fn within(&self, worker: u32, from: Micros, to: Micros) -> Micros {
        self.by_worker.get(&worker).map_or(0, |stalls| overlap(stalls, from, to))
    }

    /// How long the slowest write beside all leases took in between, if any of that worker was slow.
    pub(super) fn slowest(&self, worker: u32, from: Micros, to: Micros) -> Micros {
        let slow = self.slow.get(&worker).into_iter().flatten();
        let meanwhile = slow.filter(|(begin, end)| *begin <= to && *end >= from);
        meanwhile.map(|(begin, end)| end - begin).max().unwrap_or(0)
    }
}

/// For how long some of these went on in between.
fn overlap(times: &[(Micros, Micros)], from: Micros, to: Micros) -> Micros {
    let (mut sum, mut last) = (0, from);
    for (begin, end) in times {
        // The same may be told twice: by who paused it, and by who was.
        let (begin, end) = ((*begin).max(last), (*end).min(to));
        if end > begin {
            sum += end - begin;
            last = end;
        }
    }
    sum
}

//! When processes did not run: a call of one that was paused is excused for that long.

use std::collections::HashMap;

use crate::words::{Event, Micros};

#[derive(Default)]
pub(crate) struct Stalls(HashMap<u32, Vec<(Micros, Micros)>>);

impl Stalls {
    pub(super) fn of(events: &[Event]) -> Self {
        let mut stalls = Self::default();
        for event in events {
            if let Event::Stall { worker, from, to } = event {
                stalls.0.entry(*worker).or_default().push((*from, *to));
            }
        }
        for stalls in stalls.0.values_mut() {
            stalls.sort_unstable();
        }
        stalls
    }

    /// For how long in between the process did not run.
    pub(super) fn within(&self, worker: u32, from: Micros, to: Micros) -> Micros {
        let (mut sum, mut last) = (0, from);
        for (begin, end) in self.0.get(&worker).into_iter().flatten() {
            // The same may be told twice: by who paused it, and by who was.
            let (begin, end) = ((*begin).max(last), (*end).min(to));
            if end > begin {
                sum += end - begin;
                last = end;
            }
        }
        sum
    }
}

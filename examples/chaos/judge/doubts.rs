//! I6, while the run goes on: what was left in doubt lapses.

use std::collections::HashMap;

use super::{Case, SLACK, Violation};
use crate::words::{Acquire, Micros, Outcome, Seen};

impl Case<'_> {
    /// An acquire that was not granted, because nobody answered or since it gave up, holds nothing when its
    /// time is over, counted from when its last request can have arrived: from its end, or from that of a
    /// fault which held it up.
    pub(super) fn doubts_lapse(&self, found: &mut Vec<Violation>) {
        if self.is_sabotaged {
            return;
        }
        let in_doubt = |acquire: &&&Acquire| !matches!(acquire.outcome, Outcome::Granted { .. });
        let doubts: HashMap<_, _> =
            self.acquires.iter().filter(in_doubt).map(|one| ((one.worker, one.lease), *one)).collect();
        for inspect in &self.inspections {
            let Seen::Record { asked, .. } = &inspect.seen else { continue };
            for acquire in asked.iter().filter_map(|asked| doubts.get(asked)) {
                let until = self.arrived(acquire) + 2 * acquire.ttl + acquire.grace + SLACK;
                if inspect.begin > until {
                    let what = format!(
                        "{} is held at {} by lease {} of worker {}, which nobody has: its acquire ended at {}",
                        inspect.key, inspect.begin, acquire.lease, acquire.worker, acquire.end
                    );
                    found.push(Violation { of: "I6", what });
                }
            }
        }
    }

    fn arrived(&self, acquire: &Acquire) -> Micros {
        let during = self.faults.iter().filter(|fault| fault.begin <= acquire.end && fault.end >= acquire.begin);
        during.map(|fault| fault.end).fold(acquire.end, Micros::max)
    }
}

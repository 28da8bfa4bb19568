//! Invariant I6 during the run: a lease whose outcome is unknown expires.

use std::collections::HashMap;

use super::{Case, SLACK, Violation};
use crate::{
    faults::{AFTERMATH, Kind},
    words::{Acquire, Fault, Micros, Outcome, Seen, micros},
};

/// How often the driver of a worker looks for a primary.
const HEARTBEAT: Micros = 500_000;

impl Case<'_> {
    /// An acquire that was not granted, because nobody answered or since it gave up, holds nothing when its
    /// time is over, counted from when its last request can have arrived: from its end, or from when the
    /// faults were over that held it up, one after another.
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
                let until = self.arrived(acquire) + 2 * acquire.ttl + acquire.grace + self.drift + SLACK;
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

    /// It may be held in the network, by a server, or by a driver that looks for a primary, also when nobody
    /// waits for it any more; and that driver looks every half a second, before which the next fault may begin. After an
    /// outage it also opens all connections anew.
    fn arrived(&self, acquire: &Acquire) -> Micros {
        let lasts = |fault: &Fault| if fault.kind == Kind::Outage { fault.end + micros(AFTERMATH) } else { fault.end };
        let since = self.faults.iter().filter(|fault| lasts(fault) >= acquire.begin);
        let follows = |fault: &Fault, over| fault.begin <= over + HEARTBEAT;
        let over =
            since.fold(acquire.end, |over, fault| if follows(fault, over) { over.max(lasts(fault)) } else { over });
        // A process that stops before its driver has looked sends the request when it runs again.
        self.stalls.end(acquire.worker, over, over + HEARTBEAT).max(over) + HEARTBEAT
    }
}

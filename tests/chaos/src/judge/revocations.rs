//! Invariant I5 for revocations: a revoked lease no longer holds the key.

use std::collections::HashMap;

use super::{Case, Violation};
use crate::{
    words::{Micros, Seen, micros},
    worker::OPERATION_TIMEOUT,
};

impl Case<'_> {
    /// Whether a lease of this key that was asked for at `from` may have been revoked by `to`.
    pub(super) fn was_revoked(&self, key: &str, from: Micros, to: Micros) -> bool {
        self.revocations.values().any(|one| one.key == key && one.begin <= to && one.end >= from)
    }

    /// Nobody is told that it holds a key, and no linearizable read sees it do so, after somebody was told
    /// that it was taken from it.
    pub(super) fn revoked_is_over(&self, found: &mut Vec<Violation>) {
        let mut taken: HashMap<(&str, u64), Micros> = HashMap::new();
        for revoke in self.revocations.values() {
            for token in &revoke.tokens {
                taken.insert((&revoke.key, *token), revoke.end);
            }
        }
        let mut after = |key: &str, token: u64, begin: Micros, what: &str| {
            let before = taken.get(&(key, token)).filter(|end| **end < begin);
            if let Some(end) = before.filter(|end| !self.was_lost(end.saturating_sub(micros(OPERATION_TIMEOUT)), begin))
            {
                let what = format!("{what} {token} of {key} at {begin}, which was revoked by {end}");
                found.push(Violation { of: "I5", what });
            }
        };
        for inspect in &self.inspections {
            let Seen::Record { holders, .. } = &inspect.seen else { continue };
            for token in holders {
                after(&inspect.key, *token, inspect.begin, "a read saw");
            }
        }
        for lease in self.leases.values().flatten() {
            for (begin, _) in &lease.refreshed {
                after(&lease.acquire.key, lease.token, *begin, "a refresh kept");
            }
            for call in lease.calls.iter().filter(|call| ["ok", "ours"].contains(&call.outcome.as_str())) {
                after(&call.key, call.token, call.begin, &call.verb);
            }
        }
    }
}

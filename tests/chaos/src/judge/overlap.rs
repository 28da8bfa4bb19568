//! Invariant I4: leases that exclude each other never overlap.

use super::{Case, Lease, Violation};
use crate::words::Micros;

impl Case<'_> {
    /// For how long others believed together than may do so, and who.
    pub(super) fn overlaps(&self) -> Vec<(Micros, String)> {
        let mut found = Vec::new();
        for leases in self.leases.values() {
            let mut by_begin: Vec<_> = leases.iter().filter_map(|lease| Some((lease.believed?, lease))).collect();
            by_begin.sort_by_key(|((first, _), _)| *first);
            let mut holding: Vec<((u64, u64), &Lease<'_>)> = Vec::new();
            for ((first, last), lease) in by_begin {
                holding.retain(|((_, until), _)| *until > first);
                holding.push(((first, last), lease));
                let limit = holding.iter().map(|(_, lease)| lease.limit()).min().unwrap_or(1);
                let since = holding.iter().map(|(_, lease)| lease.acquire.begin).min().unwrap_or(first);
                if holding.len() > limit && !self.was_dropped(since, first) {
                    let names: Vec<_> = holding
                        .iter()
                        .map(|((from, to), lease)| format!("{} believed {from} to {to}", lease.name()))
                        .collect();
                    let until = holding.iter().map(|((_, until), _)| *until).min().unwrap_or(first);
                    found.push((until.saturating_sub(first), names.join(", ")));
                }
            }
        }
        found
    }

    /// Whoever was granted a key before the time of a holder was over who excludes it and had not begun
    /// to give it back: also one that was killed, or believed no more.
    pub(super) fn grants_too_soon(&self, found: &mut Vec<Violation>) {
        for leases in self.leases.values() {
            for after in leases {
                let (asked, granted) = (after.acquire.begin, after.acquire.end);
                let before = leases.iter().find(|before| {
                    let lasts = before.acquire.ttl + before.acquire.grace;
                    before.acquire.end < asked
                        && (before.is_exclusive() || after.is_exclusive())
                        && granted + self.drift < before.confirmed(asked) + lasts
                        && !before.gives_back(granted)
                        && !self.was_dropped(before.acquire.begin, granted)
                });
                if let Some(before) = before {
                    let what = format!("{} by {granted}, and until then there was {}", after.name(), before.name());
                    found.push(Violation { of: "I4", what });
                }
            }
        }
    }
}

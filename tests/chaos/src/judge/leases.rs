//! Collects what a history contains about each lease.

use std::collections::{BTreeMap, HashMap};

use super::granted;
use crate::words::{Acquire, Call, Event, Micros};

/// A lease as its history tells it.
pub(crate) struct Lease<'a> {
    pub(crate) acquire: &'a Acquire,
    pub(crate) token: u64,
    /// When it was first and last seen to be believed.
    pub(crate) believed: Option<(Micros, Micros)>,
    /// When requests were sent and answered that kept it.
    pub(crate) refreshed: Vec<(Micros, Micros)>,
    /// When its holder began to end it, and how.
    pub(crate) ends: Option<(Micros, &'a str)>,
    /// When it was found lost, and why.
    pub(crate) lost: Option<(Micros, &'a str, Option<u64>)>,
    pub(crate) calls: Vec<&'a Call>,
}

impl Lease<'_> {
    pub(crate) fn is_exclusive(&self) -> bool {
        self.acquire.limit == 0
    }

    /// How many may hold the key together.
    pub(crate) fn limit(&self) -> usize {
        (self.acquire.limit as usize).max(1)
    }

    /// When the last request was sent that had been answered by `by` with "you hold it".
    ///
    /// One that was handed the key was granted it at some time between call and answer, and its
    /// offer is counted from before; so the call is all that can be said.
    pub(crate) fn confirmed(&self, by: Micros) -> Micros {
        let refreshed = self.refreshed.iter().filter(|(_, end)| *end <= by).map(|(begin, _)| *begin).max();
        let queued = self.acquire.queued.as_ref().map_or(self.acquire.begin, |queued| queued.sent);
        refreshed.unwrap_or(queued).max(queued)
    }

    /// Whether it may have been given back by then. One that is left to its ttl is not.
    pub(crate) fn gives_back(&self, by: Micros) -> bool {
        self.ends.is_some_and(|(at, how)| how != "orphan" && at <= by)
    }

    pub(crate) fn name(&self) -> String {
        let Acquire { worker, lease, key, .. } = self.acquire;
        format!("token {} of {key} (worker {worker}, lease {lease})", self.token)
    }
}

/// All leases, by key, in the order in which the requests for them began.
pub(crate) fn leases(events: &[Event]) -> BTreeMap<&str, Vec<Lease<'_>>> {
    let mut all: HashMap<(u32, u64), Lease<'_>> = HashMap::new();
    for event in events {
        if let Event::Acquire(acquire) = event
            && let Some(token) = granted(acquire)
        {
            let lease = Lease {
                acquire,
                token,
                believed: None,
                refreshed: Vec::new(),
                ends: None,
                lost: None,
                calls: Vec::new(),
            };
            all.insert((acquire.worker, acquire.lease), lease);
        }
    }
    for event in events {
        let of = match event {
            Event::Looked { worker, lease, .. }
            | Event::Refreshed { worker, lease, .. }
            | Event::Ends { worker, lease, .. }
            | Event::Lost { worker, lease, .. }
            | Event::Call(Call { worker, lease, .. }) => (*worker, *lease),
            _ => continue,
        };
        let Some(lease) = all.get_mut(&of) else { continue };
        match event {
            Event::Looked { at, valid: true, .. } => {
                lease.believed = Some((lease.believed.map_or(*at, |(first, _)| first), *at));
            }
            Event::Refreshed { begin, end, .. } => lease.refreshed.push((*begin, *end)),
            Event::Ends { at, how, .. } => lease.ends = Some((*at, how)),
            Event::Lost { at, cause, newer, .. } => lease.lost = Some((*at, cause, *newer)),
            Event::Call(call) => lease.calls.push(call),
            _ => {}
        }
    }
    let mut by_key: BTreeMap<&str, Vec<Lease<'_>>> = BTreeMap::new();
    for lease in all.into_values() {
        by_key.entry(&lease.acquire.key).or_default().push(lease);
    }
    for leases in by_key.values_mut() {
        leases.sort_by_key(|lease| (lease.acquire.begin, lease.token));
    }
    by_key
}

//! The state machine: every verb is prune, apply, grant, stamp.

use std::slice;

use super::{
    Acquire, BatchRequest, Downgrade, Holder, LeaseSpec, Leave, Outcome, Raise, Record, Refresh, Request,
    ReturnDocument, Revocation, Revoke, StoreClock, StoreTime, Transfer, WaitSpec, Waiter,
};
use crate::{AcquireId, FencingToken, LeaseId, Ttl};

/// Applies a request to the record of a key at a moment: gives the record as it is afterwards, and
/// the outcome.
///
/// Where nothing changes, the record that comes out equals the one that went in.
#[must_use]
pub fn apply(before: Option<&Record>, at: StoreClock, request: &Request) -> (Option<Record>, Outcome) {
    let mut state = State::of(before, at);
    state.prune();
    match request {
        Request::Acquire(acquire) => state.acquire(slice::from_ref(acquire)),
        Request::Refresh(refresh) => state.refresh(refresh),
        Request::Release(release) => {
            state.holders.retain(|holder| !release.ends(holder));
            state.grant(&[]);
        }
        Request::Leave(leave) => {
            state.leave(slice::from_ref(leave));
            state.grant(&[]);
        }
        Request::Revoke(revoke) => state.revoke(revoke),
        Request::Transfer(transfer) => state.transfer(transfer),
        Request::Downgrade(downgrade) => state.downgrade(*downgrade),
        Request::Raise(raise) => state.raise(*raise),
        Request::Prune => state.grant(&[]),
    }
    let after = state.stamped(before);
    let image = match request.image() {
        ReturnDocument::Before => before,
        ReturnDocument::After => after.as_ref(),
    };
    let outcome = request.outcome(image.map(|image| image.view(request)).as_ref(), at.now);
    (after, outcome)
}

/// Applies several requests of a key as one, in this order, each of another lease: gives the record as it is afterwards,
/// and the outcome of each. They are acquires that wait, or acquires that do not, in either case to have the key alone; or
/// they are leaves.
///
/// The record is pruned once before them, and the key granted once after them. Acquires that share the key must be applied
/// one by one: see [`FencingToken::following`].
#[must_use]
pub fn apply_together(before: Option<&Record>, at: StoreClock, requests: &[Request]) -> (Option<Record>, Vec<Outcome>) {
    let mut state = State::of(before, at);
    state.prune();
    let (mut acquires, mut leaves) = (Vec::new(), Vec::new());
    for request in requests {
        match request {
            Request::Acquire(acquire) => acquires.push(acquire.clone()),
            Request::Leave(leave) => leaves.push(*leave),
            _ => {}
        }
    }
    state.leave(&leaves);
    state.acquire(&acquires);
    let after = state.stamped(before);
    let outcome = |request: &Request| {
        let image = match request.image() {
            ReturnDocument::Before => before,
            ReturnDocument::After => after.as_ref(),
        };
        request.outcome(image.map(|image| image.view(request)).as_ref(), at.now)
    };
    let outcomes = requests.iter().map(outcome).collect();
    (after, outcomes)
}

/// Does what is asked to those holders of a key that have these tokens: gives the record as it is
/// afterwards, or nothing where one of them is over, or nearly so as far as that counts.
///
/// Whom it keeps alive is all that this changes: nobody else is dropped or let in.
#[must_use]
pub fn apply_batch(before: &Record, at: StoreClock, tokens: &[FencingToken], joint: &BatchRequest) -> Option<Record> {
    let mut state = State::of(Some(before), at);
    let enough = at.now.after(joint.least());
    let lasts = |token: &FencingToken| {
        state.holders.iter().any(|holder| holder.version == *token && holder.expires_at >= enough)
    };
    if !tokens.iter().all(lasts) {
        return None;
    }
    let is_named = |holder: &Holder| tokens.contains(&holder.version);
    match joint {
        BatchRequest::Release => {
            state.prune();
            state.holders.retain(|holder| !is_named(holder));
            state.grant(&[]);
        }
        BatchRequest::Revoke { by, reason } => {
            state.prune();
            state.take(is_named, by, reason);
            state.grant(&[]);
        }
        // Who waits for somebody else's end asks at that time, so this is spared looking for it.
        BatchRequest::Keep { ttl } | BatchRequest::Refresh { ttl, .. } => {
            for holder in state.holders.iter_mut().filter(|holder| is_named(holder)) {
                holder.push_out(at.now, *ttl, holder.terms.grace);
            }
        }
    }
    state.stamped(Some(before))
}

/// A record while a request is applied to it.
struct State {
    at: StoreClock,
    version: Option<FencingToken>,
    holders: Vec<Holder>,
    queue: Vec<Waiter>,
    /// How many waited before the request.
    waited: usize,
    history: Vec<Revocation>,
    /// To whom this request hands the key, and from whom it takes it.
    handover: Vec<(AcquireId, Option<FencingToken>)>,
    /// Until when this request keeps the record, if for longer than its holders and waiters do.
    kept_until: StoreTime,
}

impl State {
    fn of(before: Option<&Record>, at: StoreClock) -> Self {
        Self {
            at,
            version: before.map(|record| record.version),
            holders: before.map(|record| record.holders.clone()).unwrap_or_default(),
            queue: before.map(|record| record.queue.clone()).unwrap_or_default(),
            waited: 0,
            history: before.map(|record| record.history.clone()).unwrap_or_default(),
            handover: Vec::new(),
            kept_until: StoreTime::default(),
        }
    }

    /// Drops the holders and waiters whose time is over.
    fn prune(&mut self) {
        let now = self.at.now;
        self.holders.retain(|holder| holder.expires_at > now);
        self.queue.retain(|waiter| waiter.expires_at > now);
        self.waited = self.queue.len();
    }

    fn acquire(&mut self, acquires: &[Acquire]) {
        for Acquire { terms, wait } in acquires {
            if let Some(holder) = self.push_out(terms.lease, terms.ttl, terms.grace) {
                // A process that takes its lease up again after a restart is who others see from now on.
                holder.terms.caller = terms.caller;
                holder.terms.owner = terms.owner.clone();
                holder.terms.group.clone_from(&terms.group);
                holder.terms.metadata = terms.metadata.clone();
            } else {
                self.enqueue(terms, *wait);
            }
        }
        self.grant(acquires);
        for Acquire { terms, .. } in acquires.iter().filter(|acquire| acquire.wait.is_none()) {
            self.queue.retain(|waiter| waiter.terms.lease != terms.lease);
        }
    }

    /// Puts one who asks at the end of the queue, if there is room. One who waits already keeps its
    /// place and pushes its time out; one who does not wait any more gives it up, and is let in at
    /// the end for as long as it takes to see whether the key can be had.
    fn enqueue(&mut self, terms: &LeaseSpec, wait: Option<WaitSpec>) {
        let lease = terms.lease;
        let WaitSpec { ttl, queue_limit } = wait.unwrap_or(WaitSpec { ttl: 0, queue_limit: u32::MAX });
        let now = self.at.now;
        let expires_at = now.after(ttl);
        if wait.is_none() {
            self.queue.retain(|queued| queued.terms.lease != lease);
        } else if let Some(queued) = self.queue.iter_mut().find(|queued| queued.terms.lease == lease) {
            // As whoever asks now counts on: it may be another process than the one before.
            queued.terms = terms.clone();
            queued.wait_ttl = ttl;
            queued.refreshes = queued.refreshes.saturating_add(1);
            queued.last_seen = queued.last_seen.max(now);
            queued.expires_at = queued.expires_at.max(expires_at);
            return;
        }
        if usize::try_from(queue_limit).is_ok_and(|limit| self.queue.len() < limit) {
            self.queue.push(Waiter {
                terms: terms.clone(),
                wait_ttl: ttl,
                refreshes: 0,
                since: now,
                last_seen: now,
                expires_at,
            });
        }
    }

    fn refresh(&mut self, refresh: &Refresh) {
        let holder = self.push_out(refresh.lease, refresh.ttl, refresh.grace);
        if let (Some(holder), Some(metadata)) = (holder, &refresh.metadata) {
            holder.terms.metadata.clone_from(metadata);
        }
        self.grant(&[]);
    }

    fn leave(&mut self, leaves: &[Leave]) {
        let stays = |terms: &LeaseSpec| !leaves.iter().any(|leave| leave.ends(terms));
        self.holders.retain(|holder| stays(&holder.terms));
        self.queue.retain(|waiter| stays(&waiter.terms));
    }

    fn revoke(&mut self, revoke: &Revoke) {
        self.take(|holder| revoke.ends(holder), &revoke.by, &revoke.reason);
        self.grant(&[]);
    }

    /// Takes the key from those holders, and remembers it.
    fn take(&mut self, ends: impl Fn(&Holder) -> bool, by: &str, reason: &str) {
        let (ended, kept): (Vec<_>, Vec<_>) = self.holders.drain(..).partition(ends);
        self.holders = kept;
        if !ended.is_empty() {
            self.handover.extend(ended.iter().map(|holder| (holder.terms.caller, None)));
            self.history.push(Revocation {
                by: by.to_owned(),
                reason: reason.to_owned(),
                at: self.at.now,
                tokens: ended.into_iter().map(|holder| holder.version).collect(),
            });
            let forgotten = self.history.len().saturating_sub(Record::MAX_HISTORY);
            self.history.drain(..forgotten);
        }
    }

    /// The holder becomes another lease, with a larger token; or where that was done before, it is
    /// counted.
    fn transfer(&mut self, transfer: &Transfer) {
        let (now, version) = (self.at.now, FencingToken::following(self.version, self.at.tick, self.queue.len()));
        let is_theirs = |holder: &&mut Holder| holder.terms.lease == transfer.to;
        if let Some(holder) = self.holders.iter_mut().find(is_theirs) {
            holder.refreshes = holder.refreshes.saturating_add(1);
        } else if let Some(holder) = self.holders.iter_mut().find(|holder| transfer.gives(holder)) {
            holder.terms.lease = transfer.to;
            holder.version = version;
            holder.refreshes = 0;
            holder.since = now;
            holder.last_seen = now;
            holder.expires_at = expiry(now, holder.terms.ttl, holder.terms.grace);
            self.version = Some(version);
            // Whoever waits under that id is told, and asks.
            let told = self.queue.extract_if(.., |waiter| waiter.terms.lease == transfer.to);
            self.handover.extend(told.map(|waiter| (waiter.terms.caller, None)));
        }
        self.grant(&[]);
    }

    /// The holder gets the limit, or if it has that already, is counted. The grant after it lets sharers in.
    fn downgrade(&mut self, downgrade: Downgrade) {
        if let Some(holder) = self.holders.iter_mut().find(|holder| downgrade.changes(holder)) {
            holder.terms.limit = downgrade.limit;
            holder.refreshes = holder.refreshes.saturating_add(1);
            holder.last_seen = holder.last_seen.max(self.at.now);
        }
        self.grant(&[]);
    }

    /// Raises the version before the grant, so that a waiter that is granted the key has a larger token, too.
    fn raise(&mut self, raise: Raise) {
        self.version = self.version.max(Some(raise.to));
        self.kept_until = raise.keeps_until();
        self.grant(&[]);
    }

    /// Pushes the expiry of a lease out and counts that it did, if the lease holds.
    fn push_out(&mut self, lease: LeaseId, ttl: u64, grace: u64) -> Option<&mut Holder> {
        let holder = self.holders.iter_mut().find(|holder| holder.terms.lease == lease)?;
        holder.push_out(self.at.now, ttl, grace);
        Some(holder)
    }

    /// Moves waiters from the head of the queue to the holders, up to the first that has to wait.
    /// `asking` gets its whole ttl; the others get a short claim until they are heard of. A waiter counts
    /// it from when it asked last, which can be later than this request was parsed.
    fn grant(&mut self, asking: &[Acquire]) {
        let ready = self.ready();
        let now = self.at.now;
        let others = self.waited.min(self.queue.len().saturating_sub(1));
        for Waiter { terms, wait_ttl, last_seen, .. } in self.queue.drain(..ready) {
            let version = FencingToken::following(self.version, self.at.tick, others);
            let lasts = if asking.iter().any(|acquire| acquire.terms.lease == terms.lease) {
                terms.ttl
            } else {
                self.handover.push((terms.caller, Some(version)));
                terms.ttl.min(wait_ttl)
            };
            self.version = Some(version);
            self.holders.push(Holder {
                version,
                refreshes: 0,
                since: now,
                last_seen: now,
                expires_at: expiry(now.max(last_seen), lasts, terms.grace),
                terms,
            });
        }
    }

    /// How many waiters at the head of the queue can hold the key together with its holders.
    fn ready(&self) -> usize {
        let mut count = self.holders.len();
        // The smallest limit among the holders says how many they are willing to be.
        let mut limit = self.holders.iter().map(|holder| holder.terms.limit).min();
        self.queue
            .iter()
            .take_while(|waiter| {
                let wanted = waiter.terms.limit;
                let together = limit.map_or(wanted, |limit| limit.min(wanted));
                let admitted = count == 0 || usize::try_from(together).is_ok_and(|together| count < together);
                count = count.saturating_add(1);
                limit = Some(together);
                admitted
            })
            .count()
    }

    /// The record afterwards, with its times moved on if anything else changed.
    fn stamped(self, before: Option<&Record>) -> Option<Record> {
        let Self { at, version, holders, queue, history, handover, kept_until, .. } = self;
        let version = version?;
        let same = before.filter(|before| {
            before.version == version && before.holders == holders && before.queue == queue && before.history == history
        });
        if let Some(same) = same {
            return Some(same.clone());
        }
        let now = at.now.max(at.hybrid());
        let ends = holders.iter().map(|holder| holder.expires_at).chain(queue.iter().map(|waiter| waiter.expires_at));
        let end = ends.fold(now, StoreTime::max);
        let more = end.millis().abs_diff(now.millis());
        let expires_at = match before.map(|before| before.expires_at) {
            Some(later) if later >= end => later,
            // Twice as far as it must, so that most writes leave the index on it alone.
            _ if more <= Ttl::MAX.millis() => end.after(more),
            _ => end,
        };
        let expires_at = expires_at.max(kept_until);
        Some(Record { version, holders, queue, handover, last_seen: at.now, expires_at, history })
    }
}

impl Holder {
    fn push_out(&mut self, now: StoreTime, ttl: u64, grace: u64) {
        self.terms.ttl = ttl;
        self.terms.grace = grace;
        self.refreshes = self.refreshes.saturating_add(1);
        self.last_seen = self.last_seen.max(now);
        self.expires_at = self.expires_at.max(expiry(now, ttl, grace));
    }
}

fn expiry(now: StoreTime, ttl: u64, grace: u64) -> StoreTime {
    now.after(ttl.saturating_add(grace))
}

#[cfg(test)]
mod tests;

//! The state machine of a record.
//!
//! Mechanism: each request is four steps: prune, apply, grant, stamp.
//!
//! Invariants: tokens of a key only grow, an expired entry is never extended, and a request that changes nothing
//! returns an equal record.

use std::{mem, slice};

use super::{
    Acquire, BatchRequest, Complete, CompletedTick, Downgrade, Holder, KeyRequest, LeaseSpec, Leave, Outcome,
    PastRevocation, PastRun, PutValue, Raise, Record, RecordSummary, Refresh, Release, Request, Reset, ReturnDocument,
    Revoke, RunReport, StoreClock, StoreTime, StoredValue, Transfer, WaitSpec, Waiter,
};
use crate::types::{acquire_id::AcquireId, lease_id::LeaseId, sharing::Sharing, token::FencingToken, ttl::Ttl};

/// Applies a request to the record of a key. Returns the record afterwards and the outcome.
///
/// If nothing changes, the returned record equals the given one.
#[must_use]
pub fn apply(before: Option<&Record>, at: StoreClock, request: &Request) -> (Option<Record>, Outcome) {
    let mut state = State::of(before, at);
    let outcome = state.apply(request);
    (state.stamp(before), outcome)
}

/// Applies these requests for a key one after another as one write. Returns the record afterwards and the outcomes of
/// those that were applied: all up to the first that needs a write of its own, and at least one.
///
/// Each outcome is that which the request would have if each was a write of its own at this time. The hand-overs of all
/// are in the record. A write moves the clock on by one, so it issues one token, beside those that earlier waiters have
/// in reserve: see [`FencingToken::following`]. That decides which requests need a write of their own.
#[must_use]
pub fn apply_in_turn<'a>(
    before: Option<&Record>,
    at: StoreClock,
    requests: impl IntoIterator<Item = &'a KeyRequest>,
) -> (Option<Record>, Vec<Outcome>) {
    let (mut state, mut outcomes) = (State::of(before, at), Vec::new());
    for request in requests {
        if !outcomes.is_empty() && !state.has_room(request) {
            break;
        }
        outcomes.push(match request {
            KeyRequest::Single(request) => state.apply(request),
            KeyRequest::Batch(tokens, batch) => state.apply_batch(tokens, batch),
        });
    }
    (state.stamp(before), outcomes)
}

/// Applies several requests for a key in this order as one write. Returns the record afterwards and the outcome of
/// each.
///
/// The requests are of different leases. All are acquires that wait, or acquires that do not, in either case exclusive;
/// or all are leaves. The record is pruned once before them, and the key granted once after them. Shared acquires must
/// be applied one by one: see [`FencingToken::following`].
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
    for acquire in &acquires {
        state.enqueue(acquire);
    }
    state.finish(&acquires);
    let after = state.stamp(before);
    let outcome = |request: &Request| {
        let record = match request.return_document() {
            ReturnDocument::Before => before,
            ReturnDocument::After => after.as_ref(),
        };
        request.outcome(record.map(|record| record.summarize(request)).as_ref(), at.now)
    };
    let outcomes = requests.iter().map(outcome).collect();
    (after, outcomes)
}

/// Applies a batch request to the holders of a key with these tokens. Returns the record afterwards, or `None` if one
/// of them has ended or has too little time left.
///
/// A batch refresh changes only the named holders; it neither prunes nor grants. A released lease, whose entry keeps the
/// key unavailable, has ended. A revocation ends that entry, too.
#[must_use]
pub fn apply_batch(before: &Record, at: StoreClock, tokens: &[FencingToken], batch: &BatchRequest) -> Option<Record> {
    let mut state = State::of(Some(before), at);
    let outcome = state.apply_batch(tokens, batch);
    if outcome == Outcome::Absent { None } else { state.stamp(Some(before)) }
}

/// A record while a write is made of it.
struct State {
    at: StoreClock,
    version: Option<FencingToken>,
    holders: Vec<Holder>,
    queue: Vec<Waiter>,
    /// How many waited before the write, but for those that gave up their place.
    waited: usize,
    /// The first waiter before the request.
    first: Option<AcquireId>,
    /// Whether the request has released a lease whose minimum hold is not over.
    is_released_early: bool,
    /// Whether the request has granted the key.
    is_granted: bool,
    history: Vec<PastRevocation>,
    done: Option<CompletedTick>,
    runs: Vec<PastRun>,
    value: Option<StoredValue>,
    /// The acquires to which the write grants the key, and those that must send a request: see [`Record::handover`].
    handover: Vec<(AcquireId, Option<FencingToken>)>,
    /// The time until which the write keeps the record at least.
    keep_until: StoreTime,
    /// Whether the write has issued a token, or has queued a sharer, for which it has moved the clock on.
    is_spent: bool,
}

impl State {
    fn of(before: Option<&Record>, at: StoreClock) -> Self {
        Self {
            at,
            version: before.map(|record| record.version),
            holders: before.map(|record| record.holders.clone()).unwrap_or_default(),
            queue: before.map(|record| record.queue.clone()).unwrap_or_default(),
            waited: before.map_or(0, |record| record.count_waiters(at.now)),
            first: before.and_then(|record| record.queue.first()).map(|waiter| waiter.terms.acquire_id),
            is_released_early: false,
            is_granted: false,
            history: before.map(|record| record.history.clone()).unwrap_or_default(),
            done: before.and_then(|record| record.done.clone()),
            runs: before.map(|record| record.runs.clone()).unwrap_or_default(),
            value: before.and_then(|record| record.value.clone()),
            handover: Vec::new(),
            keep_until: StoreTime::default(),
            is_spent: false,
        }
    }

    /// Applies a request. Returns its outcome.
    fn apply(&mut self, request: &Request) -> Outcome {
        let before = (request.return_document() == ReturnDocument::Before).then(|| self.summarize(request));
        self.prune();
        match request {
            Request::Acquire(acquire) => self.enqueue(acquire),
            Request::Refresh(refresh) => self.refresh(refresh),
            Request::Release(Release { lease, token }) => self.release(|holder| holder.is_lease(*lease, *token)),
            Request::Leave(leave) => self.leave(slice::from_ref(leave)),
            Request::Revoke(Revoke { by, reason, upto }) => self.revoke(|holder| holder.version <= *upto, by, reason),
            Request::Transfer(transfer) => self.transfer(transfer, false),
            Request::Upgrade(upgrade) => self.transfer(upgrade, true),
            Request::Downgrade(downgrade) => self.downgrade(*downgrade),
            Request::Raise(raise) => self.raise(*raise),
            Request::Complete(complete) => self.complete(complete),
            Request::Reset(reset) => self.reset(reset),
            Request::PutValue(put) => self.put_value(put),
            Request::Prune => {}
        }
        self.finish(match request {
            Request::Acquire(acquire) => slice::from_ref(acquire),
            _ => &[],
        });
        let summary = before.unwrap_or_else(|| self.summarize(request));
        request.outcome(summary.as_ref(), self.at.now)
    }

    /// Applies a batch request to the holders with these tokens. `Absent`: it was not applied.
    fn apply_batch(&mut self, tokens: &[FencingToken], batch: &BatchRequest) -> Outcome {
        let now = self.at.now;
        let ends_released = matches!(batch, BatchRequest::Revoke { .. });
        let can_be_named = |holder: &Holder| ends_released || holder.released_at.is_none();
        let is_held = |token: &FencingToken| {
            let is_it = |holder: &&Holder| holder.version == *token && can_be_named(holder);
            self.holders.iter().find(is_it).is_some_and(|holder| holder.expires_at > now)
        };
        if !tokens.iter().all(is_held) {
            return Outcome::Absent;
        }
        let is_named = |holder: &Holder| tokens.contains(&holder.version);
        match batch {
            BatchRequest::Release => {
                self.prune();
                self.release(is_named);
            }
            BatchRequest::Revoke { by, reason } => {
                self.prune();
                self.revoke(is_named, by, reason);
            }
            // A waiter repeats its acquire when the holder expires, so a batch refresh need not look for expired
            // entries.
            BatchRequest::Keep { ttl } => {
                for holder in self.holders.iter_mut().filter(|holder| is_named(holder)) {
                    holder.refresh(now, *ttl, holder.terms.grace);
                }
                return tokens.first().map_or(Outcome::Released, |token| Outcome::Refreshed { token: *token });
            }
        }
        self.finish(&[]);
        Outcome::Released
    }

    /// Whether the write can have this request, too.
    ///
    /// A write moves the clock on by one. So it may issue one token, or queue one sharer, beside the tokens that earlier
    /// waiters have in reserve: see [`FencingToken::following`]. After that, it can have an acquire if a holder excludes
    /// all others, and the requests that end no lease.
    fn has_room(&self, request: &KeyRequest) -> bool {
        if !self.is_spent {
            return true;
        }
        match request {
            KeyRequest::Single(Request::Acquire(Acquire { terms, .. })) => {
                let is_queued =
                    |waiter: &Waiter| waiter.terms.lease == terms.lease && !waiter.terms.sharing.is_exclusive();
                let is_exclusive = self.holders.iter().any(|holder| holder.terms.sharing.is_exclusive());
                is_exclusive && (terms.sharing.is_exclusive() || self.queue.iter().any(is_queued))
            }
            // These requests end no lease, and what was ready was granted by the request before.
            KeyRequest::Single(Request::Refresh(_) | Request::Raise(_) | Request::Reset(_) | Request::Prune)
            | KeyRequest::Batch(_, BatchRequest::Keep { .. }) => true,
            KeyRequest::Single(_) | KeyRequest::Batch(..) => false,
        }
    }

    /// The part of the record from which the outcome of a request is read. `None`: there is no record.
    fn summarize(&self, request: &Request) -> Option<RecordSummary> {
        let version = self.version?;
        Some(RecordSummary::of(request, version, &self.holders, &self.queue, (self.done.as_ref(), self.value.as_ref())))
    }

    /// Removes expired holders and waiters.
    fn prune(&mut self) {
        let now = self.at.now;
        self.prune_holders();
        self.queue.retain(|waiter| waiter.expires_at > now);
    }

    fn prune_holders(&mut self) {
        let now = self.at.now;
        self.holders.retain(|holder| holder.expires_at > now);
    }

    /// Grants the key after the requests, of which these are acquires, and names the first waiter.
    fn finish(&mut self, acquires: &[Acquire]) {
        self.grant(acquires);
        // An acquire that does not wait is in the queue only for as long as the grant takes.
        let is_brief =
            |acquire: &Acquire, terms: &LeaseSpec| acquire.wait.is_none() && is_of_any(slice::from_ref(acquire), terms);
        self.queue.retain(|waiter| !acquires.iter().any(|acquire| is_brief(acquire, &waiter.terms)));
        self.notify_first(acquires);
    }

    /// Extends the expiry of what the acquire holds, or of its place in the queue, or puts it at the end of the queue if
    /// there is room. If its lease id is that of another acquire, changes nothing.
    ///
    /// An acquire that no longer waits gives up its place and comes last, so that the grant reaches the waiters behind it.
    fn enqueue(&mut self, acquire: &Acquire) {
        let Acquire { terms, wait } = acquire;
        let WaitSpec { ttl, queue_limit } = wait.unwrap_or(WaitSpec { ttl: 0, queue_limit: u32::MAX });
        let now = self.at.now;
        let expires_at = now.after(ttl);
        let is_own = |entry: &LeaseSpec| entry.is_of(terms.lease, terms.acquire_id);
        if let Some(holder) = self.holders.iter_mut().find(|holder| is_own(&holder.terms)) {
            return holder.extend_expiry(now, terms.ttl, terms.grace);
        }
        if wait.is_none() {
            let before = self.queue.len();
            self.queue.retain(|queued| !is_own(&queued.terms));
            self.waited = self.waited.saturating_sub(before.saturating_sub(self.queue.len()));
        } else if let Some(queued) = self.queue.iter_mut().find(|queued| is_own(&queued.terms)) {
            queued.refreshes = queued.refreshes.saturating_add(1);
            queued.last_seen = queued.last_seen.max(now);
            queued.expires_at = queued.expires_at.max(expires_at);
            return;
        }
        let mut entries =
            self.holders.iter().map(|holder| &holder.terms).chain(self.queue.iter().map(|queued| &queued.terms));
        if entries.any(|entry| entry.lease == terms.lease) {
            return;
        }
        if usize::try_from(queue_limit).is_ok_and(|limit| self.queue.len() < limit) {
            self.is_spent |= !terms.sharing.is_exclusive();
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
        if let Some(holder) = self.holders.iter_mut().find(|holder| holder.terms.lease == refresh.lease) {
            holder.refresh(self.at.now, refresh.ttl, refresh.grace);
            holder.terms.acquire_id = refresh.acquire_id.unwrap_or(holder.terms.acquire_id);
            if let Some(metadata) = &refresh.metadata {
                holder.terms.metadata.clone_from(metadata);
            }
        }
    }

    fn leave(&mut self, leaves: &[Leave]) {
        let stays = |terms: &LeaseSpec| !leaves.iter().any(|leave| terms.is_of(leave.lease, leave.acquire_id));
        self.holders.retain(|holder| stays(&holder.terms));
        self.queue.retain(|waiter| stays(&waiter.terms));
    }

    /// Takes the key from these holders, and records that.
    fn revoke(&mut self, ends: impl Fn(&Holder) -> bool, by: &str, reason: &str) {
        let (ended, kept): (Vec<_>, Vec<_>) = self.holders.drain(..).partition(ends);
        self.holders = kept;
        if !ended.is_empty() {
            self.handover.extend(ended.iter().map(|holder| (holder.terms.acquire_id, None)));
            self.history.push(PastRevocation {
                by: by.to_owned(),
                reason: reason.to_owned(),
                at: self.at.now,
                tokens: ended.into_iter().map(|holder| holder.version).collect(),
            });
            let forgotten = self.history.len().saturating_sub(Record::MAX_HISTORY);
            self.history.drain(..forgotten);
        }
    }

    /// Gives the holder another lease id and a larger token. If that was done before, counts the request. `exclusively`:
    /// only if no other lease holds the key, and it excludes others from then on.
    fn transfer(&mut self, transfer: &Transfer, exclusively: bool) {
        let is_possible = !exclusively || self.holders.len() == 1;
        let (now, version) = (self.at.now, FencingToken::following(self.version, self.at.hlc, self.queue.len()));
        let is_receiver = |holder: &&mut Holder| holder.terms.lease == transfer.to;
        if let Some(holder) = self.holders.iter_mut().find(is_receiver) {
            holder.refreshes = holder.refreshes.saturating_add(1);
        } else if let Some(holder) =
            self.holders.iter_mut().find(|holder| is_possible && holder.is_lease(transfer.lease, transfer.token))
        {
            holder.terms.lease = transfer.to;
            if exclusively {
                holder.terms.sharing = Sharing::Exclusive;
            }
            holder.version = version;
            holder.refreshes = 0;
            holder.since = now;
            holder.last_seen = now;
            holder.expires_at = no_later(expiry(now, holder.terms.ttl, holder.terms.grace), holder.not_after);
            self.version = Some(version);
            self.is_spent = true;
        }
    }

    /// Releases these holders. If the minimum hold of a holder is not over, its entry stays until then, under a lease id
    /// that no process has: so no acquire takes the lease up again.
    fn release(&mut self, ends: impl Fn(&Holder) -> bool) {
        let now = self.at.now;
        for holder in self.holders.iter_mut().filter(|holder| ends(holder)) {
            let end = holder.held_until().unwrap_or(now);
            holder.terms.lease = LeaseId::NONE;
            holder.released_at = Some(now);
            holder.not_after = Some(end);
            holder.expires_at = end;
            self.is_released_early |= end > now;
        }
        self.prune_holders();
    }

    /// Completes a tick, unless the lease was revoked or the key was granted to another lease since it expired. The
    /// lease is released in either case.
    fn complete(&mut self, complete: &Complete) {
        let Complete { lease, token, tick, by, keep, report } = complete;
        let is_it = |holder: &Holder| holder.is_lease(*lease, *token);
        let is_held = self.holders.iter().any(is_it);
        let is_revoked = self.history.iter().any(|revocation| revocation.tokens.contains(token));
        let is_newest = self.version == Some(*token) && !is_revoked;
        let is_new = self.done.as_ref().is_none_or(|done| done.tick < *tick && done.token != *token);
        if (is_held || is_newest) && is_new {
            let (tick, token, by, at) = (*tick, *token, by.clone(), self.at.now);
            let RunReport { took, is_failed, note, period } = report.clone();
            self.done = Some(CompletedTick { tick, token, by: by.clone(), at });
            self.runs.push(PastRun { tick, token, by, since: at.before(took), at, is_failed, note, period });
            let forgotten = self.runs.len().saturating_sub(Record::MAX_RUNS);
            self.runs.drain(..forgotten);
        }
        self.keep_until = self.keep_until.max(self.at.now.after(*keep));
        self.release(is_it);
    }

    fn reset(&mut self, reset: &Reset) {
        let now = self.at.now;
        let is_meant = |done: &&mut CompletedTick| done.tick > reset.tick && done.token <= reset.upto;
        if let Some(done) = self.done.as_mut().filter(is_meant) {
            (done.tick, done.by, done.at) = (reset.tick, reset.by.clone(), now);
        }
    }

    /// Puts the value if the lease holds the key exclusively and the write follows the last one, and then releases the lease
    /// if the write does so. Otherwise counts the request.
    fn put_value(&mut self, put: &PutValue) {
        let PutValue { lease, token, after, write, content, keep, releases } = put;
        let (now, follows) = (self.at.now, put.last_write(self.value.as_ref()) == *after);
        let is_it = |holder: &Holder| holder.is_lease(*lease, *token);
        self.keep_until = self.keep_until.max(now.after(*keep));
        let is_putting = |holder: &&mut Holder| is_it(holder) && holder.terms.sharing.is_exclusive();
        let Some(holder) = self.holders.iter_mut().find(is_putting) else { return };
        let is_release = follows && *releases;
        if !is_release {
            holder.refreshes = holder.refreshes.saturating_add(1);
            holder.last_seen = holder.last_seen.max(now);
        }
        if follows {
            self.value = Some(StoredValue { content: content.clone(), token: *token, write: *write, at: now });
        }
        if is_release {
            self.release(is_it);
        }
    }

    /// The holder gets the limit, or if it has that already, is counted. The grant after it lets sharers in.
    fn downgrade(&mut self, downgrade: Downgrade) {
        if let Some(holder) = self.holders.iter_mut().find(|holder| downgrade.changes(holder)) {
            holder.terms.sharing = downgrade.sharing;
            holder.refreshes = holder.refreshes.saturating_add(1);
            holder.last_seen = holder.last_seen.max(self.at.now);
        }
    }

    /// Raises the version before the grant, so that a granted waiter has a larger token, too.
    fn raise(&mut self, raise: Raise) {
        self.version = self.version.max(Some(raise.to));
        self.keep_until = self.keep_until.max(raise.keep_until());
    }

    /// Grants the key to the waiters at the head of the queue, up to the first that has to wait. The acquires of this
    /// request get their whole ttl. Other waiters get a short offer, until their next request. The offer counts from
    /// the waiter's last acquire, which can be later than the time at which this request was parsed.
    fn grant(&mut self, acquires: &[Acquire]) {
        let ready = self.count_ready();
        self.is_granted |= ready > 0;
        let now = self.at.now;
        let others = self.waited.min(self.queue.len().saturating_sub(1));
        for Waiter { terms, wait_ttl, last_seen, .. } in self.queue.drain(..ready) {
            let version = FencingToken::following(self.version, self.at.hlc, others);
            let validity = if is_of_any(acquires, &terms) {
                terms.ttl
            } else {
                self.handover.push((terms.acquire_id, Some(version)));
                terms.ttl.min(wait_ttl)
            };
            self.version = Some(version);
            self.is_spent = true;
            let begin = now.max(last_seen);
            let not_after = terms.hold.max.map(|max| expiry(begin, max, terms.grace));
            self.holders.push(Holder {
                version,
                refreshes: 0,
                since: now,
                last_seen: now,
                expires_at: no_later(expiry(begin, validity, terms.grace), not_after),
                not_after,
                released_at: None,
                terms,
            });
        }
    }

    /// Names the first waiter if it may not know when the key is available: the waiter before it left the queue and the
    /// request granted nothing, or the waiter waits for the end of a minimum hold only. An acquire of the request is not
    /// named, because it gets the answer.
    ///
    /// No write ends a lease that expires, or a minimum hold. So the waiter sends its acquire again, and the answer has the
    /// time at which to send the next. After a grant it is not named unless a minimum hold keeps it waiting: a hand-over is
    /// one write, and the new holder will release.
    fn notify_first(&mut self, acquires: &[Acquire]) {
        let before = mem::replace(&mut self.first, self.queue.first().map(|waiter| waiter.terms.acquire_id));
        let is_released_early = mem::take(&mut self.is_released_early);
        let is_granted = mem::take(&mut self.is_granted);
        let Some(Waiter { terms, .. }) = self.queue.first() else { return };
        let has_minimum_hold = self.holders.iter().any(|holder| holder.released_at.is_some());
        let is_new = before != Some(terms.acquire_id);
        if ((is_new && (has_minimum_hold || !is_granted)) || is_released_early) && !is_of_any(acquires, terms) {
            self.handover.push((terms.acquire_id, None));
        }
    }

    /// How many waiters at the head of the queue can hold the key together with its holders.
    fn count_ready(&self) -> usize {
        let mut count = self.holders.len();
        // The holders allow as many sharers as the smallest limit among them.
        let mut limit = self.holders.iter().map(|holder| holder.terms.sharing.holders()).min();
        self.queue
            .iter()
            .take_while(|waiter| {
                let wanted = waiter.terms.sharing.holders();
                let together = limit.map_or(wanted, |limit| limit.min(wanted));
                let admitted = count == 0 || usize::try_from(together).is_ok_and(|together| count < together);
                count = count.saturating_add(1);
                limit = Some(together);
                admitted
            })
            .count()
    }

    /// The record afterwards. If anything has changed, its times are moved on.
    fn stamp(self, before: Option<&Record>) -> Option<Record> {
        let Self { at, version, holders, queue, history, done, runs, value, handover, keep_until, .. } = self;
        let version = version?;
        // The runs change only with the last completed tick, and the value with its holder.
        let same = before.filter(|before| {
            before.version == version
                && before.holders == holders
                && before.queue == queue
                && before.history == history
                && before.done == done
        });
        if let Some(same) = same {
            return Some(same.clone());
        }
        let ends = holders.iter().map(|holder| holder.expires_at).chain(queue.iter().map(|waiter| waiter.expires_at));
        let end = ends.fold(at.now, StoreTime::max);
        let more = end.millis().abs_diff(at.now.millis());
        let expires_at = match before.map(|before| before.expires_at) {
            Some(later) if later >= end => later,
            // Farther than it must be, so that most writes do not change the index on it.
            _ => end.after(more.min(Ttl::MAX.millis())),
        };
        // No sooner than the second of the hybrid clock.
        let second = StoreTime::default().after(at.hlc.seconds.saturating_mul(1_000));
        let expires_at = expires_at.max(second).max(keep_until);
        Some(Record { version, holders, queue, handover, last_seen: at.now, expires_at, history, done, runs, value })
    }
}

impl Holder {
    /// Gives the lease this ttl and grace, from now on.
    fn refresh(&mut self, now: StoreTime, ttl: u64, grace: u64) {
        self.terms.ttl = ttl;
        self.terms.grace = grace;
        self.extend_expiry(now, ttl, grace);
    }

    /// Extends the expiry, and counts that.
    fn extend_expiry(&mut self, now: StoreTime, ttl: u64, grace: u64) {
        self.refreshes = self.refreshes.saturating_add(1);
        self.last_seen = self.last_seen.max(now);
        self.expires_at = no_later(self.expires_at.max(expiry(now, ttl, grace)), self.not_after);
    }
}

/// Whether these are the terms of one of the acquires.
fn is_of_any(acquires: &[Acquire], terms: &LeaseSpec) -> bool {
    acquires.iter().any(|acquire| terms.is_of(acquire.terms.lease, acquire.terms.acquire_id))
}

/// The time, or the bound if that is earlier.
fn no_later(time: StoreTime, bound: Option<StoreTime>) -> StoreTime {
    bound.map_or(time, |bound| time.min(bound))
}

fn expiry(now: StoreTime, ttl: u64, grace: u64) -> StoreTime {
    now.after(ttl.saturating_add(grace))
}

#[cfg(test)]
mod tests;

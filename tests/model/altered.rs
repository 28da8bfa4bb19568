//! The library's state machine, with the rule taken out that a test takes out.

use mongoseal::{
    FencingToken, LeaseId,
    record::{
        self, BatchRequest, Complete, CompletedTick, Downgrade, Holder, Leave, Outcome, PutValue, Record, Release,
        Request, StoreClock, StoreTime,
    },
    store::HybridTime,
};

use crate::{config::Rule, server::Server};

impl Server {
    /// The machine, with the rule taken out that is to be missed.
    pub(crate) fn apply_one(
        &self,
        before: Option<&Record>,
        at: StoreClock,
        request: &Request,
    ) -> (Option<Record>, Outcome) {
        let altered = before.and_then(|before| self.alter(before, request));
        let request = altered.as_ref().unwrap_or(request);
        let without = self.config.without;
        let no_clock = StoreClock { hlc: HybridTime { seconds: 0, ordinal: 0 }, ..at };
        let at = if without == Some(Rule::ClockInTokens) { no_clock } else { at };
        let (after, mut outcome) = record::apply(before, at, request);
        let Some(mut after) = after.filter(|after| before != Some(after)) else {
            return self.apply_schedule(before, at, request);
        };
        match (without, before) {
            (Some(Rule::VersionInTokens), _) => {
                let old = |lease| before.and_then(|before| before.holder(lease)).map(|old| old.version);
                let by_clock = FencingToken::following(None, at.hlc, 0);
                let is_new = |holder: &&mut Holder| old(holder.terms.lease) != Some(holder.version);
                if let Some(holder) = after.holders.iter_mut().find(is_new) {
                    holder.version = by_clock;
                    after.version = by_clock;
                }
                outcome = request.outcome(Some(&after.summarize(request)), at.now);
            }
            (Some(Rule::ExpiryNeverBack), Some(before)) => {
                let forgetful = Record { expires_at: StoreTime::default(), ..before.clone() };
                after = record::apply(Some(&forgetful), at, request).0.unwrap();
            }
            // The hybrid clock still numbers tokens; its second does not stamp the record.
            (Some(Rule::HybridInExpiry), _) => {
                let ends = after.holders.iter().map(|holder| holder.expires_at);
                let ends = ends.chain(after.queue.iter().map(|waiter| waiter.expires_at));
                let end = ends.chain([at.now]).max().unwrap();
                let later = before.map(|before| before.expires_at).filter(|later| *later >= end);
                after.expires_at = later.unwrap_or_else(|| end.after(end.millis().abs_diff(at.now.millis())));
            }
            (Some(Rule::ClaimsFromLastAsk), _) => {
                let Record { holders, handover, .. } = &mut after;
                let is_granted =
                    |holder: &&mut Holder| handover.contains(&(holder.terms.acquire_id, Some(holder.version)));
                for holder in holders.iter_mut().filter(is_granted) {
                    holder.expires_at = at.now.after(holder.terms.ttl + holder.terms.grace);
                }
            }
            _ => return self.apply_schedule(before, at, request),
        }
        (Some(after), outcome)
    }

    /// The request for what a store without the rule makes of this one.
    fn alter(&self, before: &Record, request: &Request) -> Option<Request> {
        let last_write =
            |token| before.value.as_ref().filter(|value| value.token == token).map_or(0, |value| value.write);
        Some(match (self.config.without?, request) {
            (Rule::ReleaseNamesToken, Request::Release(_) | Request::Leave(_)) => {
                let holder = before.holders.first()?;
                Request::Release(Release { lease: holder.terms.lease, token: holder.version })
            }
            (Rule::ReleaseNamesGrant, Request::Release(Release { lease, .. })) => {
                let asked = self.terms.iter().find(|terms| terms.lease == *lease)?;
                Request::Leave(Leave { lease: *lease, acquire_id: asked.acquire_id })
            }
            (Rule::PutNamesLease, Request::PutValue(put)) => {
                let holder = before.holders.first()?;
                let (lease, token) = (holder.terms.lease, holder.version);
                Request::PutValue(PutValue { lease, token, after: last_write(token), ..put.clone() })
            }
            (Rule::PutFollows, Request::PutValue(put)) => {
                Request::PutValue(PutValue { after: last_write(put.token), ..put.clone() })
            }
            (Rule::DowngradeNamesToken, Request::Downgrade(downgrade)) => {
                let token = before.holder(downgrade.lease)?.version;
                Request::Downgrade(Downgrade { token, ..*downgrade })
            }
            _ => return None,
        })
    }

    /// The same, of the rules of schedules.
    fn apply_schedule(&self, before: Option<&Record>, at: StoreClock, request: &Request) -> (Option<Record>, Outcome) {
        let real = || record::apply(before, at, request);
        let Some(rule) = self.config.without else { return real() };
        let (Some(before), Some(mut after)) = (before, real().0) else { return real() };
        match (rule, request) {
            (
                Rule::CompletionChecksVersion
                | Rule::CompletionChecksRevocation
                | Rule::CompletionNamesToken
                | Rule::CompletionNeverLowers
                | Rule::CompletionOnce,
                Request::Complete(complete),
            ) => after.done = done(rule, before, at.now, complete),
            (Rule::ReleaseLeavesEntry, Request::Release(_) | Request::Complete(_)) => {
                after.holders.retain(|holder| holder.released_at.is_none());
            }
            (Rule::EntryLosesLease, Request::Release(_) | Request::Complete(_)) => {
                for holder in after.holders.iter_mut().filter(|holder| holder.terms.lease == LeaseId::NONE) {
                    let was = before.holders.iter().find(|was| was.version == holder.version);
                    holder.terms.lease = was.map_or(LeaseId::NONE, |was| was.terms.lease);
                }
            }
            (Rule::RefreshStopsAtMaximum, Request::Refresh(_)) => {
                let without_end = |holder: &Holder| Holder { not_after: None, ..holder.clone() };
                let endless = Record { holders: before.holders.iter().map(without_end).collect(), ..before.clone() };
                let Some(extended) = record::apply(Some(&endless), at, request).0 else { return real() };
                for (holder, extended) in after.holders.iter_mut().zip(&extended.holders) {
                    holder.expires_at = extended.expires_at;
                }
            }
            (Rule::MaximumFromLastAcquire, _)
                if *before != after && after.handover.iter().any(|(_, token)| token.is_some()) =>
            {
                for holder in after.holders.iter_mut().filter(|holder| holder.since == at.now) {
                    let end = at.now.after(holder.terms.hold.max.unwrap_or_default() + holder.terms.grace);
                    holder.not_after = holder.not_after.map(|_| end);
                    holder.expires_at = holder.not_after.map_or(holder.expires_at, |end| holder.expires_at.min(end));
                }
            }
            _ => return real(),
        }
        let summary = match request.return_document() {
            record::ReturnDocument::Before => before.summarize(request),
            record::ReturnDocument::After => after.summarize(request),
        };
        let outcome = request.outcome(Some(&summary), at.now);
        (Some(after), outcome)
    }

    pub(crate) fn apply_batch(
        &self,
        before: &Record,
        at: StoreClock,
        token: FencingToken,
        batch: &BatchRequest,
    ) -> Option<Record> {
        if !self.config.is_without(Rule::BatchSkipsReleased) || !matches!(batch, BatchRequest::Keep { .. }) {
            return record::apply_batch(before, at, &[token], batch);
        }
        let revived = |holder: &Holder| Holder { released_at: None, ..holder.clone() };
        let revived = Record { holders: before.holders.iter().map(revived).collect(), ..before.clone() };
        let mut after = record::apply_batch(&revived, at, &[token], batch)?;
        for (holder, was) in after.holders.iter_mut().zip(&before.holders) {
            holder.released_at = was.released_at;
        }
        Some(after)
    }
}

/// The last completed tick after a completion without one of its rules.
fn done(rule: Rule, before: &Record, now: StoreTime, complete: &Complete) -> Option<CompletedTick> {
    let Complete { lease, token, tick, by, .. } = complete;
    let names = |holder: &Holder| {
        holder.terms.lease == *lease && (rule == Rule::CompletionNamesToken || holder.version == *token)
    };
    let is_held = before.holders.iter().any(|holder| names(holder) && holder.expires_at > now);
    let is_revoked = rule != Rule::CompletionChecksRevocation
        && before.history.iter().any(|revocation| revocation.tokens.contains(token));
    let is_newest = (rule == Rule::CompletionChecksVersion || before.version == *token) && !is_revoked;
    let is_new = before.done.as_ref().is_none_or(|done| {
        (rule == Rule::CompletionNeverLowers || done.tick < *tick)
            && (rule == Rule::CompletionOnce || done.token != *token)
    });
    let completion = || CompletedTick { tick: *tick, token: *token, by: by.clone(), at: now };
    if (is_held || is_newest) && is_new { Some(completion()) } else { before.done.clone() }
}

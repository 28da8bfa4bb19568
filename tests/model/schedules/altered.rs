//! The library's state machine, with the rule taken out that a test takes out.

use mongoseal::{
    FencingToken, LeaseId,
    record::{self, BatchRequest, Complete, CompletedTick, Holder, Outcome, Record, Request, StoreClock, StoreTime},
};

use super::{config::Rule, server::Server};

impl Server {
    pub(super) fn apply_altered(
        &self,
        before: Option<&Record>,
        at: StoreClock,
        request: &Request,
    ) -> (Option<Record>, Outcome) {
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
                let endless = Record { holders: without_end(&before.holders), ..before.clone() };
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

    pub(super) fn apply_batch_altered(
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

fn without_end(holders: &[Holder]) -> Vec<Holder> {
    holders.iter().map(|holder| Holder { not_after: None, ..holder.clone() }).collect()
}

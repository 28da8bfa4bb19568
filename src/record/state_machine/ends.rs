//! The transitions that end a lease by the will of its holder: a release, and the completion of a tick.

use super::State;
use crate::{
    record::{Complete, Completion, Holder, Reset},
    types::lease_id::LeaseId,
};

impl State {
    /// Releases these holders. If the minimum hold of a holder is not over, its entry stays until then, under a lease id
    /// that no process has: so no acquire takes the lease up again.
    pub(super) fn release(&mut self, ends: impl Fn(&Holder) -> bool) {
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
    pub(super) fn complete(&mut self, complete: &Complete) {
        let Complete { token, tick, by, keep, .. } = complete;
        let is_held = self.holders.iter().any(|holder| complete.ends(holder));
        let is_revoked = self.history.iter().any(|revocation| revocation.tokens.contains(token));
        let is_newest = self.version == Some(*token) && !is_revoked;
        let is_new = self.done.as_ref().is_none_or(|done| done.tick < *tick && done.token != *token);
        if (is_held || is_newest) && is_new {
            self.done = Some(Completion { tick: *tick, token: *token, by: by.clone(), at: self.at.now });
        }
        self.keep_until = self.keep_until.max(self.at.now.after(*keep));
        self.release(|holder| complete.ends(holder));
        self.grant(&[]);
    }

    pub(super) fn reset(&mut self, reset: &Reset) {
        let now = self.at.now;
        let is_meant = |done: &&mut Completion| done.tick > reset.tick && done.token <= reset.upto;
        if let Some(done) = self.done.as_mut().filter(is_meant) {
            (done.tick, done.by, done.at) = (reset.tick, reset.by.clone(), now);
        }
        self.grant(&[]);
    }
}

//! The requests of a lease's task, and what their answers change.

use std::{sync::Arc, time::Duration};

use tracing::Span;

use super::LeaseTask;
use crate::{
    Deadline, Error, LossCause, Result, Ttl,
    engine::{
        confirm::confirm_loss,
        in_flight::attempt_life,
        refresh::{self, Confirmed},
    },
    spans,
};

/// The answer to one request.
pub(super) enum Reply {
    Attempt(AttemptResult),
    /// The result of a check for a loss.
    LossCheck(Result<Option<LossCause>>),
}

/// The result of an attempt to refresh.
pub(super) struct AttemptResult {
    round: u32,
    ttl: Ttl,
    /// The deadline of the lease when the attempt was sent.
    deadline: Duration,
    /// `None`: the lease is lost.
    confirmed: Result<Option<Confirmed>>,
    /// The span of the attempt, for the error.
    span: Span,
}

impl LeaseTask {
    /// Sends the next attempt, if it is time.
    pub(super) fn send(&mut self, now: Duration) {
        let (context, lease) = (Arc::clone(self.context()), Arc::clone(&self.lease));
        let Some(round) = self.round.as_mut().filter(|round| round.next_attempt <= now) else { return };
        round.next_attempt = now.saturating_add(round.resend.next());
        let deadline = lease.deadline();
        let left = round.until.min(deadline).saturating_sub(now);
        let attempt_deadline = Deadline::after(context.clock(), attempt_life(left));
        let (round, ttl, metadata) = (round.number, round.ttl, round.metadata.clone());
        self.attempts = self.attempts.saturating_add(1);
        self.sent.push(Box::pin(async move {
            let span = spans::refresh(&lease.key, lease.token);
            let sent = refresh::attempt(span.clone(), &context, &lease, ttl, metadata.as_ref(), None, attempt_deadline);
            let confirmed = sent.await;
            Reply::Attempt(AttemptResult { round, ttl, deadline, confirmed, span })
        }));
    }

    pub(super) fn check_loss(&mut self) {
        let (context, lease) = (Arc::clone(self.context()), Arc::clone(&self.lease));
        let deadline = Deadline::after(context.clock(), attempt_life(lease.remaining()));
        self.sent.push(Box::pin(async move { Reply::LossCheck(confirm_loss(&context, &lease, deadline).await) }));
    }

    /// Handles the result of an attempt.
    pub(super) fn handle_attempt(&mut self, AttemptResult { round, ttl, deadline, confirmed, span }: AttemptResult) {
        self.attempts = self.attempts.saturating_sub(1);
        match confirmed {
            // The lease is lost. The state says so.
            Ok(None) => {}
            Ok(Some(Confirmed { sent, tick })) => {
                let until = sent.saturating_add(self.context().settings.validity(ttl));
                if self.lease.extend_deadline(until)
                    && let Some(done) = self.round.take_if(|current| current.number == round)
                {
                    self.note_confirmed(*done, sent, tick);
                }
            }
            // An error of an earlier round changes nothing.
            Err(error) => {
                let (now, lease) = (self.now(), &self.lease);
                let current = self.round.as_mut().filter(|current| current.number == round);
                // If another attempt was confirmed meanwhile, this one only had too little time.
                let is_risk = current.is_some() && lease.deadline() <= deadline;
                refresh::record_error(&span, &error, || is_risk && lease.note_at_risk(&error));
                let Some(current) = current else { return };
                if matches!(error, Error::Unavailable { .. }) {
                    current.next_attempt = current.next_attempt.min(now.saturating_add(current.backoff.next()));
                    current.last_error = Some(error);
                    return;
                }
                // The cause may pass before the deadline. A refresh for the holder leaves the schedule as it is.
                if let Some(command) = self.round.take().and_then(|round| round.command) {
                    drop(command.reply.send(Err(error)));
                }
                self.note_unconfirmed(self.due_soon());
            }
        }
    }
}

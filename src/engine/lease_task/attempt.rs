//! The refreshes that a lease's task sends, and what their answers change.

use std::{sync::Arc, time::Duration};

use tracing::Span;

use super::{LeaseTask, Placed};
use crate::{
    engine::{
        command_queue::{RefreshCommand, SingleAttempt},
        confirm::confirm_loss,
        refresh::{self, Confirmed},
    },
    spans,
    types::{
        error::{Error, LossCause, Result},
        metadata::Metadata,
        token::HybridTime,
        ttl::Ttl,
    },
};

/// A refresh that the holder requests: sent until one of its attempts is confirmed.
pub(super) struct RefreshRound {
    number: u32,
    command: RefreshCommand,
    ttl: Ttl,
    metadata: Option<Metadata>,
    /// When, on the clock, it gives up, if the lease has not ended before.
    pub(super) until: Duration,
    is_sent: bool,
    last_error: Option<Error>,
}

/// The answer to one request.
pub(super) enum Reply {
    Attempt(AttemptResult),
    /// The result of a check for a loss.
    LossCheck(Result<Option<LossCause>>),
}

/// The result of an attempt to refresh.
pub(super) struct AttemptResult {
    attempt: Box<dyn SingleAttempt>,
    /// The round for which it was sent. `None`: the schedule requested it.
    round: Option<u32>,
    ttl: Ttl,
    /// The deadline of the lease when the attempt was sent.
    deadline: Duration,
    /// `None`: the lease is lost.
    confirmed: Result<Option<Confirmed>>,
    /// The span of the attempt, for the error.
    span: Span,
}

impl LeaseTask {
    /// Begins a refresh for the holder: the schedule permits its attempts.
    pub(super) fn begin(&mut self, command: RefreshCommand) {
        if let Placed::From { sent, due_at, .. } = self.slot {
            self.place(sent, due_at);
        }
        // Confirmed metadata is sent again: otherwise older metadata that arrives late would stay.
        let metadata = command.metadata.clone().or_else(|| self.metadata.as_deref().cloned());
        let until = self.context().operation_deadline().reading();
        self.rounds = self.rounds.wrapping_add(1);
        let (number, ttl) = (self.rounds, command.ttl.unwrap_or(self.ttl));
        let round = RefreshRound { number, command, ttl, metadata, until, is_sent: false, last_error: None };
        self.round = Some(Box::new(round));
        if let Placed::At(slot) = &self.slot {
            slot.request(self.now());
        }
    }

    /// Ends a refresh that was not confirmed in time, and returns the last error to the holder.
    pub(super) fn end_unconfirmed(&mut self, now: Duration) {
        if let Some(round) = self.round.take_if(|round| round.until <= now) {
            self.permitted = None;
            if let Placed::At(slot) = &self.slot {
                slot.withdraw(now);
            }
            drop(round.command.reply.send(Err(round.last_error.unwrap_or_else(refresh::unanswered_error))));
        }
    }

    /// Sends the attempt that the schedule has permitted. A change of the metadata waits for earlier attempts, which could
    /// undo it.
    pub(super) fn send_permitted(&mut self) {
        let changes_metadata = |round: &RefreshRound| !round.is_sent && round.command.metadata.is_some();
        if self.attempts > 0 && self.round.as_deref().is_some_and(changes_metadata) {
            return;
        }
        let Some(attempt) = self.permitted.take() else { return };
        let (context, lease) = (Arc::clone(self.context()), Arc::clone(&self.lease));
        let deadline = lease.deadline();
        let (round, ttl, metadata, until) = match &mut self.round {
            Some(round) => {
                round.is_sent = true;
                (Some(round.number), round.ttl, round.metadata.clone(), round.until.min(deadline))
            }
            None => (None, self.ttl, self.metadata.as_deref().cloned(), deadline),
        };
        let attempt_deadline = attempt.deadline(until);
        self.attempts = self.attempts.saturating_add(1);
        self.sent.push(Box::pin(async move {
            let span = spans::refresh(&lease.key, lease.token);
            let sent = refresh::attempt(span.clone(), &context, &lease, ttl, metadata.as_ref(), None, attempt_deadline);
            let confirmed = sent.await;
            Reply::Attempt(AttemptResult { attempt, round, ttl, deadline, confirmed, span })
        }));
    }

    pub(super) fn check_loss(&mut self) {
        let (context, lease) = (Arc::clone(self.context()), Arc::clone(&self.lease));
        let deadline = context.operation_deadline().or_at(lease.deadline());
        self.sent.push(Box::pin(async move { Reply::LossCheck(confirm_loss(&context, &lease, deadline).await) }));
    }

    /// Handles the result of an attempt.
    pub(super) fn handle_attempt(&mut self, result: AttemptResult) {
        let AttemptResult { attempt, round, ttl, deadline, confirmed, span } = result;
        self.attempts = self.attempts.saturating_sub(1);
        let (now, current) = (self.now(), self.round.as_ref().map(|round| round.number));
        match confirmed {
            // The lease is lost. The state says so.
            Ok(None) => {}
            Ok(Some(Confirmed { sent, tick })) => {
                let until = sent.saturating_add(self.context().settings.validity(ttl));
                if self.lease.extend_deadline(until) {
                    let done = self.round.take_if(|current| Some(current.number) == round);
                    attempt.end(now, Ok(sent), self.round.is_none());
                    self.record_confirmed(done, sent, tick);
                }
            }
            Err(error) => {
                // If another attempt was confirmed meanwhile, this one only had too little time. An error of an earlier
                // refresh for the holder changes nothing.
                let is_risk = (round.is_none() || round == current) && self.lease.deadline() <= deadline;
                refresh::record_error(&span, &error, || is_risk && self.lease.record_at_risk(&error));
                if matches!(error, Error::Unavailable { .. }) {
                    attempt.end(now, Err(&error), false);
                    if let Some(round) = self.round.as_mut().filter(|current| Some(current.number) == round) {
                        round.last_error = Some(error);
                    }
                    return;
                }
                // The cause may pass before the deadline.
                let done = self.round.take_if(|current| Some(current.number) == round);
                attempt.end(now, Err(&error), self.round.is_none());
                if let Some(round) = done {
                    drop(round.command.reply.send(Err(error)));
                }
            }
        }
    }

    /// Notes a confirmed refresh. `done`: the refresh for the holder that it ends.
    fn record_confirmed(&mut self, done: Option<Box<RefreshRound>>, sent: Duration, tick: HybridTime) {
        let command = done.map(|done| {
            let RefreshRound { ttl, metadata, command, .. } = *done;
            (self.ttl, self.metadata) = (ttl, metadata.map(Box::new));
            command
        });
        let is_placed =
            matches!(&self.slot, Placed::At(slot) if slot.ttl == self.ttl && slot.is_single == self.is_single());
        if !is_placed {
            self.place(sent, self.due_after(sent));
        }
        // Listens again if the listener has failed since.
        if self.listen_at.is_none() {
            self.listen_since(tick);
        }
        if let Some(command) = command {
            drop(command.reply.send(Ok(())));
        }
    }
}

//! What the task of a watch reports: that its watch has begun, and its items.

use std::{sync::Arc, time::Duration};

use tokio::sync::{
    mpsc::{self, Sender},
    oneshot,
};
use tracing::debug;

use super::Started;
use crate::{Clock, Deadline, Error, Result, engine::context::Context};

/// How many states and how many items wait for a slow reader.
pub(super) const CHANNEL_SIZE: usize = 64;

/// The reports of a task.
pub(super) struct Reports<T> {
    clock: Clock,
    attempt: Duration,
    /// What is watched, for the log.
    pub(super) subject: String,
    tell: Sender<Result<T>>,
    /// The reply that the watch has begun, and when, on the clock, it must have.
    begun: Option<(oneshot::Sender<Result<()>>, Duration)>,
}

impl<T> Reports<T> {
    /// Returns the reports, the reply that the watch has begun, which arrives before `give_up`, and the items.
    pub(super) fn new(context: &Arc<Context>, subject: String, give_up: Deadline) -> (Self, Started<T>) {
        let (tell, items) = mpsc::channel(CHANNEL_SIZE);
        let (begun, beginning) = oneshot::channel();
        let begun = Some((begun, give_up.reading()));
        let attempt = context.settings.attempt;
        (Self { clock: context.clock(), attempt, subject, tell, begun }, (beginning, items))
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_none()
    }

    /// Reports once that the watch has begun. Returns whether it had not.
    pub(super) fn begin(&mut self) -> bool {
        let begun = self.begun.take().map(|(begun, _)| begun.send(Ok(())));
        begun.is_some()
    }

    /// Waits until there is room for the item. If the receiver was dropped, the task ends.
    pub(super) async fn send(&self, item: T) {
        drop(self.tell.send(Ok(item)).await);
    }

    /// Reports the error that ends the watch.
    pub(super) async fn end(&mut self, error: Error) {
        match self.begun.take() {
            Some((begun, _)) => drop(begun.send(Err(error))),
            None => drop(self.tell.send(Err(error)).await),
        }
    }

    /// Waits until the receiver is dropped.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + use<T>
    where
        T: Send + 'static,
    {
        let tell = self.tell.clone();
        async move { tell.closed().await }
    }

    /// The deadline of a request that is sent now.
    pub(super) fn attempt_deadline(&self) -> Deadline {
        Deadline::after(self.clock, self.attempt)
    }

    /// Fails if a retry at `next` cannot remove the error, or is too late.
    pub(super) fn ensure_transient(&self, error: Error, next: Duration) -> Result<()> {
        let is_too_late = self.begun.as_ref().is_some_and(|(_, give_up)| *give_up <= next);
        if is_too_late || !matches!(error, Error::Unavailable { .. }) {
            return Err(error);
        }
        let error: &(dyn std::error::Error + 'static) = &error;
        debug!(watched = self.subject, error, "a watch is interrupted: retrying");
        Ok(())
    }
}

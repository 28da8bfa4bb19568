//! What the tasks of both watches have in common: how they begin, retry, report, and end.

use std::{sync::Arc, time::Duration};

use tokio::sync::{
    mpsc::{self, Sender},
    oneshot,
};
use tracing::debug;

use super::Started;
use crate::{
    Clock, Deadline, Error, Result,
    engine::{context::Context, retry::Backoff},
};

/// How many states and how many events wait for a slow reader.
pub(super) const CHANNEL_SIZE: usize = 64;

/// A task of a watch.
pub(super) trait WatchTask: Send + Sized + 'static {
    /// What it reports.
    type Event: Send + 'static;

    fn reports(&mut self) -> &mut Reports<Self::Event>;

    /// Follows the store's stream until it ends.
    fn follow(&mut self, backoff: &mut Backoff) -> impl Future<Output = Error> + Send;

    /// Polls, because the store has no stream, until an error that a retry does not remove.
    fn poll(&mut self) -> impl Future<Output = Error> + Send;

    /// Warns that the watch polls from now on.
    fn warn(&self, error: &(dyn std::error::Error + 'static));
}

/// What a task reports: that its watch has begun, and its events.
pub(super) struct Reports<T> {
    context: Arc<Context>,
    clock: Clock,
    /// What is watched, for the log.
    subject: String,
    tell: Sender<Result<T>>,
    /// The reply that the watch has begun, and when, on the clock, it must have.
    begun: Option<(oneshot::Sender<Result<()>>, Duration)>,
}

impl<T> Reports<T> {
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_none()
    }

    /// Reports once that the watch has begun. Returns whether it had not.
    pub(super) fn begin(&mut self) -> bool {
        let begun = self.begun.take().map(|(begun, _)| begun.send(Ok(())));
        begun.is_some()
    }

    /// Waits until there is room for the event. If the receiver was dropped, the task ends.
    pub(super) async fn send(&self, event: T) {
        drop(self.tell.send(Ok(event)).await);
    }

    /// The deadline of a request that is sent now.
    pub(super) fn attempt_deadline(&self) -> Deadline {
        Deadline::after(self.clock, self.context.settings.attempt)
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

/// Starts a task. Returns the reply that its watch has begun, which arrives before `give_up`, and the events.
pub(super) fn start<W: WatchTask>(
    context: &Arc<Context>,
    subject: String,
    give_up: Deadline,
    task: impl FnOnce(Reports<W::Event>) -> W,
) -> Started<W::Event> {
    let (tell, events) = mpsc::channel(CHANNEL_SIZE);
    let (begun, beginning) = oneshot::channel();
    let begun = Some((begun, give_up.reading()));
    let reports = Reports { context: Arc::clone(context), clock: context.clock(), subject, tell, begun };
    context.spawn(run(task(reports)));
    (beginning, events)
}

/// Reports events until the receiver is dropped, the handle is shut down, or a permanent error.
async fn run<W: WatchTask>(mut task: W) {
    let reports = task.reports();
    let (closing, gone) = (reports.context.closing.clone(), reports.tell.clone());
    let watch = async {
        let error = watch(&mut task).await;
        let reports = task.reports();
        match reports.begun.take() {
            Some((begun, _)) => drop(begun.send(Err(error))),
            None => drop(reports.tell.send(Err(error)).await),
        }
    };
    tokio::select! {
        biased;
        () = closing.cancelled() => {}
        () = gone.closed() => {}
        () = watch => {}
    }
}

/// Watches until an error that a retry does not remove.
async fn watch<W: WatchTask>(task: &mut W) -> Error {
    let (context, clock) = (Arc::clone(&task.reports().context), task.reports().clock);
    let mut backoff = Backoff::new();
    loop {
        let prepared = context.prepare(task.reports().attempt_deadline()).await;
        let is_prepared = prepared.is_ok();
        if is_prepared && !context.store.capabilities().change_streams {
            return task.poll().await;
        }
        let error = match prepared {
            Ok(()) => task.follow(&mut backoff).await,
            Err(error) => error,
        };
        if is_prepared && matches!(error, Error::Invalid { .. }) {
            task.warn(&error);
            return task.poll().await;
        }
        let next = clock.now().saturating_add(backoff.next());
        if let Err(permanent) = task.reports().ensure_transient(error, next) {
            return permanent;
        }
        clock.sleep_until(next).await;
    }
}

//! The commands to a lease's task.
//!
//! Purpose: the holder and the schedule make the task of a lease refresh it.
//!
//! Mechanism: refreshes of the holder queue in order. Of the permissions of the schedule, the last one counts.
//!
//! Invariant: a refresh whose caller is gone is not sent.

use std::{collections::VecDeque, fmt::Debug, mem, result, sync::Mutex};

use tokio::sync::{Notify, oneshot};

use crate::types::{
    deadline::Deadline,
    error::{Error, Result},
    lock::lock,
    metadata::Metadata,
    reading::Reading,
    ttl::Ttl,
};

/// A refresh that the holder requests.
#[derive(Debug)]
pub(crate) struct RefreshCommand {
    /// The ttl from now on, if it changes.
    pub(crate) ttl: Option<Ttl>,
    /// The metadata from now on, if it changes.
    pub(crate) metadata: Option<Metadata>,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

/// The permission to refresh a lease alone, once. The schedule gives it to the lease's task. This queue knows no schedule, so
/// it is a trait. Dropping it ends the attempt.
pub(crate) trait SingleAttempt: Debug + Send + Sync {
    /// When it is given up if it is sent now, at this reading of the clock at the latest.
    fn deadline(&self, until: Reading) -> Deadline;

    /// Notes the answer: when the confirmed request was sent, or the error. `is_done`: the holder waits for no other refresh.
    fn end(&self, now: Reading, answer: result::Result<Reading, &Error>, is_done: bool);
}

/// A command to a lease's task.
#[derive(Debug)]
pub(crate) enum Command {
    /// Refresh the lease for its holder.
    Refresh(Box<RefreshCommand>),
    /// Send one refresh of the lease.
    RefreshSingle(Box<dyn SingleAttempt>),
}

/// The commands that a lease's task has not begun. Most leases never receive one, so this is small: a channel would
/// reserve room for many messages.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    state: Mutex<QueueState>,
    added: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    refreshes: VecDeque<RefreshCommand>,
    single: Option<Box<dyn SingleAttempt>>,
    /// Whether the task has ended.
    is_over: bool,
}

impl CommandQueue {
    /// Queues a refresh. If the task has ended, the reply is dropped.
    pub(crate) fn refresh(&self, command: RefreshCommand) {
        let mut state = lock(&self.state);
        if !state.is_over {
            // Keeps only refreshes whose callers still wait.
            state.refreshes.retain(|command| !command.reply.is_closed());
            state.refreshes.push_back(command);
        }
        drop(state);
        self.added.notify_one();
    }

    /// Queues one refresh of the lease.
    pub(crate) fn refresh_single(&self, attempt: Box<dyn SingleAttempt>) {
        // Not under the lock, as with an attempt that is dropped.
        let attempt = Some(attempt);
        let unused = {
            let mut state = lock(&self.state);
            if state.is_over { attempt } else { mem::replace(&mut state.single, attempt) }
        };
        drop(unused);
        self.added.notify_one();
    }

    /// Waits for the next command. Returns a refresh of the holder only if `takes_refresh`. Only the task calls this.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no command.
    pub(crate) async fn next(&self, takes_refresh: bool) -> Command {
        loop {
            if let Some(added) = lock(&self.state).next(takes_refresh) {
                return added;
            }
            self.added.notified().await;
        }
    }

    /// Drops the commands that were not begun, because the task ends.
    pub(crate) fn end(&self) {
        let left = {
            let mut state = lock(&self.state);
            state.is_over = true;
            (mem::take(&mut state.refreshes), state.single.take())
        };
        // Not under the lock: it wakes the callers that wait.
        drop(left);
    }
}

impl QueueState {
    fn next(&mut self, takes_refresh: bool) -> Option<Command> {
        while takes_refresh && let Some(command) = self.refreshes.pop_front() {
            // If the caller is gone, it was told that the refresh failed, so the refresh must not be sent.
            if !command.reply.is_closed() {
                return Some(Command::Refresh(Box::new(command)));
            }
        }
        self.single.take().map(Command::RefreshSingle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{sync::oneshot::error::TryRecvError, time::timeout};

    use super::*;

    fn command() -> (RefreshCommand, oneshot::Receiver<Result<()>>) {
        let (reply, done) = oneshot::channel();
        (RefreshCommand { ttl: None, metadata: None, reply }, done)
    }

    /// The next command, if there is one.
    async fn next(queue: &CommandQueue) -> Option<Command> {
        timeout(Duration::from_secs(1), queue.next(true)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_sent_before_the_task_waits_is_received_and_an_abandoned_refresh_is_not() {
        let queue = CommandQueue::default();
        assert!(next(&queue).await.is_none());
        let (first, gone) = command();
        let (second, _waits) = command();
        queue.refresh(first);
        queue.refresh(second);
        drop(gone);
        assert!(matches!(next(&queue).await, Some(Command::Refresh(command)) if !command.reply.is_closed()));
        assert!(next(&queue).await.is_none());
        let (third, _waits) = command();
        let added = tokio::join!(next(&queue), async { queue.refresh(third) }).0;
        assert!(matches!(added, Some(Command::Refresh(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn refreshes_are_received_in_order_and_abandoned_ones_are_not_kept() {
        let queue = CommandQueue::default();
        let ((first, waits), (second, gone), (third, waits_too)) = (command(), command(), command());
        queue.refresh(first);
        queue.refresh(second);
        drop(gone);
        queue.refresh(third);
        assert_eq!(lock(&queue.state).refreshes.len(), 2);
        for mut waiting in [waits, waits_too] {
            assert!(waiting.try_recv().is_err());
            let Some(Command::Refresh(command)) = next(&queue).await else { panic!("it was sent") };
            command.reply.send(Ok(())).unwrap();
            assert!(matches!(waiting.try_recv(), Ok(Ok(()))), "it was its turn");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_that_a_task_has_not_begun_when_it_ends_is_dropped() {
        let queue = CommandQueue::default();
        let ((before, mut reply), (after, mut late_reply)) = (command(), command());
        queue.refresh(before);
        assert_eq!(reply.try_recv().unwrap_err(), TryRecvError::Empty);
        queue.end();
        queue.refresh(after);
        let dropped = (reply.try_recv().unwrap_err(), late_reply.try_recv().unwrap_err());
        assert_eq!(dropped, (TryRecvError::Closed, TryRecvError::Closed));
    }
}

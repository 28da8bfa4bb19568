//! What a lease's task is asked for by others.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, oneshot};

use crate::{Metadata, Result, Ttl};

/// A refresh that the holder asks for.
#[derive(Debug)]
pub(crate) struct RefreshCommand {
    /// With another ttl from now on.
    pub(crate) ttl: Option<Ttl>,
    /// With other words for others from now on.
    pub(crate) metadata: Option<Metadata>,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

/// What a lease's task is asked for.
#[derive(Debug)]
pub(crate) enum Command {
    /// A refresh.
    Refresh(Box<RefreshCommand>),
    /// To refresh the lease by itself. `was_sent`: the batch that it was in has asked for it, without an answer.
    RefreshSingle { was_sent: bool },
    /// To look whether the lease is gone, as was heard.
    Look,
    /// To end the lease, because its deadline has passed.
    End,
}

/// What the task of a lease has been asked for and has not begun. Most leases are never asked for
/// anything, so it is small: a channel has room for many messages from the beginning.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    state: Mutex<QueueState>,
    asked: Notify,
}

/// A refresh by itself.
#[derive(Debug)]
struct Single {
    was_sent: bool,
}

#[derive(Debug, Default)]
struct QueueState {
    refreshes: VecDeque<RefreshCommand>,
    look: bool,
    end: bool,
    single: Option<Single>,
    /// Whether the task has ended.
    is_over: bool,
}

impl CommandQueue {
    /// Asks for a refresh. A task that has ended drops the reply.
    pub(crate) fn refresh(&self, wish: RefreshCommand) {
        let mut state = self.state();
        if !state.is_over {
            // No more than there are who wait.
            state.refreshes.retain(|wish| !wish.reply.is_closed());
            state.refreshes.push_back(wish);
        }
        drop(state);
        self.asked.notify_one();
    }

    /// Asks to look.
    pub(crate) fn look(&self) {
        self.state().look = true;
        self.asked.notify_one();
    }

    /// Asks to end the lease, because its deadline has passed.
    pub(crate) fn lapsed(&self) {
        self.state().end = true;
        self.asked.notify_one();
    }

    /// Asks for a refresh by itself.
    pub(crate) fn refresh_single(&self, was_sent: bool) {
        self.state().single = Some(Single { was_sent });
        self.asked.notify_one();
    }

    /// Waits for what is asked next, a refresh only if `takes_refresh`; for the task alone.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    pub(crate) async fn next(&self, takes_refresh: bool) -> Command {
        loop {
            if let Some(asked) = self.state().next(takes_refresh) {
                return asked;
            }
            self.asked.notified().await;
        }
    }

    /// The task ends: drops what it has not begun.
    pub(crate) fn end(&self) {
        let left = {
            let mut state = self.state();
            state.is_over = true;
            std::mem::take(&mut state.refreshes)
        };
        // Not under the lock: it wakes those who wait.
        drop(left);
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn next(&mut self, takes_refresh: bool) -> Option<Command> {
        while takes_refresh && let Some(wish) = self.refreshes.pop_front() {
            // What nobody waits for any more is not done, or it would be done after they were told that it was not.
            if !wish.reply.is_closed() {
                return Some(Command::Refresh(Box::new(wish)));
            }
        }
        if std::mem::take(&mut self.end) {
            return Some(Command::End);
        }
        if let Some(Single { was_sent }) = self.single.take() {
            return Some(Command::RefreshSingle { was_sent });
        }
        std::mem::take(&mut self.look).then_some(Command::Look)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{sync::oneshot::error::TryRecvError, time::timeout};

    use super::*;

    fn wish() -> (RefreshCommand, oneshot::Receiver<Result<()>>) {
        let (reply, done) = oneshot::channel();
        (RefreshCommand { ttl: None, metadata: None, reply }, done)
    }

    /// What is asked next, unless nothing is.
    async fn next(wishes: &CommandQueue) -> Option<Command> {
        timeout(Duration::from_secs(1), wishes.next(true)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_before_anybody_listens_is_heard_and_what_nobody_waits_for_is_forgotten() {
        let wishes = CommandQueue::default();
        assert!(next(&wishes).await.is_none());
        let (first, gone) = wish();
        let (second, _waits) = wish();
        wishes.look();
        wishes.refresh(first);
        wishes.refresh(second);
        drop(gone);
        assert!(matches!(next(&wishes).await, Some(Command::Refresh(wish)) if !wish.reply.is_closed()));
        assert!(matches!(next(&wishes).await, Some(Command::Look)));
        assert!(next(&wishes).await.is_none());
        let (third, _waits) = wish();
        let asked = tokio::join!(next(&wishes), async { wishes.refresh(third) }).0;
        assert!(matches!(asked, Some(Command::Refresh(_))));
        let looks = tokio::join!(next(&wishes), async { wishes.look() }).0;
        assert!(matches!(looks, Some(Command::Look)));
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_are_heard_in_the_order_they_came_and_no_others_are_kept() {
        let wishes = CommandQueue::default();
        let ((first, waits), (second, gone), (third, waits_too)) = (wish(), wish(), wish());
        wishes.refresh(first);
        wishes.refresh(second);
        drop(gone);
        wishes.refresh(third);
        assert_eq!(wishes.state().refreshes.len(), 2);
        for mut waiting in [waits, waits_too] {
            assert!(waiting.try_recv().is_err());
            let Some(Command::Refresh(wish)) = next(&wishes).await else { panic!("it was asked for") };
            wish.reply.send(Ok(())).unwrap();
            assert!(matches!(waiting.try_recv(), Ok(Ok(()))), "it was its turn");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_a_task_that_ends_or_has_ended_is_told() {
        let wishes = CommandQueue::default();
        let ((before, mut told), (after, mut told_too)) = (wish(), wish());
        wishes.refresh(before);
        assert_eq!(told.try_recv().unwrap_err(), TryRecvError::Empty);
        wishes.end();
        wishes.refresh(after);
        let dropped = (told.try_recv().unwrap_err(), told_too.try_recv().unwrap_err());
        assert_eq!(dropped, (TryRecvError::Closed, TryRecvError::Closed));
    }
}

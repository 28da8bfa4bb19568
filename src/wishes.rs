//! What a lease's task is asked for by others.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, oneshot};

use crate::{Metadata, Result, Ttl};

/// A refresh that the holder asks for.
#[derive(Debug)]
pub(crate) struct Wish {
    /// With another ttl from now on.
    pub(crate) ttl: Option<Ttl>,
    /// With other words for others from now on.
    pub(crate) metadata: Option<Metadata>,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

/// What a lease's task is asked for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// A refresh.
    Refresh(Box<Wish>),
    /// To look whether the lease is gone, as was heard.
    Look,
}

/// What the task of a lease has been asked for and has not begun. Most leases are never asked for
/// anything, so it is small: a channel has room for many messages from the beginning.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    state: Mutex<State>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct State {
    refreshes: VecDeque<Wish>,
    look: bool,
    /// Whether the task has ended.
    is_over: bool,
}

impl Wishes {
    /// Asks for a refresh. A task that has ended drops the reply.
    pub(crate) fn refresh(&self, wish: Wish) {
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

    /// Waits for what is asked next; for the task alone.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    pub(crate) async fn next(&self) -> Asked {
        loop {
            if let Some(asked) = self.state().next() {
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&mut self) -> Option<Asked> {
        while let Some(wish) = self.refreshes.pop_front() {
            // What nobody waits for any more is not done, or it would be done after they were told that it was not.
            if !wish.reply.is_closed() {
                return Some(Asked::Refresh(Box::new(wish)));
            }
        }
        std::mem::take(&mut self.look).then_some(Asked::Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> (Wish, oneshot::Receiver<Result<()>>) {
        let (reply, done) = oneshot::channel();
        (Wish { ttl: None, metadata: None, reply }, done)
    }

    #[tokio::test]
    async fn what_is_asked_before_anybody_listens_is_heard_and_what_nobody_waits_for_is_forgotten() {
        let wishes = Wishes::default();
        let (first, gone) = wish();
        let (second, _waits) = wish();
        wishes.look();
        wishes.refresh(first);
        wishes.refresh(second);
        drop(gone);
        assert!(matches!(wishes.next().await, Asked::Refresh(wish) if !wish.reply.is_closed()));
        assert!(matches!(wishes.next().await, Asked::Look));
        let (third, _waits) = wish();
        let asked = tokio::join!(wishes.next(), async { wishes.refresh(third) }).0;
        assert!(matches!(asked, Asked::Refresh(_)));
    }

    #[tokio::test]
    async fn whoever_asks_a_task_that_ends_or_has_ended_is_told() {
        let wishes = Wishes::default();
        let ((before, told), (after, told_too)) = (wish(), wish());
        wishes.refresh(before);
        wishes.end();
        wishes.refresh(after);
        assert!(told.await.is_err() && told_too.await.is_err());
    }
}

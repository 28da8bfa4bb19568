//! The messages to the task that keeps the leases of a handle.
//!
//! Purpose: a holder, and a drop of its lease, only leave a message, so they never wait.
//!
//! Mechanism: the mailbox is open while the task runs.
//!
//! Invariant: a message is read by a task, or dropped when the task ends, with its reply.

use std::{collections::VecDeque, sync::Mutex};

use tokio::sync::{Notify, futures::Notified, oneshot};

use crate::types::{error::Result, instant::Instant, lock::lock, metadata::Metadata, ttl::Ttl};

/// A message about leases, by the numbers of their acquires.
#[derive(Debug)]
pub(crate) enum Message {
    /// The holder requests a refresh.
    Refresh(u64, Box<RefreshCommand>),
    /// The holder can stall from now on.
    Progress(u64),
    /// The leases have ended in this process: one, or those of a set.
    End(Vec<u64>),
}

/// A refresh that the holder requests.
#[derive(Debug)]
pub(crate) struct RefreshCommand {
    /// The ttl from now on, if it changes.
    pub(crate) ttl: Option<Ttl>,
    /// The metadata from now on, if it changes.
    pub(crate) metadata: Option<Metadata>,
    /// When it is given up, if the lease has not ended before.
    pub(crate) until: Instant,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// `None`: it is closed.
    messages: Mutex<Option<VecDeque<Message>>>,
    added: Notify,
}

impl Mailbox {
    /// Opens it and wakes the task. Returns whether it was closed: then the caller starts the task.
    pub(crate) fn open(&self) -> bool {
        let was_closed = {
            let mut messages = lock(&self.messages);
            let was_closed = messages.is_none();
            messages.get_or_insert_default();
            was_closed
        };
        self.added.notify_one();
        was_closed
    }

    /// Adds a message, or drops it if no task runs.
    pub(crate) fn send(&self, message: Message) {
        let refused = match &mut *lock(&self.messages) {
            Some(messages) => {
                messages.push_back(message);
                None
            }
            None => Some(message),
        };
        // Not under the lock: it wakes the caller that waits for the reply.
        drop(refused);
        self.added.notify_one();
    }

    /// Waits for a message, or for [`open`](Self::open).
    pub(crate) fn added(&self) -> Notified<'_> {
        self.added.notified()
    }

    /// Takes up to so many messages, the oldest first.
    pub(crate) fn take(&self, most: usize) -> Vec<Message> {
        let mut messages = lock(&self.messages);
        messages.iter_mut().flat_map(|messages| messages.drain(..most.min(messages.len()))).collect()
    }

    /// Closes it if there is no message. Returns whether it did.
    pub(crate) fn close_if_empty(&self) -> bool {
        lock(&self.messages).take_if(|messages| messages.is_empty()).is_some()
    }

    /// Closes it, and returns the messages that were not read.
    pub(crate) fn close(&self) -> Option<VecDeque<Message>> {
        lock(&self.messages).take()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn refresh() -> (Message, oneshot::Receiver<Result<()>>) {
        let (reply, done) = oneshot::channel();
        (Message::Refresh(1, Box::new(RefreshCommand { ttl: None, metadata: None, until: Instant::MAX, reply })), done)
    }

    #[test]
    fn messages_are_read_in_order_and_those_that_no_task_reads_are_dropped() {
        let mailbox = Mailbox::default();
        let (early, mut reply) = refresh();
        mailbox.send(early);
        assert_eq!(reply.try_recv().unwrap_err(), TryRecvError::Closed);
        assert!(mailbox.open() && !mailbox.open());
        let (asked, mut reply) = refresh();
        mailbox.send(Message::End(vec![7]));
        mailbox.send(asked);
        assert!(!mailbox.close_if_empty(), "its task goes on");
        assert!(matches!(&mailbox.take(1)[..], [Message::End(ended)] if *ended == [7]));
        assert_eq!(reply.try_recv().unwrap_err(), TryRecvError::Empty);
        drop(mailbox.close());
        assert_eq!(reply.try_recv().unwrap_err(), TryRecvError::Closed);
        assert!(mailbox.open() && mailbox.close_if_empty());
    }
}

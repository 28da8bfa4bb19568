//! The subscribers of the records of a store.
//!
//! Purpose: the data of `follow/shared_stream.rs`, whose task reads the change stream that all subscribers share.
//!
//! Mechanism: each subscriber has a channel, on which the task passes on the changes of its key, and at last why the
//! stream has ended.
//!
//! Invariants: a subscriber gets a time, and then each change of its key after that time, in their order, until it is
//! left behind or the stream ends. A slow subscriber is left behind: no other subscriber waits for it.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex},
};

use mongodb::bson::{Document, Timestamp};
use tokio::sync::{
    Notify,
    mpsc::{self, Receiver, Sender},
    oneshot,
};

use super::super::stream_error::StreamEnd;
use crate::types::{key::Key, lock::lock};

/// How many changes are kept for a slow subscriber.
const MAX_BEHIND: usize = 4_096;

/// The subscribers of a store.
#[derive(Default)]
pub(in crate::store::mongo) struct Subscribers {
    state: Mutex<SubscribersState>,
    /// Wakes the task that reads: a subscriber has come.
    pub(in crate::store::mongo) changed: Notify,
}

#[derive(Default)]
struct SubscribersState {
    /// Those whose receivers are dropped are removed before the next change is read.
    subscribers: Vec<Subscriber>,
    /// Whether the task that reads runs.
    is_running: bool,
}

struct Subscriber {
    key: Key,
    /// Receives the time after which each change is passed on, once a stream has the key.
    begins: Option<oneshot::Sender<Timestamp>>,
    changes: Sender<Change>,
}

/// A change, or, at the end, why the stream has ended. Without that, the subscriber was left behind.
pub(in crate::store::mongo) type Change = std::result::Result<Arc<Document>, StreamEnd>;

/// What a subscriber receives: a time, and each change after it.
pub(in crate::store::mongo) type Subscription = (oneshot::Receiver<Timestamp>, Receiver<Change>);

impl Subscribers {
    /// Adds a subscriber of a key. Also returns whether the task that reads has to be started.
    pub(in crate::store::mongo) fn join(&self, key: &Key) -> (Subscription, bool) {
        let (begin, begins) = oneshot::channel();
        let (pass_on, changes) = mpsc::channel(MAX_BEHIND);
        let mut state = lock(&self.state);
        state.subscribers.push(Subscriber { key: key.clone(), begins: Some(begin), changes: pass_on });
        let was_running = mem::replace(&mut state.is_running, true);
        self.changed.notify_one();
        ((begins, changes), !was_running)
    }

    /// The keys that are followed. If there are none, the task that reads ends.
    pub(in crate::store::mongo) fn keys(&self) -> Option<HashSet<Key>> {
        let mut state = lock(&self.state);
        let keys: HashSet<Key> = state.subscribers.iter().map(|subscriber| subscriber.key.clone()).collect();
        state.is_running = !keys.is_empty();
        state.is_running.then_some(keys)
    }

    /// Notes that an open stream has these keys, and passes on each change after this time. Returns whether it still is
    /// the right stream: there are subscribers, and it has all their keys.
    pub(in crate::store::mongo) fn begin(&self, keys: &HashSet<Key>, passed_on: Timestamp) -> bool {
        let mut state = lock(&self.state);
        state.subscribers.retain(|subscriber| !subscriber.changes.is_closed());
        for subscriber in &mut state.subscribers {
            if let Some(begins) = subscriber.begins.take_if(|_| keys.contains(&subscriber.key)) {
                // The subscriber may be gone.
                let _sent = begins.send(passed_on);
            }
        }
        !state.subscribers.is_empty() && state.subscribers.iter().all(|subscriber| subscriber.begins.is_none())
    }

    /// Passes a change on. A subscriber that has no room for it is left behind.
    pub(in crate::store::mongo) fn pass_on(&self, change: Document) {
        let key = change.get_document("documentKey").and_then(|key| key.get_str("_id")).ok().map(str::to_owned);
        let change = Arc::new(change);
        // A change without a key concerns all subscribers.
        let concerns = |subscriber: &Subscriber| key.as_ref().is_none_or(|key| subscriber.key.as_str() == key);
        lock(&self.state)
            .subscribers
            .retain(|subscriber| !concerns(subscriber) || subscriber.changes.try_send(Ok(Arc::clone(&change))).is_ok());
    }

    /// Ends the stream for the subscribers whose keys are not in it, or for all, and then the task that reads, too.
    pub(in crate::store::mongo) fn end(&self, end: &StreamEnd, is_of_all: bool) {
        let mut state = lock(&self.state);
        state.is_running &= !is_of_all;
        for subscriber in state.subscribers.extract_if(.., |subscriber| is_of_all || subscriber.begins.is_some()) {
            // The subscriber may be gone, or have no room: then it is left behind.
            let _sent = subscriber.changes.try_send(Err(end.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    const TIME: Timestamp = Timestamp { time: 7, increment: 1 };

    fn key(text: &str) -> Key {
        text.parse().unwrap()
    }

    fn change_of(key: &str) -> Document {
        doc! { "documentKey": { "_id": key } }
    }

    #[test]
    fn a_subscriber_gets_a_time_and_each_change_of_its_key_and_a_slow_one_is_left_behind() {
        let subscribers = Subscribers::default();
        let ((mut begins, mut changes), has_to_run) = subscribers.join(&key("k"));
        let ((_, mut others), has_to_run_again) = subscribers.join(&key("other"));
        assert!(has_to_run && !has_to_run_again);
        assert!(!subscribers.begin(&[key("k")].into(), TIME), "the stream lacks a key");
        assert_eq!(begins.try_recv(), Ok(TIME));
        assert!(subscribers.begin(&subscribers.keys().unwrap(), TIME));
        for _ in 0..=MAX_BEHIND {
            subscribers.pass_on(change_of("k"));
        }
        subscribers.pass_on(change_of("other"));
        assert!(matches!(others.try_recv(), Ok(Ok(change)) if *change == change_of("other")));
        assert!(matches!(others.try_recv(), Err(TryRecvError::Empty)));
        for _ in 0..MAX_BEHIND {
            assert!(matches!(changes.try_recv(), Ok(Ok(_))));
        }
        assert!(matches!(changes.try_recv(), Err(TryRecvError::Disconnected)));
        drop(others);
        assert!(!subscribers.begin(&[key("k"), key("other")].into(), TIME), "no subscriber is left");
        assert!(subscribers.keys().is_none());
        assert!(subscribers.join(&key("k")).1, "the task that reads has ended");
    }

    #[test]
    fn an_end_reaches_those_that_wait_for_a_stream_or_all() {
        let subscribers = Subscribers::default();
        let ((_begins, mut begun), _) = subscribers.join(&key("begun"));
        subscribers.begin(&[key("begun")].into(), TIME);
        let ((mut begins, mut waiting), _) = subscribers.join(&key("waiting"));
        subscribers.end(&StreamEnd::Closed, false);
        assert!(begins.try_recv().is_err());
        assert!(matches!(waiting.try_recv(), Ok(Err(StreamEnd::Closed))));
        assert!(matches!(begun.try_recv(), Err(TryRecvError::Empty)));
        // A change of the whole collection concerns all.
        subscribers.pass_on(doc! { "operationType": "drop" });
        subscribers.end(&StreamEnd::Silent, true);
        assert!(matches!(begun.try_recv(), Ok(Ok(_))));
        assert!(matches!(begun.try_recv(), Ok(Err(StreamEnd::Silent))));
        assert!(subscribers.join(&key("k")).1, "the task that reads has ended");
    }
}

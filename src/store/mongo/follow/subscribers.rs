//! The subscribers of the records of a store on one runtime.
//!
//! Purpose: the data of `follow/shared_stream.rs`, whose task reads the change stream that all subscribers share.
//!
//! Mechanism: each subscriber has a channel, on which the task passes on the changes of its key.
//!
//! Invariants: a subscriber gets a time, and then each change of its key after that time, in their order, until it is
//! left behind or the stream ends. A slow subscriber is left behind: no other subscriber waits for it.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mongodb::bson::{Document, Timestamp};
use tokio::sync::{
    Notify,
    mpsc::{self, Receiver, Sender},
    oneshot,
};

use super::super::stream_error::StreamEnd;
use crate::Key;

/// How many changes are kept for a slow subscriber.
const MAX_BEHIND: usize = 4_096;

/// The subscribers of a store on one runtime.
#[derive(Default)]
pub(in crate::store::mongo) struct Subscribers {
    state: Mutex<SubscribersState>,
    /// Wakes the task that reads: a subscriber has come or gone.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct SubscribersState {
    subscribers: HashMap<u64, Subscriber>,
    /// How many subscribers have joined.
    joined: u64,
    /// The stream, if it is open.
    open: Option<OpenStream>,
    /// Whether the task that reads runs.
    is_running: bool,
}

/// An open stream.
struct OpenStream {
    keys: HashSet<Key>,
    /// The time after which changes of these keys are still to be passed on.
    passed_on: Timestamp,
}

struct Subscriber {
    key: Key,
    begins: Option<oneshot::Sender<Timestamp>>,
    changes: Sender<Arc<Document>>,
    ends: oneshot::Sender<StreamEnd>,
}

/// A subscriber's end of the stream.
pub(in crate::store::mongo) struct Subscription {
    subscribers: Arc<Subscribers>,
    number: u64,
    begins: oneshot::Receiver<Timestamp>,
    pub(in crate::store::mongo) changes: Receiver<Arc<Document>>,
    ends: oneshot::Receiver<StreamEnd>,
}

impl Subscription {
    /// Follows the changes of a key. Also returns whether the task that reads has to be started.
    pub(super) fn begin(subscribers: Arc<Subscribers>, key: &Key) -> (Self, bool) {
        let (begin, begins) = oneshot::channel();
        let (pass_on, changes) = mpsc::channel(MAX_BEHIND);
        let (end, ends) = oneshot::channel();
        let mut state = subscribers.state();
        state.joined = state.joined.saturating_add(1);
        let number = state.joined;
        let subscriber = Subscriber { key: key.clone(), begins: Some(begin), changes: pass_on, ends: end };
        state.subscribers.insert(number, subscriber);
        state.begin_subscribers_of_open_stream();
        let was_running = mem::replace(&mut state.is_running, true);
        drop(state);
        if was_running {
            subscribers.changed.notify_one();
        }
        (Self { subscribers, number, begins, changes, ends }, !was_running)
    }

    /// Waits until the stream has the key. Returns the time after which each change is passed on. The error is why the
    /// stream ended, if that is known.
    pub(super) async fn begun(&mut self) -> std::result::Result<Timestamp, Option<StreamEnd>> {
        match (&mut self.begins).await {
            Ok(from) => Ok(from),
            Err(_ended) => Err(self.end()),
        }
    }

    /// Why the stream has ended. `None` if this subscriber was left behind.
    pub(super) fn end(&mut self) -> Option<StreamEnd> {
        self.ends.try_recv().ok()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.subscribers.state().subscribers.remove(&self.number);
        self.subscribers.changed.notify_one();
    }
}

impl Subscribers {
    fn state(&self) -> MutexGuard<'_, SubscribersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys that are followed. If there are none, the task that reads ends.
    pub(super) fn keys(&self) -> Option<HashSet<Key>> {
        let mut state = self.state();
        let keys: HashSet<Key> = state.subscribers.values().map(|subscriber| subscriber.key.clone()).collect();
        if keys.is_empty() {
            state.is_running = false;
            state.open = None;
            return None;
        }
        Some(keys)
    }

    /// Notes that a stream of these keys is open, which passes on each change after this time.
    pub(super) fn opened(&self, keys: HashSet<Key>, passed_on: Timestamp) {
        let mut state = self.state();
        state.open = Some(OpenStream { keys, passed_on });
        state.begin_subscribers_of_open_stream();
    }

    /// Whether no subscriber is left, or a subscriber's key is not in the stream.
    pub(super) fn has_changed(&self) -> bool {
        let state = self.state();
        state.subscribers.is_empty() || state.subscribers.values().any(|subscriber| subscriber.begins.is_some())
    }

    /// Passes a change on. A subscriber that has no room for it is left behind.
    pub(super) fn pass_on(&self, change: Document) {
        let key = change.get_document("documentKey").and_then(|key| key.get_str("_id")).ok().map(str::to_owned);
        let time = change.get_timestamp("clusterTime").ok();
        let change = Arc::new(change);
        let mut state = self.state();
        if let (Some(open), Some(time)) = (&mut state.open, time) {
            open.passed_on = open.passed_on.max(time);
        }
        // A change without a key concerns all subscribers.
        let concerns = |subscriber: &Subscriber| key.as_ref().is_none_or(|key| subscriber.key.as_str() == key);
        state
            .subscribers
            .retain(|_, subscriber| !concerns(subscriber) || subscriber.changes.try_send(Arc::clone(&change)).is_ok());
    }

    /// Ends the stream for all subscribers.
    pub(super) fn end(&self, end: &StreamEnd) {
        let mut state = self.state();
        state.open = None;
        state.is_running = false;
        state.end(end, |_| true);
    }

    /// Ends it for the subscribers whose keys are not in the stream.
    pub(super) fn end_waiting(&self, end: &StreamEnd) {
        self.state().end(end, |subscriber| subscriber.begins.is_some());
    }
}

impl SubscribersState {
    fn end(&mut self, end: &StreamEnd, which: impl Fn(&Subscriber) -> bool) {
        for (_, subscriber) in self.subscribers.extract_if(|_, subscriber| which(subscriber)) {
            // The subscriber may be gone.
            let _sent = subscriber.ends.send(end.clone());
        }
    }

    fn begin_subscribers_of_open_stream(&mut self) {
        let Some(open) = &self.open else { return };
        for subscriber in self.subscribers.values_mut().filter(|subscriber| open.keys.contains(&subscriber.key)) {
            if let Some(begins) = subscriber.begins.take() {
                // A subscriber that is gone removes its entry.
                let _sent = begins.send(open.passed_on);
            }
        }
    }
}

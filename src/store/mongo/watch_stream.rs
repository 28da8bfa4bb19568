//! One change stream for all records of a store that are followed on one runtime.
//!
//! Purpose: each open change stream keeps a connection of the client, so a thousand watches cannot have a thousand streams.
//!
//! Mechanism: one task reads a stream of the changes of all followed keys and passes each change on to the followers of its
//! key. Where a key is followed that the stream does not have, the task opens another stream with it, behind the last change
//! that it has passed on. The stream before it ends with its pending request.
//!
//! If another stream cannot be opened, only those who wait for it are told; the stream before goes on.
//!
//! Invariants: a follower is told a time; it is passed each change of its key after that time, in their order, until it is
//! left behind or the stream ends. A follower that is slow is left behind: nobody waits for it.

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

use super::{
    Inner, MongoStore,
    key_streams::Streams,
    stream_end::{End, ended_early},
    traffic::Traffic,
};
use crate::{Error, Key, Result};

/// How many changes are kept for a follower that is slow.
const MAX_BEHIND: usize = 4_096;

/// The followers of a store on one runtime.
#[derive(Default)]
pub(super) struct WatchStream {
    state: Mutex<State>,
    /// Wakes the task that reads: a follower has come or gone.
    changed: Notify,
}

#[derive(Default)]
struct State {
    followers: HashMap<u64, Follower>,
    /// How many followers there were.
    joined: u64,
    /// The stream, if it is open.
    open: Option<Open>,
    /// Whether the task that reads runs.
    is_run: bool,
}

/// An open stream.
struct Open {
    keys: HashSet<Key>,
    /// Each change of these keys after this time is still to be passed on.
    passed_on: Timestamp,
}

struct Follower {
    key: Key,
    begins: Option<oneshot::Sender<Timestamp>>,
    changes: Sender<Arc<Document>>,
    ends: oneshot::Sender<End>,
}

/// A follower's end of the stream.
pub(super) struct Following {
    traffic: Arc<Traffic>,
    number: u64,
    begins: oneshot::Receiver<Timestamp>,
    pub(super) changes: Receiver<Arc<Document>>,
    ends: oneshot::Receiver<End>,
}

impl Following {
    /// Follows the changes of a key.
    pub(super) fn begin(store: &Arc<Inner>, key: &Key) -> Self {
        let traffic = store.traffic.here();
        let (begin, begins) = oneshot::channel();
        let (pass_on, changes) = mpsc::channel(MAX_BEHIND);
        let (end, ends) = oneshot::channel();
        let mut state = traffic.watch_stream.state();
        state.joined = state.joined.saturating_add(1);
        let number = state.joined;
        let follower = Follower { key: key.clone(), begins: Some(begin), changes: pass_on, ends: end };
        state.followers.insert(number, follower);
        state.begin_those_of_open_stream();
        let is_run = mem::replace(&mut state.is_run, true);
        drop(state);
        if is_run {
            traffic.watch_stream.changed.notify_one();
        } else {
            MongoStore::run_unwatched(run(Arc::clone(store), Arc::clone(&traffic)));
        }
        Self { traffic, number, begins, changes, ends }
    }

    /// Waits until the stream has the key. Gives the time after which each change is passed on.
    pub(super) async fn begun(&mut self, store: &Inner) -> Result<Timestamp> {
        match (&mut self.begins).await {
            Ok(from) => Ok(from),
            Err(_ended) => Err(self.end(store).unwrap_or_else(ended_early)),
        }
    }

    /// Why the stream has ended whose changes have; `None` if this follower was left behind.
    pub(super) fn end(&mut self, store: &Inner) -> Option<Error> {
        self.ends.try_recv().ok().map(|end| end.meaning(store))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let stream = &self.traffic.watch_stream;
        stream.state().followers.remove(&self.number);
        stream.changed.notify_one();
    }
}

impl WatchStream {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys that are followed. If there are none, the task that reads ends.
    fn keys(&self) -> Option<HashSet<Key>> {
        let mut state = self.state();
        let keys: HashSet<Key> = state.followers.values().map(|follower| follower.key.clone()).collect();
        if keys.is_empty() {
            state.is_run = false;
            state.open = None;
            return None;
        }
        Some(keys)
    }

    /// A stream of these keys is open. What follows this time will be passed on.
    fn opened(&self, keys: HashSet<Key>, passed_on: Timestamp) {
        let mut state = self.state();
        state.open = Some(Open { keys, passed_on });
        state.begin_those_of_open_stream();
    }

    /// Whether nobody follows any more, or a key that the stream does not have.
    fn has_changed(&self) -> bool {
        let state = self.state();
        state.followers.is_empty() || state.followers.values().any(|follower| follower.begins.is_some())
    }

    /// Passes a change on. A follower that has no room for it is left behind.
    fn pass_on(&self, change: Document) {
        let key = change.get_document("documentKey").and_then(|key| key.get_str("_id")).ok().map(str::to_owned);
        let time = change.get_timestamp("clusterTime").ok();
        let change = Arc::new(change);
        let mut state = self.state();
        if let (Some(open), Some(time)) = (&mut state.open, time) {
            open.passed_on = open.passed_on.max(time);
        }
        // One without a key concerns all.
        let concerns = |follower: &Follower| key.as_ref().is_none_or(|key| follower.key.as_str() == key);
        state
            .followers
            .retain(|_, follower| !concerns(follower) || follower.changes.try_send(Arc::clone(&change)).is_ok());
    }

    /// Ends the stream for all followers.
    fn end(&self, end: &End) {
        let mut state = self.state();
        state.open = None;
        state.is_run = false;
        state.end(end, |_| true);
    }

    /// Ends it for the followers of keys that the stream does not have.
    fn end_those_that_wait(&self, end: &End) {
        self.state().end(end, |follower| follower.begins.is_some());
    }
}

impl State {
    fn end(&mut self, end: &End, which: impl Fn(&Follower) -> bool) {
        for (_, follower) in self.followers.extract_if(|_, follower| which(follower)) {
            // Whoever is gone need not be told.
            let _told = follower.ends.send(end.clone());
        }
    }

    fn begin_those_of_open_stream(&mut self) {
        let Some(open) = &self.open else { return };
        for follower in self.followers.values_mut().filter(|follower| open.keys.contains(&follower.key)) {
            if let Some(begins) = follower.begins.take() {
                // Whoever is gone takes its entry away.
                let _told = begins.send(open.passed_on);
            }
        }
    }
}

/// Reads the changes of the followed keys until nobody follows or the stream ends.
async fn run(store: Arc<Inner>, traffic: Arc<Traffic>) {
    let stream = &traffic.watch_stream;
    // Should this task be dropped with its runtime, so are its followers.
    let end = match read_all(&store, stream).await {
        Ok(()) => return,
        Err(end) => end,
    };
    stream.end(&end);
}

async fn read_all(store: &Arc<Inner>, stream: &WatchStream) -> std::result::Result<(), End> {
    let mut streams = Streams::new(store)?;
    let mut changes = None;
    while let Some(keys) = stream.keys() {
        match streams.open(&keys).await {
            Ok((opened, from)) => {
                stream.opened(keys, from);
                changes = Some(opened);
            }
            // The others still have the stream before.
            Err(end) if changes.is_some() => stream.end_those_that_wait(&end),
            Err(end) => return Err(end),
        }
        let Some(changes) = &mut changes else { return Err(End::Closed) };
        loop {
            tokio::select! {
                read = changes.recv() => {
                    let Some((change, token)) = read else { return Err(End::Closed) };
                    if let Some(token) = token {
                        streams.read_up_to(token);
                    }
                    if let Some(change) = change? {
                        stream.pass_on(change);
                    }
                }
                () = stream.changed.notified() => {
                    if stream.has_changed() {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

//! The change streams from which the handles of a runtime get their notifications.
//!
//! Purpose: the data of `watch.rs`, which opens and reads the streams.
//!
//! Mechanism: a handle joins the stream of its digits as a listener. The reader of the stream sends each event to the
//! listeners that it concerns. The stream keeps the last hand-overs for handles that join.
//!
//! Invariant: a listener gets a time first, and then each later hand-over to it, until its stream ends.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mongodb::bson::{Document, Timestamp};
use tokio::sync::mpsc::UnboundedSender;

use super::super::{
    document::{self, hybrid_time},
    stream_error::StreamEnd,
};
use crate::{
    record::StoreTime,
    store::answers::Notification,
    types::{
        acquire_id::{AcquireId, HandleId},
        clock::Clock,
        reading::Reading,
        token::FencingToken,
    },
};

/// How long the server holds a request for events if there is none. A stream also stays open this long after its last
/// listener has gone.
pub(in crate::store::mongo) const NOTIFICATION_AWAIT: Duration = Duration::from_secs(2);

/// How long the server may be silent before a joining handle opens another stream.
const MAX_SILENCE: Duration = NOTIFICATION_AWAIT.saturating_mul(5);

/// How many hand-overs a stream keeps for joining handles.
const MAX_KEPT: usize = 4_096;

/// The streams of a store on one runtime, by the digits with which the ids of their handles begin.
#[derive(Default)]
pub(in crate::store::mongo) struct NotificationStreams(Mutex<StreamsByDigits>);

#[derive(Default)]
struct StreamsByDigits {
    by_digits: HashMap<String, NotificationStream>,
    /// How many streams were opened.
    opened: u64,
}

/// A stream that is open or being opened.
struct NotificationStream {
    number: u64,
    listeners: Vec<Listener>,
    /// All hand-overs after `kept_from` that were read.
    kept: VecDeque<HandOver>,
    kept_from: Timestamp,
    /// When the server last answered.
    answered_at: Reading,
}

/// A grant of a key to a handle, or a revocation, which has no token.
#[derive(Clone, Copy)]
pub(in crate::store::mongo) struct HandOver {
    acquire_id: AcquireId,
    token: Option<FencingToken>,
    at: Timestamp,
    /// The time of the change on the server's clock.
    changed_at: Option<StoreTime>,
}

/// A handle that listens to a stream, until its receiver is dropped.
struct Listener {
    handle: HandleId,
    pass_on: UnboundedSender<Delivery>,
}

/// A notification, or, at the end, why the stream has ended.
pub(in crate::store::mongo) type Delivery = std::result::Result<Notification, StreamEnd>;

impl NotificationStreams {
    fn state(&self) -> MutexGuard<'_, StreamsByDigits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins a stream. Returns the number of a stream that has to be opened, or whether the handle gets all hand-overs
    /// since this time.
    pub(in crate::store::mongo) fn join(
        &self,
        digits: &str,
        handle: HandleId,
        since: Timestamp,
        pass_on: &UnboundedSender<Delivery>,
    ) -> Joined {
        let (now, mut state) = (Clock::Boot.now(), self.state());
        let listener = Listener { handle, pass_on: pass_on.clone() };
        if let Some(stream) = state.by_digits.get_mut(digits)
            && stream.answered_at.after(MAX_SILENCE) > now
        {
            let has_all = stream.kept_from <= since;
            if has_all {
                // The receiver may be gone.
                let _sent = pass_on.send(Ok(Notification::Started { since: hybrid_time(since) }));
                for hand_over in stream.kept.iter().filter(|kept| kept.at > since) {
                    listener.notify(hand_over);
                }
            }
            stream.listeners.push(listener);
            return Joined::Open { has_all };
        }
        state.opened = state.opened.saturating_add(1);
        let number = state.opened;
        let (listeners, kept) = (vec![listener], VecDeque::new());
        // The listeners of a silent stream join again.
        state.by_digits.insert(
            digits.to_owned(),
            NotificationStream { number, listeners, kept, kept_from: since, answered_at: now },
        );
        Joined::First { number }
    }
}

/// The stream that a handle has joined.
pub(in crate::store::mongo) enum Joined {
    First { number: u64 },
    Open { has_all: bool },
}

impl Listener {
    fn notify(&self, &HandOver { acquire_id, token, changed_at, .. }: &HandOver) {
        if self.handle == acquire_id.handle {
            // A listener without a receiver is removed before the next event is read.
            let _sent = self.pass_on.send(Ok(Notification::of(acquire_id, token, changed_at)));
        }
    }
}

/// A stream, for the task that reads it. Dropping this drops all listeners.
pub(in crate::store::mongo) struct StreamReader {
    pub(in crate::store::mongo) streams: Arc<NotificationStreams>,
    pub(in crate::store::mongo) digits: String,
    pub(in crate::store::mongo) number: u64,
}

impl StreamReader {
    /// Changes the stream, unless another one has replaced it.
    fn with<T>(&self, act: impl FnOnce(&mut NotificationStream) -> T) -> Option<T> {
        let mut state = self.streams.state();
        state.by_digits.get_mut(&self.digits).filter(|stream| stream.number == self.number).map(act)
    }

    /// Notes that the server has answered. Returns whether the stream has listeners. Without listeners it is removed.
    pub(in crate::store::mongo) fn has_listeners(&self) -> bool {
        let mut state = self.streams.state();
        let Some(stream) = state.by_digits.get_mut(&self.digits).filter(|stream| stream.number == self.number) else {
            return false;
        };
        stream.answered_at = Clock::Boot.now();
        stream.listeners.retain(|listener| !listener.pass_on.is_closed());
        let has_listeners = !stream.listeners.is_empty();
        if !has_listeners {
            state.by_digits.remove(&self.digits);
        }
        has_listeners
    }

    /// Sends each grant and revocation of an event to its handle.
    pub(in crate::store::mongo) fn pass_on(&self, event: &Document) {
        // An event always has a time.
        if let Ok(at) = event.get_timestamp("clusterTime") {
            self.with(|stream| stream.pass_on(hand_overs_of(event, at)));
        }
    }

    /// Sends why the stream has ended. If it could not be opened, only the handle that opened it gets that: the cause
    /// may be its start time. The other handles join again.
    pub(in crate::store::mongo) fn end(&self, end: &StreamEnd) {
        let receivers = if matches!(end, StreamEnd::NotOpened(_)) { 1 } else { usize::MAX };
        self.with(|stream| {
            for listener in stream.listeners.iter().take(receivers) {
                let _sent = listener.pass_on.send(Err(end.clone()));
            }
        });
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.streams.state();
        if state.by_digits.get(&self.digits).is_some_and(|stream| stream.number == self.number) {
            state.by_digits.remove(&self.digits);
        }
    }
}

impl NotificationStream {
    fn pass_on(&mut self, hand_overs: Vec<HandOver>) {
        for hand_over in hand_overs {
            for listener in &self.listeners {
                listener.notify(&hand_over);
            }
            self.kept.push_back(hand_over);
        }
        while self.kept.len() > MAX_KEPT {
            self.kept_from = self.kept.pop_front().map_or(self.kept_from, |dropped| dropped.at);
        }
    }
}

/// The grants and revocations of an event at this time.
pub(in crate::store::mongo) fn hand_overs_of(event: &Document, at: Timestamp) -> Vec<HandOver> {
    let replaced = event.get_document("fullDocument");
    let updated = event.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    let Ok(fields) = replaced.or(updated) else { return Vec::new() };
    let handover = fields.get_str("handover").ok().and_then(document::decode_handover).unwrap_or_default();
    // An update within the millisecond of the update before leaves the time as it is.
    let changed_at = fields.get_datetime("last_seen").ok().map(|time| StoreTime::from_millis(time.timestamp_millis()));
    handover.into_iter().map(|(acquire_id, token)| HandOver { acquire_id, token, at, changed_at }).collect()
}

#[cfg(test)]
mod tests;

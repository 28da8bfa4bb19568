//! What the library reports of all leases: places in queues, and confirmed refreshes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use mongoseal::{HandleEvent, Observer};
use tokio::{
    sync::watch::{Receiver, Sender},
    time::sleep,
};

use super::{event::Event, output::Output, request::Id};

/// After a refresh was reported, the time until its leases have their new deadlines. Refreshes of many leases come in
/// several requests, which one notice then covers.
const SETTLED_AFTER: Duration = Duration::from_millis(20);

/// The observer of the handle.
pub(super) struct Notices {
    output: Output,
    /// The waits of each key that have no place yet, in the order of their requests.
    waits: Mutex<HashMap<String, VecDeque<Id>>>,
    reported: Sender<()>,
    settled: Sender<()>,
}

impl Notices {
    pub(super) fn new(output: Output) -> Self {
        Self { output, waits: Mutex::default(), reported: Sender::default(), settled: Sender::default() }
    }

    fn waits(&self) -> std::sync::MutexGuard<'_, HashMap<String, VecDeque<Id>>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a request for this key begins.
    pub(super) fn begin_wait(&self, key: &str, id: &Id) {
        self.waits().entry(key.to_owned()).or_default().push_back(id.clone());
    }

    /// Notes that it has ended.
    pub(super) fn end_wait(&self, key: &str, id: &Id) {
        let mut waits = self.waits();
        let Some(of_key) = waits.get_mut(key) else { return };
        of_key.retain(|other| other != id);
        if of_key.is_empty() {
            waits.remove(key);
        }
    }

    /// Changes when refreshes were confirmed.
    pub(super) fn refreshed(&self) -> Receiver<()> {
        self.settled.subscribe()
    }

    /// Passes the reports of refreshes on, when the deadlines have moved.
    pub(super) async fn settle(&self) {
        let mut reported = self.reported.subscribe();
        while reported.changed().await.is_ok() {
            sleep(SETTLED_AFTER).await;
            reported.mark_unchanged();
            self.settled.send_replace(());
        }
    }
}

impl Observer for Notices {
    fn observe(&self, event: &HandleEvent<'_>) {
        match event {
            HandleEvent::Queued { key, position, .. } => {
                let waiting = self.waits().get_mut(key.as_str()).and_then(VecDeque::pop_front);
                if let Some(lease) = waiting {
                    self.output.print(&Event::Waiting { lease, position: position.saturating_add(1) });
                }
            }
            HandleEvent::RefreshFinished { .. } => {
                self.reported.send_replace(());
            }
            _ => {}
        }
    }
}

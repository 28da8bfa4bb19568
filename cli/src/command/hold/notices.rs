//! What the library reports of all leases: confirmed refreshes.

use std::time::Duration;

use mongoseal::observe::{HandleEvent, Observer};
use tokio::{
    sync::watch::{Receiver, Sender},
    time::sleep,
};

/// After a refresh was reported, the time until its leases have their new deadlines. Refreshes of many leases come in
/// several requests, which one notice then covers.
const SETTLED_AFTER: Duration = Duration::from_millis(20);

/// The observer of the handle.
#[derive(Default)]
pub(super) struct Notices {
    reported: Sender<()>,
    settled: Sender<()>,
}

impl Notices {
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
        if matches!(event, HandleEvent::RefreshFinished { .. }) {
            self.reported.send_replace(());
        }
    }
}

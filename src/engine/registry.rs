//! The waiters and holders of a handle and its siblings, as plain data.
//!
//! Purpose: an acquire waits for the releases of its own handle and its siblings: so a caller that drops a lease and acquires its
//! key again is not refused because of that lease.
//!
//! Mechanism: a drop or release of a lease marks it as ended before it returns, and an acquire waits while a lease of its key is
//! here that has ended in this process. `notifier.rs` listens to the store for those that are here.
//!
//! Invariant: a lease is removed after the last request for it. Work under a lease of a handle that is shut down holds up no
//! acquire of a sibling.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::mpsc::UnboundedSender;

use crate::{
    engine::{end_action::EndAction, lease_inner::LeaseInner, lease_state::LeaseState, retry::Backoff},
    store::answers::Notification,
    types::{
        error::{Error, Result},
        instant::Instant,
        key::Key,
        lease_id::LeaseId,
        lock::lock,
        token::HybridTime,
    },
};

/// How long the listener stays without waiters and holders: to keep it for a while costs less than to open it again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The waiters and holders of a handle and its siblings.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<RegistryState>);

// The maps are in order, so that a simulation is the same each time.
#[derive(Debug, Default)]
pub(super) struct RegistryState {
    /// By the number of their acquire.
    pub(super) waiting: BTreeMap<u64, UnboundedSender<Notification>>,
    /// The leases that have not ended at the store, by the number of their acquire.
    pub(super) holding: BTreeMap<u64, Arc<LeaseInner>>,
    /// The same by key, too.
    of_key: BTreeMap<(Key, u64), Arc<LeaseInner>>,
    /// The hybrid time after which the listener receives what happens, or a later one that it reports when it is open. `None`: no
    /// task listens.
    pub(super) listening: Option<HybridTime>,
    /// No task begins to listen before this time.
    pub(super) closed_until: Instant,
    /// The pauses before the next listeners, while the store refuses to notify.
    pub(super) refused: Option<Backoff>,
    /// When the last waiter or holder left.
    pub(super) idle_since: Instant,
}

impl RegistryState {
    fn add_holder(&mut self, lease: &Arc<LeaseInner>) {
        let number = lease.acquire_id.number;
        self.holding.insert(number, Arc::clone(lease));
        self.of_key.insert((lease.key.clone(), number), Arc::clone(lease));
    }

    /// Refuses a lease id of a lease that is held or being ended: two leases would both believe in one holder. A lease that
    /// was lost or orphaned sends nothing more.
    fn ensure_unheld(&self, id: LeaseId) -> Result<()> {
        let is_in_use = |lease: &LeaseInner| match lease.state() {
            // A shutdown releases it, whatever its holder has set since.
            LeaseState::Held | LeaseState::AtRisk | LeaseState::SHUT_DOWN => true,
            LeaseState::Lost { .. } => false,
            LeaseState::Ended { .. } => !matches!(lease.end_action.get(), Some(EndAction::Orphan)),
        };
        if self.holding.values().any(|lease| lease.id == id && is_in_use(lease)) {
            return Err(Error::invalid(format!(
                "the lease id {id} is in use by a lease of this handle or a sibling: wait until that has ended"
            )));
        }
        Ok(())
    }
}

impl Registry {
    /// Locks all of it. Release it before anything is woken or called.
    pub(super) fn lock(&self) -> MutexGuard<'_, RegistryState> {
        lock(&self.0)
    }

    /// Adds a holder.
    pub(crate) fn add_holder(&self, lease: &Arc<LeaseInner>) {
        self.lock().add_holder(lease);
    }

    /// Refuses a lease id that a lease of the handles uses.
    pub(crate) fn ensure_unheld(&self, id: LeaseId) -> Result<()> {
        self.lock().ensure_unheld(id)
    }

    /// Adds the holder of a lease that was resumed, unless another resume of it came first.
    pub(crate) fn add_resumed(&self, lease: &Arc<LeaseInner>) -> Result<()> {
        let mut state = self.lock();
        state.ensure_unheld(lease.id)?;
        state.add_holder(lease);
        Ok(())
    }

    pub(crate) fn remove_holder(&self, lease: &LeaseInner) {
        let number = lease.acquire_id.number;
        let mut state = self.lock();
        state.idle_since = lease.clock.now();
        state.holding.remove(&number);
        state.of_key.remove(&(lease.key.clone(), number));
    }

    /// Waits until each lease of this key that a caller has ended or that was lost has ended at the store. Those that end later
    /// are not waited for.
    pub(crate) async fn wait_for_ends(&self, key: &Key) {
        let has_ended = |lease: &LeaseInner| {
            let waits_for_work = lease.recorded_state() == LeaseState::SHUT_DOWN && lease.is_at_work();
            lease.ended.is_cancelled() && !waits_for_work
        };
        let ended: Vec<_> = {
            let state = self.lock();
            let of_key = state.of_key.range((key.clone(), 0)..=(key.clone(), u64::MAX)).map(|(_, lease)| lease);
            of_key.filter(|lease| has_ended(lease)).map(Arc::clone).collect()
        };
        for lease in ended {
            lease.done.wait().await;
        }
    }

    /// Whether no task listens, although one can be started.
    pub(crate) fn is_listener_missing(&self, now: Instant) -> bool {
        let state = self.lock();
        state.listening.is_none() && state.closed_until <= now
    }

    /// The leases that the handles hold.
    pub(crate) fn leases(&self) -> Vec<Arc<LeaseInner>> {
        self.lock().holding.values().map(Arc::clone).collect()
    }

    /// Whether there has been no waiter and no holder for a while.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.holding.is_empty() && state.idle_since.after(IDLE_TIMEOUT) <= now
    }

    /// Wakes one waiter, not under the lock.
    pub(super) fn wake(&self, number: u64, why: Notification) {
        let wake = self.lock().waiting.get(&number).cloned();
        if let Some(wake) = wake {
            drop(wake.send(why));
        }
    }

    /// Wakes all waiters, not under the lock. `why`: by the number of the acquire.
    pub(super) fn wake_all(&self, why: impl Fn(u64) -> Notification) {
        let waiting: Vec<_> = self.lock().waiting.iter().map(|(number, wake)| (*number, wake.clone())).collect();
        for (number, wake) in waiting {
            drop(wake.send(why(number)));
        }
    }
}

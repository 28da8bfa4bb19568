//! The state that the requests of one runtime share.
//!
//! Purpose: a runtime that is no longer driven keeps all that its tasks hold.
//!
//! Mechanism: each runtime has a [`RuntimeState`] of its own.
//!
//! Invariant: a request never waits for a queue or a permit of another runtime.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::runtime::{Handle, Id};

use super::{follow::subscribers::Subscribers, watch::notification_streams::NotificationStreams};

/// What requests of one runtime share.
#[derive(Default)]
pub(super) struct RuntimeState {
    pub(super) notification_streams: Arc<NotificationStreams>,
    pub(super) subscribers: Arc<Subscribers>,
}

/// The state of each runtime that has requests.
#[derive(Default)]
pub(super) struct ByRuntime(Mutex<HashMap<Option<Id>, Arc<RuntimeState>>>);

impl ByRuntime {
    /// Returns the state of the runtime in which this is called.
    pub(super) fn here(&self) -> Arc<RuntimeState> {
        let runtime = Handle::try_current().ok().map(|handle| handle.id());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = all.get(&runtime) {
            return Arc::clone(state);
        }
        // A runtime without requests needs no state, and may have ended.
        all.retain(|_, state| is_used(state));
        Arc::clone(all.entry(runtime).or_default())
    }
}

/// Whether a request or a stream uses this state.
fn is_used(state: &Arc<RuntimeState>) -> bool {
    let RuntimeState { notification_streams, subscribers } = &**state;
    Arc::strong_count(state) > 1 || Arc::strong_count(notification_streams) > 1 || Arc::strong_count(subscribers) > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_has_a_state_of_its_own_and_that_of_one_without_requests_is_forgotten() {
        let all = ByRuntime::default();
        let runtime = || tokio::runtime::Runtime::new().unwrap();
        let (one, other) = (runtime(), runtime());
        let of_one = one.block_on(async { all.here() });
        assert!(Arc::ptr_eq(&of_one, &one.block_on(async { all.here() })));
        assert!(!Arc::ptr_eq(&of_one, &other.block_on(async { all.here() })));
        all.here();
        assert_eq!(all.0.lock().unwrap().len(), 2, "the state of `one`, which is in use, and that without a runtime");
        let streams = Arc::clone(&of_one.notification_streams);
        drop(of_one);
        other.block_on(async { all.here() });
        assert!(
            Arc::ptr_eq(&streams, &one.block_on(async { all.here() }).notification_streams),
            "a part of it is in use"
        );
    }
}

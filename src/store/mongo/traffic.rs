//! What requests of one runtime share.
//!
//! Purpose: a runtime that is not driven any more keeps all that its tasks hold. So requests of another runtime never wait
//! for a line, a gate or an admission of this one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::runtime::{Handle, Id};

use super::{coalesce::Coalescer, gate::Gates, hand_over_stream::HandOverStreams, watch_stream::WatchStream};

/// What requests of one runtime share.
#[derive(Default)]
pub(super) struct Traffic {
    pub(super) coalescer: Coalescer,
    pub(super) gates: Gates,
    pub(super) hand_over_streams: HandOverStreams,
    pub(super) watch_stream: WatchStream,
}

/// The traffic of each runtime that has some.
#[derive(Default)]
pub(super) struct ByRuntime(Mutex<HashMap<Option<Id>, Arc<Traffic>>>);

impl ByRuntime {
    /// That of the runtime in which this is called.
    pub(super) fn here(&self) -> Arc<Traffic> {
        let runtime = Handle::try_current().ok().map(|handle| handle.id());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(traffic) = all.get(&runtime) {
            return Arc::clone(traffic);
        }
        // Those without a request have no state. Their runtimes may have ended.
        all.retain(|_, traffic| Arc::strong_count(traffic) > 1);
        Arc::clone(all.entry(runtime).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_has_traffic_of_its_own_and_that_of_one_without_requests_is_forgotten() {
        let all = ByRuntime::default();
        let runtime = || tokio::runtime::Runtime::new().unwrap();
        let (one, other) = (runtime(), runtime());
        let of_one = one.block_on(async { all.here() });
        assert!(Arc::ptr_eq(&of_one, &one.block_on(async { all.here() })));
        assert!(!Arc::ptr_eq(&of_one, &other.block_on(async { all.here() })));
        all.here();
        assert_eq!(all.0.lock().unwrap().len(), 2, "that of `one`, which is in use, and that without a runtime");
    }
}

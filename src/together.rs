//! Leases that end together: one command gives all of them back, or takes all of them.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    LeaseState, LossCause,
    farewell::Farewell,
    hold::Hold,
    record::{Joint, Named, named},
    seal::Inner,
};

/// Leases that were ended together.
#[derive(Debug)]
pub(crate) struct Together {
    leases: Named,
    /// Cancelled when all of them have ended here: none is given back before.
    ended: CancellationToken,
    released: OnceCell<bool>,
}

impl Together {
    /// Ends these leases, as far as they are held. The task of the first to come gives all of them back.
    pub(crate) fn end<'a>(holds: impl IntoIterator<Item = &'a Arc<Hold>>) {
        let holds: Vec<_> = holds.into_iter().filter(|hold| hold.is_valid()).collect();
        let leases = named(holds.iter().map(|hold| (hold.key.clone(), hold.token)));
        let together = Arc::new(Self { leases, ended: CancellationToken::new(), released: OnceCell::new() });
        // One alone is released as any other is.
        for hold in holds.iter().filter(|_| holds.len() > 1) {
            hold.farewell.get_or_init(|| Farewell::Together(Arc::clone(&together)));
        }
        for hold in &holds {
            hold.end(&LeaseState::Released);
        }
        together.ended.cancel();
    }

    /// Gives all of them back, once; says whether all were held to this moment. Where not, each has to see
    /// for itself.
    pub(crate) async fn released(&self, inner: &Inner, within: Duration) -> bool {
        self.ended.cancelled().await;
        let release = || async {
            let released = inner.store.apply_jointly(&self.leases, &Joint::Release, within).await;
            debug!(leases = self.leases.len(), ?released, "released together");
            released.unwrap_or(false)
        };
        *self.released.get_or_init(release).await
    }
}

/// The release of a whole group by this handle, as those of its leases see it that are held here.
#[derive(Debug, Default)]
pub(crate) struct GroupRelease {
    released: watch::Sender<bool>,
}

/// Who waits for that.
#[derive(Clone, Debug)]
pub(crate) struct WithGroup(watch::Receiver<bool>);

impl GroupRelease {
    /// Ends a lease here: should the release come to nothing, its task gives it back by itself.
    pub(crate) fn takes(&self, hold: &Hold, cause: LossCause) {
        hold.farewell.get_or_init(|| Farewell::WithGroup(WithGroup(self.released.subscribe())));
        hold.lose(cause);
    }

    /// They are released.
    pub(crate) fn done(self) {
        self.released.send_replace(true);
    }
}

impl WithGroup {
    /// Waits until the group was released; says whether it was.
    pub(crate) async fn released(&self, inner: &Inner) -> bool {
        let mut released = self.0.clone();
        tokio::select! {
            biased;
            released = released.wait_for(|released| *released) => released.is_ok(),
            () = inner.closing.cancelled() => false,
            () = inner.clock().sleep_until(inner.give_up()) => false,
        }
    }
}

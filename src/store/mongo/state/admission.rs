//! The bound of the requests that are under way.
//!
//! Purpose: the driver serves requests that wait for a connection in their order. A burst of acquires, or acquires of
//! locked records, must not delay a refresh until its lease is lost.
//!
//! Mechanism: each request but a refresh or a read takes a permit. There are permits for half of the connections.
//!
//! Invariants: if a caller gives up while its request waits for a permit, the request is never sent. A request keeps its
//! permit until its command ends or its time is over, also if its caller has given up: the command keeps its connection.

use std::pin::pin;

use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use crate::{
    store::pool::Permits,
    types::{
        deadline::Deadline,
        error::{Error, Result},
    },
};

/// Waits until another request may be under way. Returns its permit.
pub(in crate::store::mongo) async fn admit(permits: &Permits, deadline: Deadline) -> Result<OwnedSemaphorePermit> {
    let admitted = timeout(deadline.remaining(), permits.here().acquire_owned()).await;
    admitted.ok().and_then(Result::ok).ok_or_else(|| {
        Error::unavailable(
            "earlier requests of this client have no answer yet: check that a primary can be reached, and that no transaction keeps records locked, and retry",
        )
    })
}

/// Runs `work` with the permit, until the deadline at most. On a dead connection a command ends much later.
pub(in crate::store::mongo) async fn run_with<T>(
    permit: OwnedSemaphorePermit,
    deadline: Deadline,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    if let Ok(done) = timeout(deadline.remaining(), &mut work).await {
        return done;
    }
    drop(permit);
    work.await
}

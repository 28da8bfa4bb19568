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

/// The permit of a request.
pub(in crate::store::mongo) struct Admitted {
    _permit: OwnedSemaphorePermit,
}

/// The permits of the requests of a client.
pub(in crate::store::mongo) struct Admission(Permits);

impl Admission {
    /// Admits this many requests of a runtime at once.
    pub(in crate::store::mongo) fn new(requests: usize) -> Self {
        Self(Permits::new(requests))
    }

    /// Waits until another request may be under way.
    pub(in crate::store::mongo) async fn admit(&self, deadline: Deadline) -> Result<Admitted> {
        let admitted = timeout(deadline.remaining(), self.0.here().acquire_owned()).await.ok().and_then(Result::ok);
        admitted.map(|permit| Admitted { _permit: permit }).ok_or_else(|| {
            Error::unavailable(
                "earlier requests of this client have no answer yet: check that a primary can be reached, and that no transaction keeps records locked, and retry",
            )
        })
    }
}

impl Admitted {
    /// Runs `work` with the permit, until the deadline at most. On a dead connection a command ends much later.
    pub(in crate::store::mongo) async fn run<T>(self, deadline: Deadline, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if let Ok(done) = timeout(deadline.remaining(), &mut work).await {
            return done;
        }
        drop(self);
        work.await
    }
}

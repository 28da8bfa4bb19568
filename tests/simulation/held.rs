//! What a step was granted, by either API.

use std::sync::Arc;

use mongoseal::{EndReason, FencingToken, Key, Leader, Lease, LeaseId, LeaseSet, LeaseState, TickLease, blocking};

/// What a step was granted.
pub(crate) enum Held {
    Lease(Lease),
    Set(LeaseSet),
    Tick(TickLease),
    Leader(Leader),
}

impl Held {
    pub(crate) fn leases(&self) -> Vec<&Lease> {
        match self {
            Self::Lease(lease) => vec![lease],
            Self::Set(set) => set.iter().collect(),
            Self::Tick(tick) => vec![tick.lease()],
            Self::Leader(leader) => vec![leader.lease()],
        }
    }
}

/// A lease of either API.
#[derive(Clone)]
pub(crate) enum Any<'a> {
    Async(&'a Lease),
    Blocking(Arc<blocking::Lease>),
}

/// Calls a verb of a lease of either API.
macro_rules! call {
    ($lease:expr, $verb:ident($($value:expr),*)) => {
        match $lease {
            Any::Async(lease) => lease.$verb($($value),*).await,
            Any::Blocking(lease) => {
                let lease = Arc::clone(lease);
                $crate::process::on_thread(move || lease.$verb($($value),*)).await
            }
        }
    };
}
pub(crate) use call;

impl Any<'_> {
    pub(crate) fn key(&self) -> &Key {
        match self {
            Self::Async(lease) => lease.key(),
            Self::Blocking(lease) => lease.key(),
        }
    }

    pub(crate) fn id(&self) -> LeaseId {
        match self {
            Self::Async(lease) => lease.id(),
            Self::Blocking(lease) => lease.id(),
        }
    }

    pub(crate) fn token(&self) -> FencingToken {
        match self {
            Self::Async(lease) => lease.token(),
            Self::Blocking(lease) => lease.token(),
        }
    }

    pub(crate) fn progress(&self) {
        match self {
            Self::Async(lease) => lease.progress(),
            Self::Blocking(lease) => lease.progress(),
        }
    }

    /// Gives its state, also when it is over.
    pub(crate) fn state(&self) -> Arc<dyn Fn() -> LeaseState + Send + Sync> {
        match self {
            Self::Async(lease) => {
                let state = lease.watch_state();
                Arc::new(move || state.get())
            }
            Self::Blocking(lease) => {
                let lease = Arc::downgrade(lease);
                Arc::new(move || {
                    lease.upgrade().map_or(LeaseState::Ended { reason: EndReason::Released }, |lease| lease.state())
                })
            }
        }
    }
}

pub(crate) fn all_of<'a>(leases: &[&'a Lease]) -> Vec<Any<'a>> {
    leases.iter().map(|lease| Any::Async(lease)).collect()
}

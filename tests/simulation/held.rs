//! What a step was granted.

use mongoseal::{Lease, LeaseSet, TickLease, election::Leader};

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

//! The lease: the right to act on a key that is held.
//!
//! Mechanism: a [`Lease`], which the engine defines, releases the lease when it is dropped. Its methods in
//! [`hold`] and beside it read the state that the lease shares with its keeper, and send the holder's requests.

// First, because the documentation has the methods in this order.
mod hold;

mod downgrade;
pub(crate) mod end;
pub(crate) mod state_stream;
#[cfg(feature = "mongodb")]
pub(crate) mod transaction;
mod upgrade;
pub(crate) mod watchdog;
pub(crate) mod work;

use std::fmt;

use tokio_util::sync::CancellationToken;

pub use crate::engine::held_lease::Lease;
use crate::types::error::Result;

/// What an acquire returns: a lease, or several that are of use only together.
#[allow(unnameable_types, reason = "a caller never names it: it has no use outside of this crate")]
pub trait Granted {
    /// The leases.
    fn leases(&self) -> &[Lease];

    /// Cancelled when one of the leases ends.
    fn ended(&self) -> &CancellationToken;

    /// Releases the leases after their work has ended. Returns an error if one of them was not held until then.
    fn release_after_work(&self) -> impl Future<Output = Result<()>> + Send;
}

impl AsRef<Lease> for Lease {
    fn as_ref(&self) -> &Lease {
        self
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.key())
            .field("owner", self.owner())
            .field("id", &self.id())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

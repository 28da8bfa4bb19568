//! The verb `now`: the store's time.

use crate::{handle::Mongoseal, record::StoreTime, types::error::Result};

impl Mongoseal {
    /// Reads the store's clock, which ends all leases: the time at which the store answered, between the call and its return.
    ///
    /// It is a linearizable read of one round trip: on MongoDB the clock is that of the primary which a majority follows at
    /// that moment. Compare it with the times of an [`Inspection`](crate::inspect::Inspection), a
    /// [`ListedLease`](crate::inspect::ListedLease) or a document with a date of the store's server. It decides nothing: after a
    /// failover the next primary has its own clock, and this process may be paused before it uses the answer.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`](crate::Error::Unavailable) if the store does not answer within the operation timeout. [`Error::Invalid`](crate::Error::Invalid) if the handle was
    /// shut down, or the deployment or its privileges must be changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let record = seal.inspect("reports/nightly").await?.expect("the lease is in it");
    /// let age = seal.now().await?.since(record.holders[0].since);
    /// println!("held for {age:?}");
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn now(&self) -> Result<StoreTime> {
        let context = &self.handle.context;
        context.ensure_open()?;
        context.request(context.operation_deadline(), |deadline| context.store.now(deadline)).await
    }
}

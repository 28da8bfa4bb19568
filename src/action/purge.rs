//! The verb `purge`: removes the leases that have expired.

use std::time::Duration;

use tracing::debug;

use crate::{
    engine::{confirm::Proof, context::Context},
    handle::Mongoseal,
    record::{Filter, ListedLease, Outcome, Request},
    store::answers::Applied,
    types::{
        error::{Error, Result},
        key::Key,
    },
};

impl Mongoseal {
    /// Removes expired leases now. Otherwise they stay in their record until the next write that prunes. If a waiter is
    /// queued behind a lease that is removed, the key is handed over. If only waiters of a key have expired, they stay.
    ///
    /// It is never necessary. A live lease is never touched: the step that removes a lease checks its expiry again on
    /// the store's clock. Records stay, because their version protects the tokens. The store deletes a record after the
    /// retention.
    ///
    /// The result is what this call removed, in the order of keys. It has neither what other requests removed meanwhile,
    /// nor what expired behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]: the store did not answer a request in time. What was removed before is gone and is not
    /// returned. [`Error::Invalid`]: a privilege is missing. Documents that are not records are left as they are.
    ///
    /// Each key with expired leases takes a request of its own. The operation timeout bounds each request, not all of them
    /// together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the purge at the key that it has reached. What was removed is not returned.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let purged = seal.purge().await?;
    /// assert!(purged.is_empty() && lease.is_valid());
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn purge(&self) -> Result<Vec<ListedLease>> {
        let context = &self.handle.context;
        context.ensure_open()?;
        // The store's clock counts milliseconds: what lasts for less than one has expired.
        let free_in_less_than = Some(Duration::from_millis(1));
        let expired = Filter { with_expired: true, free_in_less_than, ..Filter::default() };
        let expired = context.list_all(&expired, || context.operation_deadline()).await?;
        let mut keys: Vec<Key> = expired.into_iter().map(|lease| lease.key).collect();
        keys.dedup();
        let mut purged = Vec::new();
        for key in keys {
            context.ensure_open()?;
            purged.extend(prune(context, &key).await?);
        }
        Ok(purged)
    }
}

/// Removes the expired holders of a key. If the answer is lost, the request is not sent again: the second answer would
/// say that no holder was removed.
async fn prune(context: &Context, key: &Key) -> Result<Vec<ListedLease>> {
    match context.store.apply(key, Request::Prune, context.attempt_deadline()).await {
        Ok(Proof::Answer(Applied { outcome: Outcome::Pruned { holders }, at: Some(at), .. })) => {
            Ok(holders.into_iter().map(|holder| ListedLease::of(key.clone(), holder, 0, None, at.now)).collect())
        }
        // The record was deleted meanwhile.
        Ok(_) => Ok(Vec::new()),
        Err(error @ Error::Corrupt { .. }) => {
            debug!(%error, "a purge skips a document that is not a record");
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

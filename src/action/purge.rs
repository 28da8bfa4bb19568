//! The verb `purge`: removes what has expired.

use tracing::debug;

use crate::{
    engine::context::Context,
    handle::Mongoseal,
    record::{ListedLease, Outcome, Request},
    store::answers::{Applied, Expired, ExpiredPage},
    types::{
        error::{Error, Result},
        key::Key,
    },
};

/// How many records one page lists.
const PAGE_SIZE: u32 = 1_000;

/// What a purge removed. [`Mongoseal::purge`] returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// The expired leases that were still in their records, by key.
    pub leases: Vec<ListedLease>,
    /// The keys whose idle records were deleted.
    pub records: Vec<Key>,
}

impl Mongoseal {
    /// Removes now what would be removed later: expired holders and waiters, which stay in their record until the next
    /// write that prunes, and records that have been idle for the retention, which a store deletes some time after
    /// that. If a waiter is queued behind a holder that is removed, the key is handed over.
    ///
    /// It is never necessary. A live lease is never touched: the step that removes a lease checks its expiry again on
    /// the store's clock. A record is never deleted before the retention allows it, because its version protects the
    /// tokens. A record that has just lost its holder is idle from then on, or from up to a ttl and a grace later.
    ///
    /// The result is what this call removed. It has neither what other requests removed meanwhile, nor what expired
    /// behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]: the store did not answer a request in time. What was removed before is gone and is not
    /// returned. [`Error::Invalid`]: a privilege is missing; on MongoDB the deletion of records needs `remove`.
    /// Documents that are not records are left as they are.
    ///
    /// Each record takes a request of its own. The operation timeout bounds each request, not all of them together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the purge at the record that it has reached. What was removed is not returned.
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
    /// assert!(purged.leases.is_empty() && lease.is_valid());
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn purge(&self) -> Result<Purged> {
        let context = &self.shared.context;
        let mut purged = Purged::default();
        let mut after = None;
        loop {
            context.ensure_open()?;
            let list = |deadline| context.store.list_expired(after.clone(), PAGE_SIZE, deadline);
            let ExpiredPage { expired: found, next } = context.request(context.operation_deadline(), list).await?;
            for expired in found {
                context.ensure_open()?;
                match expired {
                    Expired::Lapsed { key } => purged.leases.extend(prune(context, &key).await?),
                    Expired::Idle { key, version } => {
                        if context.store.delete_idle(&key, version, context.attempt_deadline()).await? {
                            purged.records.push(key);
                        }
                    }
                }
            }
            let Some(next) = next else { return Ok(purged) };
            after = Some(next);
        }
    }
}

/// Removes the expired holders of a key. If the answer is lost, the request is not sent again: the second answer would
/// say that no holder was removed.
async fn prune(context: &Context, key: &Key) -> Result<Vec<ListedLease>> {
    match context.store.apply(key, Request::Prune, context.attempt_deadline()).await {
        Ok(Applied { outcome: Outcome::Pruned { holders }, at: Some(at), .. }) => {
            Ok(holders.into_iter().map(|holder| ListedLease::of(key.clone(), holder, 0, at.now)).collect())
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

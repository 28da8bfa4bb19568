//! Clearing away what is over.

use tracing::debug;

use crate::{
    Error, Key, Mongoseal, Result,
    engine::{context::Context, retry},
    record::{ListedLease, Outcome, Request},
    store::{Applied, Expired, ExpiredPage},
};

/// How many records are looked for at once.
const MOST: u32 = 1_000;

/// What a purge removed.
///
/// Made by [`Mongoseal::purge`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// The leases that were still in their records although their time was over, by key.
    pub leases: Vec<ListedLease>,
    /// The keys whose idle records were deleted.
    pub records: Vec<Key>,
}

impl Mongoseal {
    /// Clears away now what would go by itself: holders and waiters whose time is over, which stay in
    /// their record until that is asked for the next time, and records that have been idle for the retention, which a
    /// store deletes when it comes to it. Where somebody waits behind a holder that went, the key is
    /// handed over.
    ///
    /// It is never needed. A live lease is never touched: whether it is over is looked at again, on the
    /// store's clock, in the step that removes it. A record is never deleted sooner than the retention
    /// allows, because its version protects the tokens; one that has just lost its holder is idle
    /// from then on, or from up to a ttl and grace later.
    ///
    /// What is given is what this call removed, and neither what others cleared away meanwhile nor what
    /// came to its end behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where the store did not answer a request in time: what went before is
    /// gone and is not told. [`Error::Invalid`] where a privilege is missing; MongoDB wants `remove` for
    /// the deletion of records. Records of foreign shape are left as they are.
    ///
    /// Each record takes a request of its own, and each request is bounded by the operation timeout, not
    /// all of them together.
    ///
    /// # Cancel safety
    ///
    /// Dropping it stops it at the record it has come to; what went is not told.
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
            let ExpiredPage { expired: found, next } = overdue(context, after).await?;
            for overdue in found {
                context.ensure_open()?;
                match overdue {
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

/// Looks for what can be cleared.
async fn overdue(context: &Context, after: Option<String>) -> Result<ExpiredPage> {
    retry::until_definite(context.operation_deadline(), context.settings.attempt, |deadline| {
        let after = after.clone();
        async move {
            context.prepare(deadline).await?;
            context.store.list_expired(after, MOST, deadline).await
        }
    })
    .await
}

/// Drops those holders of a key whose time is over. Not asked again where the answer is missing: the
/// second would be that nobody went.
async fn prune(context: &Context, key: &Key) -> Result<Vec<ListedLease>> {
    match context.store.apply(key, Request::Prune, context.attempt_deadline()).await {
        Ok(Applied { outcome: Outcome::Pruned { holders }, at: Some(at), .. }) => {
            Ok(holders.into_iter().map(|holder| ListedLease::of(key.clone(), holder, at.now)).collect())
        }
        // The record has gone meanwhile.
        Ok(_) => Ok(Vec::new()),
        Err(error @ Error::Corrupt { .. }) => {
            debug!(%error, "left by a purge");
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

//! The verb `revoke`: takes a key from its holders.

use std::{mem, sync::Arc};

use crate::{
    Error, FencingToken, IntoName, Key, Mongoseal, Owner, Result,
    engine::{context::Context, retry},
    record::{self, Holder, Outcome, Request},
    store::{BoxFuture, Snapshot},
};

/// The longest name and the longest reason, in bytes.
const MAX_TEXT_BYTES: usize = 1_024;

impl Mongoseal {
    /// Revokes all leases of a key: see [`Revoke`]. Nothing is sent until the returned builder is awaited.
    pub fn revoke<K>(&self, key: K) -> Revoke
    where
        K: IntoName<Key>,
    {
        Revoke::new(&self.shared.context, key.into_name())
    }
}

/// Revokes all leases that hold a key at that moment. Awaiting it returns them. If waiters are queued, the first is
/// handed the key.
///
/// [`Mongoseal::revoke`](crate::Mongoseal::revoke) makes it. For operators: the holder does not know of it in advance.
/// The change stream tells the holder at once that its lease is lost. If there is no change stream, its next refresh
/// does, at most a third of its ttl later; until then its work goes on. The next lease has a larger token, so a storage
/// that checks tokens refuses the old one from its first write on.
///
/// The record keeps the names and the reasons of the last eight revocations.
///
/// # Errors
///
/// - [`Error::Unavailable`]: the store did not confirm the revocation within the operation timeout. It may have been
///   applied. Retry.
/// - [`Error::Invalid`], [`Error::Corrupt`]: a retry fails in the same way.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer. The revocation may still be applied.
///
/// # Examples
///
/// ```
/// use mongoseal::{LossCause, Mongoseal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire("reports/nightly").await?;
///
/// let revoked = seal.revoke("reports/nightly").by("alice").reason("stuck since Monday").await?;
/// assert_eq!(revoked[0].token, lease.token());
/// assert!(matches!(lease.cancelled().await, LossCause::Revoked { by, .. } if by == "alice"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a revocation does nothing until it is awaited"]
pub struct Revoke {
    context: Arc<Context>,
    key: Result<Key>,
    by: String,
    reason: String,
}

/// A lease that was revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revoked {
    /// The owner of the lease.
    pub owner: Owner,
    /// The token of the lease.
    pub token: FencingToken,
}

impl Revoke {
    pub(crate) fn new(context: &Arc<Context>, key: Result<Key>) -> Self {
        let by = context.settings.owner.as_str().into();
        Self { context: Arc::clone(context), key, by, reason: String::new() }
    }

    /// Sets the name of the one that revokes, for people. Default: the handle's owner.
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = name.into();
        self
    }

    /// Sets the reason, for people. Default: none.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    async fn run(self) -> Result<Vec<Revoked>> {
        let Self { context, key, by, reason } = self;
        let key = key?;
        for (what, text) in [("name", &by), ("reason", &reason)] {
            if text.len() > MAX_TEXT_BYTES {
                return Err(Error::invalid(format!(
                    "the {what} of a revocation has {} bytes, more than {MAX_TEXT_BYTES}: shorten it, because it stays in the record",
                    text.len()
                )));
            }
        }
        context.ensure_open()?;
        let (until, longest) = (context.operation_deadline(), context.settings.attempt);
        let Some(Snapshot { record, at }) = context.read_record(&key, until).await? else { return Ok(Vec::new()) };
        let held: Vec<Holder> = record.holders.into_iter().filter(|holder| holder.expires_at > at.now).collect();
        if held.is_empty() {
            return Ok(Vec::new());
        }
        // Only the leases that were read, so that a repeated request does not revoke the next ones.
        let request = Request::Revoke(record::Revoke { by, reason, upto: record.version });
        let mut was_sent = false;
        let revoked = retry::until_definite(until, longest, |deadline| {
            let was_sent = mem::replace(&mut was_sent, true);
            let applied = context.store.apply(&key, request.clone(), deadline);
            async move { Ok((applied.await?.outcome, was_sent)) }
        });
        let holders = match revoked.await? {
            // An earlier send, whose answer was lost, revoked them.
            (Outcome::Revoked { holders }, true) if holders.is_empty() => held,
            (Outcome::Revoked { holders }, _) => holders,
            // The record was deleted meanwhile, unless the read finds that it is not a record.
            (Outcome::Absent, _) => {
                context.read_record(&key, until).await?;
                Vec::new()
            }
            (outcome, _) => {
                return Err(Error::invalid(format!(
                    "the store answered a revocation with {outcome:?}: report this bug of the store"
                )));
            }
        };
        Ok(holders.into_iter().map(|holder| Revoked { owner: holder.terms.owner, token: holder.version }).collect())
    }
}

impl IntoFuture for Revoke {
    type Output = Result<Vec<Revoked>>;
    type IntoFuture = BoxFuture<Result<Vec<Revoked>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

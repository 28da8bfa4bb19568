//! The verb `revoke`: takes a key from its holders.

use std::{mem, sync::Arc};

use crate::{
    engine::{
        confirm::{Proof, stale_error},
        context::Context,
        retry,
    },
    handle::{Async, Mongoseal, awaitable},
    record::{self, BatchRequest, Holder, HolderInfo, Outcome, PastRevocation, Request},
    store::answers::{Applied, Snapshot},
    types::{
        deadline::Deadline,
        error::{Error, Result},
        into_name::IntoName,
        key::Key,
        token::FencingToken,
    },
};

/// The longest name and the longest reason, in bytes.
const MAX_TEXT_BYTES: usize = 1_024;

impl Mongoseal {
    /// Revokes the leases of a key: see [`Revoke`]. Nothing is sent until the returned builder is awaited.
    pub fn revoke(&self, key: impl IntoName<Key>) -> Revoke {
        Revoke::new(self, key, Async)
    }
}

/// Revokes the leases that hold a key at that moment: all of them, or those that [`token`](Self::token) and
/// [`up_to`](Self::up_to) select. Awaiting it returns them, as they were before. If waiters are queued, the first is handed
/// the key.
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
///   applied. Retry, with [`token`](Self::token) or [`up_to`](Self::up_to): without them, the retry can revoke the lease
///   that was granted next.
/// - [`Error::Invalid`], [`Error::Corrupt`]: a retry fails in the same way.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer. The revocation may still be applied.
///
/// # Examples
///
/// ```
/// use mongoseal::{LeaseState, LossCause, Mongoseal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire("reports/nightly").await?;
///
/// let revoked = seal.revoke("reports/nightly").by("alice").reason("stuck since Monday").await?;
/// assert_eq!(revoked[0].token, lease.token());
/// assert!(matches!(lease.cancelled().await, LeaseState::Lost { cause: LossCause::Revoked { by, .. } } if by == "alice"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a revocation does nothing until it is awaited or run"]
pub struct Revoke<M = Async> {
    context: Arc<Context>,
    key: Result<Key>,
    by: String,
    reason: String,
    token: Option<FencingToken>,
    up_to: Option<FencingToken>,
    pub(crate) mode: M,
}

impl<M> Revoke<M> {
    pub(crate) fn new(seal: &Mongoseal, key: impl IntoName<Key>, mode: M) -> Self {
        let (context, by) = (Arc::clone(&seal.handle.context), seal.owner().as_str().into());
        Self { context, key: key.into_name(), by, reason: String::new(), token: None, up_to: None, mode }
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

    /// Revokes only the lease with this token, and leaves the others of the key. Default: all leases.
    ///
    /// A token names one lease of its key for ever, so a repeated revocation ends no other lease.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let stuck = seal.acquire("gpu").shared().await?;
    /// let other = seal.acquire("gpu").shared().await?;
    ///
    /// let revoked = seal.revoke("gpu").token(stuck.token()).reason("stuck").await?;
    /// assert_eq!(revoked.len(), 1);
    /// stuck.cancelled().await;
    /// other.verify().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Revokes only leases whose token is at most this. Default: the version of the record when the revocation reads
    /// it.
    ///
    /// An operator who has seen a record passes its [`version`](crate::inspect::Inspection::version). A lease that was granted
    /// after that has a larger token, and is left.
    pub fn up_to(mut self, token: FencingToken) -> Self {
        self.up_to = Some(token);
        self
    }

    pub(crate) async fn send(self) -> Result<Vec<HolderInfo>> {
        let Self { context, key, by, reason, token, up_to, mode: _mode } = self;
        let key = key?;
        for (option, text) in [("by", &by), ("reason", &reason)] {
            if text.len() > MAX_TEXT_BYTES {
                return Err(Error::invalid(format!(
                    "`{option}` has {} bytes, more than {MAX_TEXT_BYTES}: shorten it, because it stays in the record",
                    text.len()
                )));
            }
        }
        context.ensure_open()?;
        let until = context.operation_deadline();
        let Some(Snapshot { record, at }) = context.read_record(&key, until).await? else { return Ok(Vec::new()) };
        // Only the leases that were read, so that a repeated request does not revoke the next ones.
        let upto = up_to.map_or(record.version, |bound| bound.min(record.version));
        let is_meant = |holder: &Holder| holder.version <= upto && token.is_none_or(|token| holder.version == token);
        let is_alive = |holder: &Holder| holder.expires_at > at.now;
        let held: Vec<Holder> =
            record.holders.into_iter().filter(|holder| is_meant(holder) && is_alive(holder)).collect();
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let revoke = record::Revoke { by, reason, upto };
        let holders = revoke_held(&context, &key, token, &revoke, &held, until).await?;
        Ok(holders.into_iter().map(|holder| HolderInfo::of(holder, at.now)).collect())
    }
}

/// Revokes the lease with the token and no other, or without one the leases up to a token. `held` are their holders as far as
/// the caller knows. Returns those that it revoked.
async fn revoke_held(
    context: &Context,
    key: &Key,
    token: Option<FencingToken>,
    revoke: &record::Revoke,
    held: &[Holder],
    until: Deadline,
) -> Result<Vec<Holder>> {
    let one = &token.map(|token| vec![(key.clone(), vec![token])]);
    let mut was_sent = false;
    let revoked = retry::until_definite(until, context.settings.attempt, |deadline| {
        let was_sent = mem::replace(&mut was_sent, true);
        async move {
            let read = if let Some(lease) = one {
                let request = BatchRequest::Revoke { by: revoke.by.clone(), reason: revoke.reason.clone() };
                if context.store.apply_batch(lease, &request, deadline).await? {
                    return Ok(held.to_vec());
                }
                context.store.read_held(key, deadline).await?
            } else {
                match context.store.apply(key, Request::Revoke(revoke.clone()), deadline).await? {
                    Proof::Answer(Applied { outcome: Outcome::Revoked { holders }, .. }) => return Ok(holders),
                    Proof::Answer(answer) => return Err(answer.outcome.unexpected("a revocation")),
                    Proof::Record(read) => read,
                }
            };
            revoked_before(held, read, revoke, was_sent)
        }
    });
    revoked.await
}

/// Those of these holders that an earlier send, whose answer was lost, has revoked, by a linearizable read. If one of them holds
/// the key, the answer that it does not was stale.
fn revoked_before(
    held: &[Holder],
    read: Option<Snapshot>,
    revoke: &record::Revoke,
    was_sent: bool,
) -> Result<Vec<Holder>> {
    let Some(Snapshot { record, at }) = read else { return Ok(Vec::new()) };
    let is_live = |holder: &Holder| holder.expires_at > at.now;
    let is_held = |holder: &Holder| record.holders.iter().any(|live| live.version == holder.version && is_live(live));
    if held.iter().any(is_held) {
        return Err(stale_error());
    }
    let is_this = |past: &&PastRevocation| was_sent && past.by == revoke.by && past.reason == revoke.reason;
    let tokens: Vec<_> = record.history.iter().filter(is_this).flat_map(|past| past.tokens.clone()).collect();
    Ok(held.iter().filter(|holder| tokens.contains(&holder.version)).cloned().collect())
}

awaitable!(Revoke => Vec<HolderInfo>);

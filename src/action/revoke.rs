//! Taking a key away from whoever holds it.

use std::{mem, sync::Arc};

use crate::{
    Error, FencingToken, IntoName, Key, Mongoseal, Owner, Result,
    engine::{context::Context, retry},
    record::{self, Holder, Outcome, Request},
    store::{BoxFuture, Snapshot},
};

/// How long the name and the reason may be, in bytes.
const LONGEST: usize = 1_024;

impl Mongoseal {
    /// Takes a key away from whoever holds it: see [`Revoke`]. Nothing is sent until the returned
    /// builder is awaited.
    pub fn revoke<K>(&self, key: K) -> Revoke
    where
        K: IntoName<Key>,
    {
        Revoke::new(&self.shared.context, key.into_name())
    }
}

/// Takes a key away from all who hold it at that moment; awaiting it says from whom. The first who
/// waits for the key, if somebody does, is handed it.
///
/// Made by [`Mongoseal::revoke`](crate::Mongoseal::revoke). For operators: the holder did nothing
/// wrong as far as it knows. It learns that it lost the lease at once, by the change stream, or where
/// there is none with its next refresh, a third of its ttl later at most; and until then it goes on.
/// Whoever comes next has a larger token, so what the storage refuses by token it refuses from now on.
///
/// Name and reason stay in the record, with those of the last eight revocations.
///
/// # Errors
///
/// [`Error::Unavailable`]: nobody confirmed within the operation timeout; the revocation may have
/// been made, and can be asked for again. [`Error::Invalid`], [`Error::Corrupt`]: asking again gives
/// the same.
///
/// # Cancel safety
///
/// Dropping it abandons the answer; the revocation may still be made.
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
#[must_use = "a revocation is not asked for until it is awaited"]
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
    /// Who held the key.
    pub owner: Owner,
    /// With which token.
    pub token: FencingToken,
}

impl Revoke {
    pub(crate) fn new(context: &Arc<Context>, key: Result<Key>) -> Self {
        let by = context.settings.owner.as_str().into();
        Self { context: Arc::clone(context), key, by, reason: String::new() }
    }

    /// Who revokes, for people. Default: the handle's owner.
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = name.into();
        self
    }

    /// Why, for people. Default: nothing.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    async fn run(self) -> Result<Vec<Revoked>> {
        let Self { context, key, by, reason } = self;
        let key = key?;
        for (what, text) in [("name", &by), ("reason", &reason)] {
            if text.len() > LONGEST {
                return Err(Error::invalid(format!(
                    "the {what} of a revocation has {} bytes and may have {LONGEST}: it stays in the record, so keep it short",
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
        // Only those who were there, so that asking twice does not hit whoever comes after them.
        let request = Request::Revoke(record::Revoke { by, reason, upto: record.version });
        let mut asked_before = false;
        let revoked = retry::until_definite(until, longest, |deadline| {
            let asked_before = mem::replace(&mut asked_before, true);
            let applied = context.store.apply(&key, request.clone(), deadline);
            async move { Ok((applied.await?.outcome, asked_before)) }
        });
        let holders = match revoked.await? {
            // The request before, whose answer was lost, revoked them.
            (Outcome::Revoked { holders }, true) if holders.is_empty() => held,
            (Outcome::Revoked { holders }, _) => holders,
            // The record has gone meanwhile; unless the read says that it can no longer be read.
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

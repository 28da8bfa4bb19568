//! The verb `raise`: raises the version of a key, so that its next leases have larger tokens than its fenced documents.

use std::time::Duration;

use crate::{
    engine::{context::Context, retry},
    handle::Mongoseal,
    record::{self, Outcome, Record, Request, StoreClock},
    store::answers::Applied,
    types::{
        deadline::Deadline,
        error::{Error, Result},
        into_name::IntoName,
        key::Key,
        token::{FencingToken, HybridTime},
    },
};

/// How far a token may be ahead of the store's clock. A MongoDB server refuses a cluster time that is further ahead of
/// its wall clock, unless [`maxAcceptableLogicalClockDriftSecs`] was changed. So no set has issued a larger token.
///
/// [`maxAcceptableLogicalClockDriftSecs`]: https://www.mongodb.com/docs/manual/reference/parameters/#mongodb-parameter-param.maxAcceptableLogicalClockDriftSecs
const MAX_AHEAD: Duration = Duration::from_secs(31_536_000);

impl Mongoseal {
    /// Raises the version of a key to a token, so that each later lease has a larger one. Returns the version after
    /// that: `to`, or a larger token if the version was larger.
    ///
    /// For operators. The store's clock numbers tokens. If a replica set was restored elsewhere from a backup, or if
    /// its hybrid clock once ran ahead, the next tokens can be smaller than those of fenced documents. The writers are
    /// then refused with [`Error::Fenced`] until the clock has passed these tokens. To end that, pass the largest token
    /// of the documents that leases of the key protect. `mongoseal fences` prints it.
    ///
    /// Holders and waiters stay. A holder keeps its token, so a holder that is refused must release the key and acquire
    /// it again. If the key has no record, one is created, and kept until the clock has passed the token.
    ///
    /// After a raise, [`LossCause::TakenOver`](crate::LossCause::TakenOver) can name the raised version if a lease
    /// expired and the key was not granted again.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the token is more than 365 days ahead of the store's clock, the key is not valid, or the
    ///   deployment or its privileges must be changed. The version is unchanged. A key without a record may then have
    ///   one, of version 1, which is deleted like that of any idle key.
    /// - [`Error::Corrupt`]: the document is not a record.
    /// - [`Error::Unavailable`]: the store did not confirm the raise within the operation timeout. The version may have
    ///   been raised. Retry; a second raise does no harm.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. The version may still be raised.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::{FencingToken, Mongoseal};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// # let carried = FencingToken::new(7_200 << 20)?;
    /// // `carried` is the largest token of the documents.
    /// let version = seal.raise_token_floor("reports/nightly", carried).await?;
    /// assert!(version >= carried);
    /// let lease = seal.acquire("reports/nightly").await?;
    /// assert!(lease.token() > carried);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn raise_token_floor<K>(&self, key: K, to: FencingToken) -> Result<FencingToken>
    where
        K: IntoName<Key>,
    {
        let key = key.into_name()?;
        if to.get() > Record::MAX_VERSION {
            return Err(Error::invalid(format!(
                "a key whose version is {to} can issue no further token: pass the largest token that the documents carry"
            )));
        }
        let context = &self.shared.context;
        context.ensure_open()?;
        let until = context.operation_deadline();
        // Raises nothing, and returns the store's clock. A read does not return it if the key has no record.
        let (_, at) = raise(context, &key, FencingToken::MIN, until).await?;
        check(to, at.tick)?;
        let (version, _) = raise(context, &key, to, until).await?;
        Ok(version)
    }
}

/// Refuses a token that no store has issued: the store's clock would not catch up with it.
fn check(to: FencingToken, now: HybridTime) -> Result<()> {
    let ahead = Duration::from_secs(HybridTime::from(to).seconds.saturating_sub(now.seconds));
    if ahead <= MAX_AHEAD {
        return Ok(());
    }
    let days = ahead.as_secs().div_euclid(24 * 3_600);
    Err(Error::invalid(format!(
        "the token {to} is {days}d ahead of the store's clock, and no server has issued it: pass the largest token that the documents carry, at most 365d ahead"
    )))
}

/// Raises the version of a key. Returns the version after that, and the store's clock.
async fn raise(context: &Context, key: &Key, to: FencingToken, until: Deadline) -> Result<(FencingToken, StoreClock)> {
    let applied = retry::until_definite(until, context.settings.attempt, |deadline| async move {
        context.prepare(deadline).await?;
        let request = Request::Raise(record::Raise { to });
        context.store.apply(key, request, deadline).await
    });
    match applied.await? {
        Applied { outcome: Outcome::Raised { version }, at: Some(at), .. } if version >= to => Ok((version, at)),
        Applied { outcome, .. } => Err(outcome.unexpected("a raise")),
    }
}

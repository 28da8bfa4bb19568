//! The verb `raise`: raises the version of a key, so that its next leases have larger tokens than its fenced documents.

use std::time::Duration;

use crate::{
    handle::Mongoseal,
    record::{self, Outcome, Record, Request, StoreTime},
    types::{
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
    ///   deployment or its privileges must be changed. The version is unchanged.
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
    pub async fn raise_token_floor(&self, key: impl IntoName<Key>, to: FencingToken) -> Result<FencingToken> {
        let key = key.into_name()?;
        if to.get() > Record::MAX_VERSION {
            return Err(Error::invalid(format!(
                "a key whose version is {to} can issue no further token: pass the largest token that the documents carry"
            )));
        }
        let context = &self.handle.context;
        context.ensure_open()?;
        let until = context.operation_deadline();
        check(to, context.request(until, |deadline| context.store.now(deadline)).await?)?;
        let raise = |deadline| context.store.apply(&key, Request::Raise(record::Raise { to }), deadline);
        match context.request(until, raise).await?.answer("a raise")?.outcome {
            Outcome::Raised { version } if version >= to => Ok(version),
            outcome => Err(outcome.unexpected("a raise")),
        }
    }
}

/// Refuses a token that no store has issued: the store's clock would not catch up with it.
fn check(to: FencingToken, now: StoreTime) -> Result<()> {
    let now = u64::try_from(now.millis()).unwrap_or_default().div_euclid(1_000);
    let ahead = Duration::from_secs(HybridTime::from(to).seconds.saturating_sub(now));
    if ahead <= MAX_AHEAD {
        return Ok(());
    }
    let days = ahead.as_secs().div_euclid(24 * 3_600);
    Err(Error::invalid(format!(
        "the token {to} is {days} d ahead of the store's clock, and no server has issued it: pass the largest token that the documents carry, at most 365 d ahead"
    )))
}

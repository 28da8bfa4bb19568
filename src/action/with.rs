//! The verb `with`: work in the scope of a lease, or of several.

use crate::{
    action::acquire::Acquire,
    handle::Async,
    lease::{Granted, work::run_under},
    types::error::{Error, Result},
};

/// Of one key, of the first free one of several, and of all of several.
impl<K, L> Acquire<Async, K>
where
    Self: IntoFuture<Output = Result<L>>,
    L: Granted,
{
    /// Acquires the key, runs `work` while the lease is held, and releases it. Returns the value of the work.
    ///
    /// If the lease is lost, the work is dropped. The lease is released when the work has ended, by its value, an error
    /// in it or a panic, and when this future is dropped. If the acquire is of several keys, the work gets the
    /// [set](crate::LeaseSet) of their leases, is dropped if one of them is lost, and all are released.
    ///
    /// # Errors
    ///
    /// As the acquire. [`Error::Lost`] if the lease was lost before the work had ended, even if that is found only by
    /// the release: then part of the work ran without the lease. A release that fails is not an error of the work: the
    /// ttl ends the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and releases the key in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let token = seal.acquire("reports/nightly").with(async |lease| lease.token()).await?;
    /// assert!(seal.acquire("reports/nightly").await?.token() > token);
    ///
    /// let tokens = seal.acquire_all(["accounts/3", "accounts/7"]).with(async |set| set.tokens().count()).await?;
    /// assert_eq!(tokens, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(self, work: impl AsyncFnOnce(&L) -> T) -> Result<T> {
        self.try_with(async |held| Ok(work(held).await)).await
    }

    /// Acquires the key, runs `work` that returns a `Result` while the lease is held, and releases it, as
    /// [`with`](Self::with) does. Returns the `Result` of the work.
    ///
    /// # Errors
    ///
    /// The error of the work, also if the release then finds that the lease was lost. Those of [`with`](Self::with).
    ///
    /// # Cancel safety
    ///
    /// As [`with`](Self::with).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::{Error, Mongoseal};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let failed = seal.acquire("import").try_with(async |_| Err::<(), _>(Error::invalid("the file is empty"))).await;
    /// assert!(failed.unwrap_err().to_string().contains("the file is empty"));
    /// assert!(seal.acquire("import").await.is_ok(), "the key is free");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_with<T, E>(self, work: impl AsyncFnOnce(&L) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let held = self.await?;
        let done = run_under(&held, work(&held)).await?;
        let released = held.release_after_work().await;
        // An error of the work says more than that the lease was lost meanwhile.
        let value = done?;
        released?;
        Ok(value)
    }
}

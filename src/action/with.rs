//! The verb `with`: work in the scope of a lease.

use crate::{
    action::{
        acquire::Acquire,
        acquire_all::{AcquireAll, LeaseSet},
    },
    handle::Async,
    lease::Lease,
    types::error::{Error, Result},
};

/// Of one key, and of the first free one of several.
impl<K> Acquire<Async, K>
where
    Self: IntoFuture<Output = Result<Lease>>,
{
    /// Acquires the key, runs `work` while the lease is held, and releases it. Returns the value of the work.
    ///
    /// If the lease is lost, the work is dropped. The lease is released when the work has ended, by its value, an error
    /// in it or a panic, and when this future is dropped.
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
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T> {
        self.try_with(async |lease| Ok(work(lease).await)).await
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
    pub async fn try_with<T, E>(self, work: impl AsyncFnOnce(&Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let lease = self.await?;
        let done = lease.run(work(&lease)).await?;
        let released = lease.end_work().await;
        // An error of the work says more than that the lease was lost meanwhile.
        let value = done?;
        released?;
        Ok(value)
    }
}

impl AcquireAll {
    /// Acquires all keys, runs `work` while all leases are held, and releases them. Returns the value of the work. It is
    /// [`Acquire::with`] for several keys.
    ///
    /// # Errors
    ///
    /// As the acquire. [`Error::Lost`] if one of the leases was lost before the work had ended, even if that is found only
    /// by the release. A release that fails is not an error of the work: the ttl ends the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and releases all keys in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let tokens = seal.acquire_all(["accounts/3", "accounts/7"]).with(async |set| set.tokens().count()).await?;
    /// assert_eq!(tokens, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(self, work: impl AsyncFnOnce(&LeaseSet) -> T) -> Result<T> {
        self.try_with(async |leases| Ok(work(leases).await)).await
    }

    /// Acquires all keys, runs `work` that returns a `Result` while all leases are held, and releases them. It is
    /// [`Acquire::try_with`] for several keys.
    ///
    /// # Errors
    ///
    /// The error of the work, also if the release then finds that a lease was lost. Those of [`with`](Self::with).
    ///
    /// # Cancel safety
    ///
    /// As [`with`](Self::with).
    pub async fn try_with<T, E>(self, work: impl AsyncFnOnce(&LeaseSet) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let leases = self.await?;
        let done = leases.run(work(&leases)).await?;
        let released = leases.end_work().await;
        let value = done?;
        released?;
        Ok(value)
    }
}

impl LeaseSet {
    /// Releases all leases after their work has ended. Returns an error if one of them was lost before.
    pub(crate) async fn end_work(&self) -> Result<()> {
        match self.end_by_release().await {
            Ok(released) => {
                for ((_key, outcome), lease) in released.into_iter().zip(self.iter()) {
                    lease.ensure_held_to_release(outcome)?;
                }
            }
            // The ttls end the leases, and each release has recorded its error.
            Err(_recorded) => {}
        }
        Ok(())
    }
}

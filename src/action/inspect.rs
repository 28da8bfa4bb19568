//! Looking at one record.

use crate::{Error, IntoName, Key, Mongoseal, Result, record::Inspection, store::Snapshot};

impl Mongoseal {
    /// Looks at the record of a key, by a linearizable read: who holds it and who waits for it, at some
    /// time between the call and its answer. `None` where there is no record.
    ///
    /// What it says may be over the moment after: it is for people, and for choosing what to do next.
    /// Lease ids are secrets and are not in it.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where nobody answered within the operation timeout,
    /// [`Error::Corrupt`] where the document is not a record, [`Error::Invalid`] for a key that is none
    /// or where the deployment or its privileges must be changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let record = seal.inspect("reports/nightly").await?.expect("somebody acquired it");
    /// for holding in &record.holders {
    ///     println!("{} for another {:?}", holding.owner, holding.remaining);
    ///     assert_eq!(holding.token, lease.token());
    /// }
    /// assert!(seal.inspect("never/asked-for").await?.is_none());
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect<K>(&self, key: K) -> Result<Option<Inspection>, Error>
    where
        K: IntoName<Key>,
    {
        let key = key.into_name()?;
        let context = &self.shared.context;
        context.ensure_open()?;
        let snapshot = context.read_record(&key, context.operation_deadline()).await?;
        Ok(snapshot.map(|Snapshot { record, at }| Inspection::of(key, *record, at.now)))
    }
}

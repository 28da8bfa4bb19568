//! The verbs `inspect` and `runs`: the record of one key, and the history of a schedule.

use crate::{
    handle::Mongoseal,
    record::{Inspection, PastRun},
    store::answers::Snapshot,
    types::{
        error::{Error, Result},
        into_name::IntoName,
        key::Key,
    },
};

impl Mongoseal {
    /// Reads the record of a key by a linearizable read: its holders and waiters, at some time between the call and its
    /// answer. Returns `None` if there is no record.
    ///
    /// The answer may be outdated a moment later: it is for people, and for choosing what to do next. Lease ids are
    /// secrets and are not in it.
    ///
    /// # Errors
    ///
    /// - [`Error::Unavailable`]: the store did not answer within the operation timeout.
    /// - [`Error::Corrupt`]: the document is not a record.
    /// - [`Error::Invalid`]: the key is not valid, or the deployment or its privileges must be changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let record = seal.inspect("reports/nightly").await?.expect("the key was acquired");
    /// for holding in &record.holders {
    ///     println!("{} for another {:?}", holding.owner, holding.free_in);
    ///     assert_eq!(holding.token, lease.token());
    /// }
    /// assert!(seal.inspect("never/asked-for").await?.is_none());
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, key: impl IntoName<Key>) -> Result<Option<Inspection>, Error> {
        let (key, snapshot) = self.read(key).await?;
        Ok(snapshot.map(|Snapshot { record, at }| Inspection::of(key, *record, at.now)))
    }

    /// Reads the history of a schedule by a linearizable read: its last 32 completed runs, oldest first. It is empty if
    /// the key has no record or is not that of a schedule.
    ///
    /// A run whose tick was not completed is not in it: its work failed, or its lease was lost. It is kept as long as the
    /// last completed tick: see [`RunOnce::keep_for`](crate::action::RunOnce::keep_for).
    ///
    /// # Errors
    ///
    /// Those of [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer and changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::{Mongoseal, Tick, TickLease};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let work = async |tick: &TickLease| -> mongoseal::Result<()> {
    ///     tick.note("312 rows");
    ///     Ok(())
    /// };
    /// seal.once("batches", Tick::number(7)).run(work).await?;
    /// for run in seal.runs("batches").await? {
    ///     println!("{} by {} took {:?}: {}", run.tick, run.by, run.at.since(run.since), run.note);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn runs(&self, key: impl IntoName<Key>) -> Result<Vec<PastRun>, Error> {
        let (_key, snapshot) = self.read(key).await?;
        Ok(snapshot.map(|snapshot| snapshot.record.runs).unwrap_or_default())
    }

    /// Reads the record of a key.
    pub(crate) async fn read(&self, key: impl IntoName<Key>) -> Result<(Key, Option<Snapshot>)> {
        let (key, context) = (key.into_name()?, &self.handle.context);
        context.ensure_open()?;
        let snapshot = context.read_record(&key, context.operation_deadline()).await?;
        Ok((key, snapshot))
    }
}

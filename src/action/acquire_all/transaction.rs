//! Transactions that commit only while all leases of a set are held.

use mongodb::ClientSession;

use crate::{
    action::acquire_all::LeaseSet,
    fence::WorkError,
    lease::transaction::run_with_leases,
    types::error::{Error, Result},
};

impl LeaseSet {
    /// Runs `work` in a transaction that commits only while all leases of the set are held, as
    /// [`Lease::transaction`](crate::Lease::transaction) does for one lease.
    ///
    /// Before the commit the transaction writes the record of each lease, one after another in the order of the keys, on the
    /// condition that the lease is held. If one of the leases is lost, nothing is committed.
    ///
    /// Transactions never wait for each other, so they cannot deadlock: MongoDB aborts the transaction that
    /// writes a record second, and it runs again. Because of the order, the first writer of the first common record goes on.
    ///
    /// # Caveats
    ///
    /// Those of [`Lease::transaction`](crate::Lease::transaction). Each record takes a round trip, and a refresh of any of the
    /// leases makes the transaction start over: keep sets small, and transactions short.
    ///
    /// # Errors
    ///
    /// As of [`Lease::transaction`](crate::Lease::transaction), with [`Error::Lost`] for the first lease that was found lost.
    ///
    /// # Cancel safety
    ///
    /// As of [`Lease::transaction`](crate::Lease::transaction).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// use mongoseal::{Mongoseal, mongodb::bson::{Document, doc}};
    ///
    /// let seal = Mongoseal::connect("mongodb://db0,db1,db2/bank?replicaSet=rs0").await?;
    /// let both = seal.acquire_all(["accounts/3", "accounts/7"]).await?;
    /// both.transaction(async |session| -> mongoseal::Result<()> {
    ///     let accounts = session.client().database("bank").collection::<Document>("accounts");
    ///     for (id, amount) in [(3, -100), (7, 100)] {
    ///         let change = doc! { "$inc": { "balance": amount } };
    ///         accounts.update_one(doc! { "_id": id }, change).session(&mut *session).await?;
    ///     }
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<R, E, F, Kind>(&self, work: F) -> Result<R, E>
    where
        F: AsyncFnMut(&mut ClientSession) -> Result<R, E>,
        E: From<Error> + WorkError<Kind>,
    {
        run_with_leases(&self.leases, work).await
    }
}

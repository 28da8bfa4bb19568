//! Leases at a fence: as the writer of a document, and in a transaction with its record.

use std::{any::Any, slice};

use mongodb::ClientSession;

use crate::{
    Error, Lease, Result,
    fence::{
        FencedWriter, WorkError,
        mongo::{
            Alive, BoxFuture,
            transaction::{LeaseProbe, TransactionLease, TransactionLeases, run},
        },
    },
    store::MongoStore,
};

impl Lease {
    /// Runs `work` in a transaction that commits only while this lease holds: any reads and writes, of any
    /// collections of the same client, without a token in their documents.
    ///
    /// Before the commit the transaction writes the record of the lease, on the condition that the lease
    /// is in it and not over by the server's clock. Whoever takes the key away writes that record, too, so
    /// the two conflict: either the transaction commits before, or it does not commit. It is confirmed by
    /// a majority, and reads what a majority has, whatever the client says.
    ///
    /// The work gets a session, which it passes to every call that is to be part of the transaction; of a
    /// handle that opened its own client, [`ClientSession::client`] gives the collections. It neither
    /// commits nor aborts: it returns, or returns an error, any that can be made of this crate's: a type of your own,
    /// `Box<dyn Error + Send + Sync>`, `anyhow::Error` ([`WorkError`]). It may run several times, where MongoDB says that the
    /// transaction can be tried again, until the operation timeout is over. It says so by an error of the driver, which is
    /// found in the error of the work and in all its [sources](std::error::Error::source). An error of a call in it must end
    /// it: return that error. Work that hides one goes on in a transaction that MongoDB has aborted. It is run once more, and
    /// then refused.
    ///
    /// # Caveats
    ///
    /// From its first command to its end a transaction must take less time than lies between two writes of
    /// the record: else each refresh makes it start over. Those are a third of the ttl, 10 seconds by
    /// default, and shorter where others share the key, or come to wait for it. The lease itself is not
    /// held up; where its record was in the way, it is refreshed before the next try. MongoDB ends
    /// transactions after 60 seconds, and until then keeps the record of one whose process died just
    /// before its commit.
    ///
    /// Where the future of this is to be spawned, the work must own what it uses: `async move`, and clones.
    /// Of work that borrows, compilers cannot say yet that it may go to another thread: «implementation of
    /// `Send` is not general enough».
    ///
    /// # Errors
    ///
    /// Those of the work. [`Error::Lost`] where the lease has ended: nothing is committed.
    /// [`Error::Unavailable`] where nobody confirmed within the operation timeout, or other writes were in
    /// the way all that time: the transaction may have been committed or not. [`Error::Corrupt`] where
    /// somebody wrote over the record, and [`Error::Invalid`] in memory, where the work hides an error of a
    /// call, or where MongoDB refuses a transaction.
    ///
    /// # Cancel safety
    ///
    /// Dropping it aborts the transaction, unless its commit is under way: that may still be made. What is
    /// dropped of the work is dropped half-way, calls of the driver among it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// use mongoseal::{Mongoseal, mongodb::bson::{Document, doc}};
    ///
    /// let seal = Mongoseal::connect("mongodb://db0,db1,db2/shop?replicaSet=rs0").await?;
    /// let lease = seal.acquire("orders/4712").await?;
    /// lease
    ///     .transaction(async |session| -> mongoseal::Result<()> {
    ///         let shop = session.client().database("shop");
    ///         let (orders, stock) = (shop.collection::<Document>("orders"), shop.collection::<Document>("stock"));
    ///         let sold = doc! { "$set": { "state": "sold" } };
    ///         orders.update_one(doc! { "_id": 4712 }, sold).session(&mut *session).await?;
    ///         stock.update_one(doc! { "_id": "pen" }, doc! { "$inc": { "n": -1 } }).session(session).await?;
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<R, E, F, Kind>(&self, work: F) -> Result<R, E>
    where
        F: AsyncFnMut(&mut ClientSession) -> Result<R, E>,
        E: From<Error> + WorkError<Kind>,
    {
        run_with_leases(slice::from_ref(self), self, work).await
    }
}

/// Runs `work` in a transaction that commits only while these leases of one handle hold.
pub(crate) async fn run_with_leases<R, E, F, Kind>(leases: &[Lease], probe: &dyn LeaseProbe, work: F) -> Result<R, E>
where
    F: AsyncFnMut(&mut ClientSession) -> Result<R, E>,
    E: From<Error> + WorkError<Kind>,
{
    probe.check()?;
    run(transaction_leases(leases)?, probe, work).await
}

fn transaction_leases(leases: &[Lease]) -> Result<TransactionLeases> {
    let Some(context) = leases.first().map(Lease::context) else {
        return Err(Error::invalid("a transaction needs a lease to commit with: acquire one"));
    };
    context.ensure_open()?;
    let store: &dyn Any = &*context.store;
    let Some(store) = store.downcast_ref::<MongoStore>() else {
        return Err(Error::invalid(
            "a transaction needs a lease on MongoDB, and this one is elsewhere: acquire it on the cluster that is written",
        ));
    };
    let lease = |lease: &Lease| TransactionLease { key: lease.key().clone(), lease: lease.id(), token: lease.token() };
    Ok(TransactionLeases {
        store: store.clone(),
        leases: leases.iter().map(lease).collect(),
        operation_timeout: context.settings.operation_timeout,
        attempt: context.settings.attempt,
    })
}

/// A lease as the writer at a fence. It stays borrowed, so that it cannot be released under a write. It can be transferred under one.
impl<'a> From<&'a Lease> for FencedWriter<'a> {
    fn from(lease: &'a Lease) -> Self {
        Self::alive(lease.token(), lease)
    }
}

impl Alive for Lease {
    fn check(&self) -> Result<()> {
        self.check()
    }
}

impl LeaseProbe for Lease {
    fn verify(&self, _index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.verify())
    }

    fn refresh(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.refresh())
    }
}

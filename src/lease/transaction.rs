//! Leases at a fence: a lease as the writer of a document, and transactions that include the lease's record.

use std::{any::Any, slice};

use mongodb::ClientSession;
use tracing::Instrument;

use crate::{
    fence::{
        FencedWriter, WorkError,
        mongo::{
            Alive, BoxFuture,
            transaction::{LeaseProbe, TransactionLease, TransactionLeases, run},
        },
    },
    lease::Lease,
    spans,
    store::MongoStore,
    types::error::{Error, Result},
};

impl Lease {
    /// Runs `work` in a transaction that commits only while this lease is held. The work may read and write any
    /// collections of the same client, and its documents need no token.
    ///
    /// Before the commit, the transaction writes the lease's record on the condition that the record has the lease and
    /// that the lease has not expired by the server's clock. A request that takes the key away writes that record, too,
    /// so the two conflict: either the transaction commits before that request, or it does not commit. The transaction
    /// reads from a majority and is confirmed by a majority, whatever the client's settings are.
    ///
    /// The work receives a session and passes it to every call that is part of the transaction. If the handle opened
    /// its own client, [`ClientSession::client`] returns it. The work neither commits nor aborts. It returns a value, or an
    /// error that can be made from this crate's: a type of your own, `Box<dyn Error + Send + Sync>` or `anyhow::Error`
    /// ([`WorkError`]).
    ///
    /// The work may run several times, as long as MongoDB says that the transaction can be retried and the operation timeout
    /// is not over. MongoDB says so in an error of the driver, which may be any [source](std::error::Error::source) of the
    /// work's error. An error of a call must end the work: return it. If the work hides an error, MongoDB has aborted the
    /// transaction; the work runs once more, and is then refused.
    ///
    /// # Caveats
    ///
    /// From its first command to its end, a transaction must take less time than two writes of the record are apart;
    /// otherwise each refresh makes it start over. That time is a third of the ttl, 10 seconds by default, and less if
    /// other holders share the key or waiters queue for it. The transaction does not delay the lease: if its record was
    /// in the way, the lease is refreshed before the next try. MongoDB ends a transaction after 60 seconds. Until then
    /// it keeps the record locked if the process died just before the commit.
    ///
    /// To spawn the future, the work must own what it uses: `async move`, and clones. For work that borrows, the
    /// compiler cannot yet prove that it may move to another thread: "implementation of `Send` is not general enough".
    ///
    /// # Errors
    ///
    /// - Those of the work.
    /// - [`Error::Lost`]: the lease has ended. Nothing is committed.
    /// - [`Error::Unavailable`]: the store did not confirm the commit within the operation timeout, or other writes
    ///   were in the way until then. The transaction may be committed or not.
    /// - [`Error::Corrupt`]: another program wrote over the record.
    /// - [`Error::Invalid`]: the lease is in memory, the work hides an error of a call, or MongoDB refuses
    ///   transactions.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts the transaction, unless its commit is in flight: that may still be applied. The work
    /// is dropped where it stands, with its calls of the driver.
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
        run_with_leases(slice::from_ref(self), work).await
    }
}

/// Runs `work` in a transaction that commits only while these leases of one handle hold.
pub(crate) async fn run_with_leases<R, E, F, Kind>(leases: &[Lease], work: F) -> Result<R, E>
where
    F: AsyncFnMut(&mut ClientSession) -> Result<R, E>,
    E: From<Error> + WorkError<Kind>,
{
    let one = if let [lease] = leases { Some((lease.key(), lease.token())) } else { None };
    let span = spans::transaction(one, leases.len());
    let result = match leases.check().and_then(|()| transaction_leases(leases)) {
        Ok(transaction) => run(transaction, &leases, work).instrument(span.clone()).await,
        Err(error) => Err(error.into()),
    };
    let ended = result.as_ref().map(|_| "committed").map_err(WorkError::as_error);
    spans::end(&span, ended, "the transaction failed");
    result
}

fn transaction_leases(leases: &[Lease]) -> Result<TransactionLeases> {
    let Some(context) = leases.first().map(Lease::context) else {
        return Err(Error::invalid("a transaction needs a lease to commit with: acquire one"));
    };
    context.ensure_open()?;
    let store: &dyn Any = &*context.store;
    let Some(store) = store.downcast_ref::<MongoStore>() else {
        return Err(Error::invalid(
            "this lease is not on MongoDB, which a transaction needs: acquire it on the cluster that is written",
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

/// A lease as the writer at a fence. It is borrowed, so it cannot be released during a write; it can be transferred.
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

impl Alive for &[Lease] {
    fn check(&self) -> Result<()> {
        self.iter().try_for_each(Lease::check)
    }
}

impl LeaseProbe for &[Lease] {
    fn verify(&self, index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.get(index) {
                Some(lease) => lease.confirm().await,
                None => self.check(),
            }
        })
    }

    fn refresh(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            for lease in *self {
                lease.refresh().await?;
            }
            Ok(())
        })
    }
}

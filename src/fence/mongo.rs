//! Collections that check: every write carries its writer's token, and the condition that no larger one
//! has written before.
//!
//! | file | says |
//! |---|---|
//! | `mongo.rs` | what a fenced collection is, and how a refusal is told from a filter that found nothing |
//! | `verbs.rs` | its writes, one by one |
//! | `write.rs` | the builder that these writes share |
//! | `bulk.rs` | many in few commands |
//! | `token_field.rs` | what is added to a filter and to an update |
//! | `encode.rs` | how a value becomes a document |
//! | `transaction.rs` | a transaction that cannot commit without its lease |
//! | `work_error.rs` | the errors that the work of a transaction can return |
//! | `error.rs` | what each error of the driver means |

mod bulk;
mod encode;
mod error;
mod token_field;
pub(crate) mod transaction;
mod verbs;
pub(crate) mod work_error;
mod write;

use std::{fmt, pin::Pin, time::Duration};

pub use bulk::Change;
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    error::Error as DriverError,
    options::{
        Acknowledgment, Collation, FindOneOptions, Hint, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
    },
};
use token_field::TokenField;
use tokio::runtime::Handle;
pub use work_error::{ByDeref, ByItself, WorkError};
pub use write::FencedWrite;

use crate::{
    Clock, Deadline, Error, FencingToken, Result,
    store::{MongoStore, mongo::server_time},
};

/// A boxed future that may borrow.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A storage that can check tokens: the driver's [`Collection`], once this trait is imported.
pub trait Fence<T: Send + Sync> {
    /// The collection as a holder may write it: with a lease, or with the bare
    /// [`FencingToken`] that a worker was given.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use mongoseal::{Error, Fence, Mongoseal, mongodb::{Client, bson::{Document, doc}}};
    ///
    /// let client = Client::with_uri_str("mongodb://db0,db1,db2/shop?replicaSet=rs0").await?;
    /// let orders = client.database("shop").collection::<Document>("orders");
    /// let seal = Mongoseal::new(&client.database("shop"));
    /// let lease = seal.acquire("orders/4711").await?;
    /// let paid = doc! { "$set": { "state": "paid" } };
    /// match orders.fenced(&lease).update_one(doc! { "_id": 4711 }, paid).await {
    ///     Ok(done) => println!("{} written", done.modified_count),
    ///     Err(Error::Fenced { newer }) => println!("not ours any more: {newer} has written it"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn fenced<'a>(&self, by: impl Into<FencedWriter<'a>>) -> Fenced<'a, T>;
}

impl<T: Send + Sync> Fence<T> for Collection<T> {
    fn fenced<'a>(&self, by: impl Into<FencedWriter<'a>>) -> Fenced<'a, T> {
        Fenced { collection: self.clone(), by: by.into(), field: "fence".into(), within: Duration::from_secs(10) }
    }
}

/// Who writes: a lease, which is refused here already once it has ended, or a bare token.
#[derive(Clone, Copy)]
pub struct FencedWriter<'a> {
    token: FencingToken,
    lease: Option<&'a (dyn Alive + 'a)>,
}

/// What can say that it has ended.
pub(crate) trait Alive: Send + Sync {
    fn check(&self) -> Result<()>;
}

impl<'a> FencedWriter<'a> {
    /// Of something that ends.
    pub(crate) fn alive(token: FencingToken, lease: &'a (dyn Alive + 'a)) -> Self {
        Self { token, lease: Some(lease) }
    }
}

impl From<FencingToken> for FencedWriter<'_> {
    fn from(token: FencingToken) -> Self {
        Self { token, lease: None }
    }
}

impl fmt::Debug for FencedWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedWriter").field("token", &self.token).finish_non_exhaustive()
    }
}

/// A collection as the holder of a token may write it. Made by [`Fence::fenced`].
///
/// # Guarantees
///
/// Each write is one command that carries the condition and the token: it is applied to a document only
/// if the token in it is no larger than the writer's, and leaves the writer's there. So once a holder has
/// written a document, no earlier one changes it, however late its write arrives. An equal token passes:
/// one holder writes as often as it likes.
///
/// Writes are confirmed by a majority and in its journal, whatever the collection's own write concern
/// says: one that could be rolled back would let an earlier holder in again.
///
/// # Caveats
///
/// - It is documents that are fenced: a later holder that has not written a document has not fenced it.
///   An update of nothing, `doc! {}`, just leaves the token there.
/// - A document without the field, or with `null` in it, was never written by a holder, and any token
///   passes. One with anything but a token there is left alone, with [`Error::Invalid`].
/// - Whoever writes without a fence is not refused, and can take the token away.
/// - Of a document that is deleted no token is left: an earlier holder may insert it again. Mark it as
///   deleted instead where that matters, or use a [transaction](crate::Lease::transaction).
/// - Where a filter matches several documents, one is written that lets the token pass.
/// - Holders who share a key hold at once, with different tokens: each refuses those before it. Fence what
///   is written under exclusive leases, of one key for each document.
///
/// # What happens twice
///
/// After [`Error::Unavailable`] the write may have been made or not. The driver sends a write again whose
/// reply was lost, once, and the server then knows it: not so with `retryWrites=false`, nor in
/// [`bulk_write`](Self::bulk_write). Whoever writes again after that error writes twice if the first one
/// was made: the token is equal and passes. A `$set` does not mind; an `$inc` counts twice unless the
/// filter says from what, and an insert finds its own document there.
#[derive(Debug)]
pub struct Fenced<'a, T: Send + Sync> {
    collection: Collection<T>,
    by: FencedWriter<'a>,
    field: String,
    within: Duration,
}

impl<T: Send + Sync> Clone for Fenced<'_, T> {
    fn clone(&self) -> Self {
        let Self { collection, by, field, within } = self;
        Self { collection: collection.clone(), by: *by, field: field.clone(), within: *within }
    }
}

impl<'a, T: Send + Sync> Fenced<'a, T> {
    /// The field of the documents in which tokens are, a name without `$` and `.`. All who write the
    /// collection must agree on it. Default: `fence`.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.field = name.into();
        self
    }

    /// How long one write may take. Default: 10 seconds.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.within = timeout;
        self
    }

    /// The same collection, of documents.
    fn documents(&self) -> Fenced<'a, Document> {
        let Self { collection, by, field, within } = self;
        Fenced { collection: collection.clone_with_type(), by: *by, field: field.clone(), within: *within }
    }

    /// Refuses what can be refused without asking anybody, and gives what a write needs to run for which the
    /// user needs these actions.
    fn begin(&self, needs: &'static str) -> Result<Target> {
        Handle::try_current().map_err(|source| {
            Error::invalid("there is no tokio runtime here: call this inside of one").caused_by(source)
        })?;
        if let Some(lease) = self.by.lease {
            lease.check()?;
        }
        let token_field = TokenField::new(&self.field, self.by.token)?;
        Ok(Target { documents: self.collection.clone_with_type(), token_field, within: self.within, needs })
    }
}

/// How often a write is sent that met another first write of its document. Whoever comes second finds the
/// document there; to meet a third takes a delete in between.
const MEETINGS: u32 = 4;

/// What a write needs while it runs, on a task of its own.
#[derive(Clone)]
struct Target {
    documents: Collection<Document>,
    token_field: TokenField,
    within: Duration,
    needs: &'static str,
}

/// What makes a filter mean the same in a read as in the write.
#[derive(Clone, Default)]
struct FilterOptions {
    collation: Option<Collation>,
    hint: Option<Hint>,
    let_vars: Option<Document>,
}

impl Target {
    /// Runs a write on a task of its own, which ends by itself when nobody waits any more.
    async fn run<R: Send + 'static>(self, work: impl Future<Output = Result<R>> + Send + 'static) -> Result<R> {
        let within = self.within;
        let done = MongoStore::run(self.deadline(), async move { Ok(work.await) });
        done.await.unwrap_or_else(|error| Err(error::unanswered(error, within)))
    }

    /// When a command is given up that is sent now.
    fn deadline(&self) -> Deadline {
        Deadline::after(Clock::Boot, self.within)
    }

    /// What makes a write one that stays.
    fn write_concern(&self) -> WriteConcern {
        WriteConcern::builder()
            .w(Acknowledgment::Majority)
            .journal(true)
            .w_timeout(server_time(self.deadline()))
            .build()
    }

    fn meaning(&self, error: DriverError) -> Error {
        let namespace = self.documents.namespace();
        error::meaning(error, &namespace.db, &namespace.coll, self.needs)
    }

    /// Sends a write that changes what is there: `Err(Fenced)` where all that its filter finds was written
    /// by later holders. Asks that only where the write found nothing.
    async fn change<R, F>(&self, filter: &Document, options: FilterOptions, send: impl FnOnce() -> F) -> Result<R>
    where
        R: Outcome,
        F: Future<Output = mongodb::error::Result<R>>,
    {
        let done = send().await.map_err(|error| self.meaning(error))?;
        if !done.wrote() {
            self.ensure_not_blocked(self.token_field.blocked_filter(filter), options).await?;
        }
        Ok(done)
    }

    /// Sends a write that inserts the document `id` where its filter finds none. Where the fence hides the
    /// document, or somebody else inserts it first, that fails on the `_id`.
    async fn upsert<R, F>(&self, id: &Bson, mut send: impl FnMut() -> F) -> Result<R>
    where
        F: Future<Output = mongodb::error::Result<R>>,
    {
        let mut meetings = 0_u32;
        loop {
            let error = match send().await {
                Err(error) if error::is_duplicate(&error) => error,
                done => return done.map_err(|error| self.meaning(error)),
            };
            self.ensure_not_blocked(doc! { "_id": { "$eq": id } }, FilterOptions::default()).await?;
            // It lets this token pass, so either it was inserted at this moment or the caller's own
            // filter keeps it out.
            meetings = meetings.saturating_add(1);
            if meetings >= MEETINGS {
                return Err(self.meaning(error));
            }
        }
    }

    /// Refuses where a document that is found was written by a later holder. What the primary has is what
    /// counts, whether a majority has it or not: where a larger token was written, there is one.
    async fn ensure_not_blocked(&self, filter: Document, options: FilterOptions) -> Result<()> {
        let FilterOptions { collation, hint, let_vars } = options;
        let mut options = FindOneOptions::builder()
            .projection(self.token_field.view())
            .read_concern(ReadConcern::local())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .max_time(server_time(self.deadline()))
            .build();
        options.collation = collation;
        options.hint = hint;
        options.let_vars = let_vars;
        let found = self.documents.find_one(filter).with_options(options).await;
        match found.map_err(|error| self.meaning(error))? {
            Some(found) => self.token_field.refused_by(&found),
            None => Ok(()),
        }
    }
}

/// What a write says it did.
trait Outcome {
    /// Whether it found something to write.
    fn wrote(&self) -> bool;
}

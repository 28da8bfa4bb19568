//! Fenced collections: each write carries its writer's token, and the condition that no larger token has written
//! before.
//!
//! | file | contains |
//! |---|---|
//! | `mongo.rs` | what a fenced collection is, and how a refusal differs from a filter that matches nothing |
//! | `verbs.rs` | its single writes |
//! | `write.rs` | the builder that these writes share |
//! | `bulk.rs` | many writes in few commands |
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
    options::{Acknowledgment, FindOneOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};
use token_field::TokenField;
pub use work_error::{ByDeref, ByItself, WorkError};
pub use write::FencedWrite;

use crate::{
    spans,
    store::{
        mongo::{server_time, task},
        runtime,
    },
    types::{
        clock::Clock,
        deadline::Deadline,
        error::{Error, Result},
        token::FencingToken,
    },
};

/// A boxed future that may borrow.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A storage that can check tokens: the driver's [`Collection`], if this trait is in scope.
pub trait Fence<T: Send + Sync> {
    /// The collection for writes of a holder: with its lease, or with the bare [`FencingToken`] that a worker was
    /// given.
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
    /// let seal = Mongoseal::on_shared_client(&client.database("shop"));
    /// let lease = seal.acquire("orders/4711").await?;
    /// let paid = doc! { "$set": { "state": "paid" } };
    /// match orders.fenced(&lease).update_one(doc! { "_id": 4711 }, paid).await {
    ///     Ok(done) => println!("{} written", done.modified_count),
    ///     Err(Error::Fenced { newer }) => println!("a later holder has claimed it, with token {newer}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn fenced<'a>(&self, by: impl Into<FencedWriter<'a>>) -> Fenced<'a, T>;
}

impl<T: Send + Sync> Fence<T> for Collection<T> {
    fn fenced<'a>(&self, by: impl Into<FencedWriter<'a>>) -> Fenced<'a, T> {
        Fenced { collection: self.clone(), by: by.into(), field: "fence".into(), timeout: Duration::from_secs(10) }
    }
}

/// The writer: a lease, which is refused without a command once it has ended, or a bare token.
#[derive(Clone, Copy, Debug)]
pub struct FencedWriter<'a> {
    token: FencingToken,
    lease: Option<&'a (dyn Alive + 'a)>,
}

/// A lease that can end.
pub(crate) trait Alive: fmt::Debug + Send + Sync {
    fn check(&self) -> Result<()>;
}

impl<'a> FencedWriter<'a> {
    /// A writer with a lease.
    pub(crate) fn alive(token: FencingToken, lease: &'a (dyn Alive + 'a)) -> Self {
        Self { token, lease: Some(lease) }
    }
}

impl From<FencingToken> for FencedWriter<'_> {
    fn from(token: FencingToken) -> Self {
        Self { token, lease: None }
    }
}

/// A collection for writes with a token. [`Fence::fenced`] creates it.
///
/// # Guarantees
///
/// Each write is one command with the condition and the token. It changes a document only if the document's token is no
/// larger than the writer's, and leaves the writer's token there. So once a holder has claimed or written a document, no
/// earlier holder changes it, however late its write arrives. An equal token passes: a holder may write again.
///
/// Writes are confirmed by the journals of a majority, whatever the write concern of the collection: a rollback would
/// let an earlier holder in again.
///
/// # Caveats
///
/// - The fence is of documents. A document that the later holder has not written is not fenced yet. So a holder begins with
///   a [`claim`](Self::claim), which leaves the token there. Between the grant and the claim an earlier holder can still
///   write.
/// - A document without the field, or with `null` in it, admits any token. If the field has anything but a token, the
///   write returns [`Error::Invalid`] and changes nothing.
/// - Writes without a fence are not refused, and can remove the token.
/// - A deleted document leaves no token, so an earlier holder may insert it again. If that matters, mark the document
///   as deleted, or use a [transaction](crate::Lease::transaction).
/// - If a filter matches several documents, a document that admits the token is written.
/// - Holders that share a key hold it at once, with different tokens: each refuses the tokens before it. Fence what is
///   written under exclusive leases, of one key for each document.
///
/// # Writes that are sent twice
///
/// After [`Error::Unavailable`], the write may have been made or not. If a reply is lost, the driver resends the write
/// once, and the server recognises it; but not with `retryWrites=false`, and not in [`bulk_write`](Self::bulk_write).
/// If a caller writes again after that error and the first write was made, it writes twice: the token is equal and
/// passes. A `$set` stays right. An `$inc` counts twice unless the filter has the value before it, and an insert finds
/// its own document.
#[derive(Debug)]
pub struct Fenced<'a, T: Send + Sync> {
    collection: Collection<T>,
    by: FencedWriter<'a>,
    field: String,
    timeout: Duration,
}

impl<T: Send + Sync> Clone for Fenced<'_, T> {
    fn clone(&self) -> Self {
        let Self { collection, by, field, timeout } = self;
        Self { collection: collection.clone(), by: *by, field: field.clone(), timeout: *timeout }
    }
}

impl<'a, T: Send + Sync> Fenced<'a, T> {
    /// Sets the field of the documents that has the token: a name without `$` and `.`. All writers of the collection
    /// must use the same field. Default: `fence`.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.field = name.into();
        self
    }

    /// Sets how long a write may take. Default: 10 seconds.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same collection, of documents.
    fn documents(&self) -> Fenced<'a, Document> {
        let Self { collection, by, field, timeout } = self;
        Fenced { collection: collection.clone_with_type(), by: *by, field: field.clone(), timeout: *timeout }
    }

    /// Makes a write, for which the user needs these actions, in a span. Refuses first what can be refused without a command.
    /// The write runs on a task of its own: if the caller is dropped, it still runs to its end.
    async fn run<R, F>(&self, needs: &'static str, write: impl FnOnce(Target) -> Result<F>) -> Result<R>
    where
        R: Send + 'static,
        F: Future<Output = Result<R>> + Send + 'static,
    {
        let writing = async {
            let runtime = runtime::current()?;
            if let Some(lease) = self.by.lease {
                lease.check()?;
            }
            let token_field = TokenField::new(&self.field, self.by.token)?;
            let documents = self.collection.clone_with_type();
            let work = write(Target { documents, token_field, timeout: self.timeout, needs })?;
            let done = task::run(&runtime, Deadline::after(Clock::Boot, self.timeout), async move { Ok(work.await) });
            done.await.unwrap_or_else(|error| Err(error::unanswered(error, self.timeout)))
        };
        let span = spans::fenced_write(self.collection.namespace(), self.by.token);
        spans::run(span, ("written", "the write failed"), writing).await
    }
}

/// How often a write is sent that conflicts with another first write of its document. The second attempt finds the
/// document; to conflict again takes a delete in between.
const MAX_UPSERT_ATTEMPTS: u32 = 4;

/// What a write needs while it runs on a task of its own.
#[derive(Clone)]
struct Target {
    documents: Collection<Document>,
    token_field: TokenField,
    timeout: Duration,
    needs: &'static str,
}

impl Target {
    /// The deadline of a command that is sent now.
    fn deadline(&self) -> Deadline {
        Deadline::after(Clock::Boot, self.timeout)
    }

    /// The write concern of a write that cannot be rolled back.
    fn write_concern(&self) -> WriteConcern {
        WriteConcern::builder()
            .w(Acknowledgment::Majority)
            .journal(true)
            .w_timeout(server_time(self.deadline()))
            .build()
    }

    fn translate(&self, error: DriverError) -> Error {
        let namespace = self.documents.namespace();
        error::translate(error, &namespace.db, &namespace.coll, self.needs)
    }

    /// Sends a write, so many times at most. If it inserts the document `id`, and the fence hides that document or another
    /// writer inserts it first, it fails on the `_id`.
    async fn send<R, F>(&self, id: Option<&Bson>, max_attempts: u32, mut send: impl FnMut() -> F) -> Result<R>
    where
        F: Future<Output = mongodb::error::Result<R>>,
    {
        let mut attempts = 0_u32;
        loop {
            let (id, error) = match (id, send().await) {
                (Some(id), Err(error)) if error::is_duplicate(&error) => (id, error),
                (_, done) => return done.map_err(|error| self.translate(error)),
            };
            self.ensure_id_not_blocked(id).await?;
            // The document admits this token. So either it was inserted at this moment, or the caller's own filter does
            // not match it.
            attempts = attempts.saturating_add(1);
            if attempts >= max_attempts {
                return Err(self.translate(error));
            }
        }
    }

    async fn ensure_id_not_blocked(&self, id: &Bson) -> Result<()> {
        self.ensure_not_blocked(doc! { "_id": { "$eq": id } }, FindOneOptions::default()).await
    }

    /// Refuses if a later holder wrote a document of the filter. The read is local to the primary: a larger token
    /// proves a later holder, whether a majority has it or not. The options make the filter mean the same as in the write.
    async fn ensure_not_blocked(&self, filter: Document, mut options: FindOneOptions) -> Result<()> {
        options.projection = Some(self.token_field.projection());
        options.read_concern = Some(ReadConcern::local());
        options.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        options.max_time = Some(server_time(self.deadline()));
        let found = self.documents.find_one(filter).with_options(options).await;
        match found.map_err(|error| self.translate(error))? {
            Some(found) => self.token_field.refused_by(&found),
            None => Ok(()),
        }
    }
}

//! The builder of the writes of a fenced collection, and how it sends them.

use std::fmt;

use mongodb::{
    Collection,
    bson::{Bson, Document},
    options::{
        DeleteOptions, FindOneAndUpdateOptions, FindOneOptions, InsertOneOptions, ReplaceOptions, ReturnDocument,
        UpdateOptions, WriteConcern,
    },
};

use super::{
    BoxFuture, Fenced, MAX_UPSERT_ATTEMPTS, Target,
    token_field::{TokenField, pinned_id},
};
use crate::{store::mongo::error::needs, types::error::Result};

/// A write of a fenced collection. Awaiting it sends it.
///
/// The methods of [`Fenced`] create it, such as [`update_one`](Fenced::update_one). `O` are the driver's options of the
/// write, and `R` is its result.
#[must_use = "a write does nothing until it is awaited"]
pub struct FencedWrite<'a, O, R> {
    options: O,
    send: SendFn<'a, O, R>,
}

/// Sends a write with the options that were set last.
type SendFn<'a, O, R> = Box<dyn FnOnce(O) -> BoxFuture<'a, Result<R>> + Send + Sync + 'a>;

impl<O, R> FencedWrite<'_, O, R> {
    /// Sets the options of the driver, in place of those set before. The write concern in them has no effect.
    pub fn with_options(mut self, options: O) -> Self {
        self.options = options;
        self
    }
}

impl<R> FencedWrite<'_, FindOneAndUpdateOptions, R> {
    /// Sets whether the document is returned as it was, which is the default, or as it is after the update.
    pub fn return_document(mut self, which: ReturnDocument) -> Self {
        self.options.return_document = Some(which);
        self
    }
}

impl<'a, O, R> IntoFuture for FencedWrite<'a, O, R> {
    type Output = Result<R>;
    type IntoFuture = BoxFuture<'a, Result<R>>;

    fn into_future(self) -> Self::IntoFuture {
        (self.send)(self.options)
    }
}

impl<O: fmt::Debug, R> fmt::Debug for FencedWrite<'_, O, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedWrite").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What the driver's options of all writes have in common.
pub(super) trait WriteOptions: Clone + Default + Send + Sync + 'static {
    fn is_upsert(&self) -> bool {
        false
    }

    fn set_write_concern(&mut self, concern: WriteConcern);

    /// The options that make a filter mean the same in a read as in the write.
    fn read_options(&self) -> FindOneOptions {
        FindOneOptions::default()
    }
}

/// Implements [`WriteOptions`] for the options of writes with a filter. Those of writes that can upsert name their field for
/// it, and those writes have a setter.
macro_rules! impl_write_options {
    ($($options:ty $(: $upsert:ident)?),*) => {$(
        impl WriteOptions for $options {
            $(fn is_upsert(&self) -> bool {
                self.$upsert == Some(true)
            })?

            fn set_write_concern(&mut self, concern: WriteConcern) {
                self.write_concern = Some(concern);
            }

            fn read_options(&self) -> FindOneOptions {
                let Self { collation, hint, let_vars, .. } = self.clone();
                FindOneOptions::builder().collation(collation).hint(hint).let_vars(let_vars).build()
            }
        }

        $(impl<R> FencedWrite<'_, $options, R> {
            /// Sets whether the document is inserted if the filter matches none. The filter must name its `_id`.
            pub fn upsert(mut self, $upsert: bool) -> Self {
                self.options.$upsert = Some($upsert);
                self
            }
        })?
    )*};
}

impl_write_options!(UpdateOptions: upsert, ReplaceOptions: upsert, FindOneAndUpdateOptions: upsert, DeleteOptions);

impl WriteOptions for InsertOneOptions {
    fn set_write_concern(&mut self, concern: WriteConcern) {
        self.write_concern = Some(concern);
    }
}

impl<'a, T: Send + Sync> Fenced<'a, T> {
    /// A write. The user needs these `actions`, or [`needs::HOLD`] if it is an upsert. Its span begins when it is polled
    /// first, so that the caller's span is its parent.
    ///
    /// `id` is that of a document to insert, which has no filter. `found` is whether a result is of a document that was found.
    /// `stamp` adds the token to what is written. `send` sends the command: it gets the filter with the fence, what `stamp`
    /// returned, and the options.
    pub(super) fn write<O, R, C, F>(
        &self,
        actions: &'static str,
        filter: Document,
        id: Option<Bson>,
        found: fn(&R) -> bool,
        stamp: impl FnOnce(&TokenField) -> Result<C> + Send + Sync + 'a,
        send: impl Fn(Collection<Document>, Document, C, O) -> F + Send + Sync + 'static,
    ) -> FencedWrite<'a, O, R>
    where
        O: WriteOptions,
        R: Send + 'static,
        C: Clone + Send + Sync + 'static,
        F: Future<Output = mongodb::error::Result<R>> + Send + 'static,
    {
        let fenced = self.documents();
        let send = move |mut options: O| -> BoxFuture<'a, Result<R>> {
            Box::pin(async move {
                let (actions, max_attempts) =
                    if options.is_upsert() { (needs::HOLD, MAX_UPSERT_ATTEMPTS) } else { (actions, 1) };
                let write = |to: Target| {
                    let content = stamp(&to.token_field)?;
                    options.set_write_concern(to.write_concern());
                    let id = if options.is_upsert() { Some(pinned_id(&filter)?) } else { id };
                    Ok(async move {
                        let passing = to.token_field.passing_filter(&filter);
                        let send = || send(to.documents.clone(), passing.clone(), content.clone(), options.clone());
                        let done = to.send(id.as_ref(), max_attempts, send).await?;
                        if id.is_none() && !found(&done) {
                            let blocked = to.token_field.blocked_filter(&filter);
                            to.ensure_not_blocked(blocked, options.read_options()).await?;
                        }
                        Ok(done)
                    })
                };
                fenced.run(actions, write).await
            })
        };
        FencedWrite { options: O::default(), send: Box::new(send) }
    }
}

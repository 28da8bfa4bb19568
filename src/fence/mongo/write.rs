//! The builder of the writes of a fenced collection, and how it sends them.

use std::fmt;

use mongodb::{
    Collection,
    bson::Document,
    options::{DeleteOptions, FindOneAndUpdateOptions, ReplaceOptions, ReturnDocument, UpdateOptions, WriteConcern},
};

use super::{
    BoxFuture, ENDS, Fenced, FilterOptions,
    token_field::{TokenField, pinned_id},
};
use crate::{spans, store::mongo::error::needs, types::error::Result};

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

impl<'a, O, R> FencedWrite<'a, O, R> {
    /// A write of this collection. Its span begins when it is polled first, so that the caller's span is its parent.
    pub(super) fn new<F>(
        fenced: Fenced<'a, Document>,
        send: impl FnOnce(Fenced<'a, Document>, O) -> F + Send + Sync + 'a,
    ) -> Self
    where
        O: Default + Send + 'a,
        R: Send + 'a,
        F: Future<Output = Result<R>> + Send + 'a,
    {
        let send = |options| -> BoxFuture<'a, Result<R>> {
            Box::pin(async move {
                let span = fenced.span();
                spans::run(span, ENDS, send(fenced, options)).await
            })
        };
        Self { options: O::default(), send: Box::new(send) }
    }

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

/// What the driver's options of all writes with a filter have in common.
pub(super) trait WriteOptions: Clone + Default + Send + Sync + 'static {
    fn is_upsert(&self) -> bool;
    fn set_write_concern(&mut self, concern: WriteConcern);
    fn filter_options(&self) -> FilterOptions;
}

/// Implements [`WriteOptions`].
macro_rules! impl_write_options {
    ($options:ty, is_upsert: $is_upsert:expr) => {
        impl WriteOptions for $options {
            fn is_upsert(&self) -> bool {
                $is_upsert(self)
            }

            fn set_write_concern(&mut self, concern: WriteConcern) {
                self.write_concern = Some(concern);
            }

            fn filter_options(&self) -> FilterOptions {
                FilterOptions {
                    collation: self.collation.clone(),
                    hint: self.hint.clone(),
                    let_vars: self.let_vars.clone(),
                }
            }
        }
    };
}

/// Implements [`WriteOptions`] for the options of writes that can upsert, and the setter of those writes.
macro_rules! impl_upsert_options {
    ($($options:ty),*) => {$(
        impl_write_options!($options, is_upsert: |options: &Self| options.upsert == Some(true));

        impl<R> FencedWrite<'_, $options, R> {
            /// Sets whether the document is inserted if the filter matches none. The filter must name its `_id`.
            pub fn upsert(mut self, upsert: bool) -> Self {
                self.options.upsert = Some(upsert);
                self
            }
        }
    )*};
}

impl_upsert_options!(UpdateOptions, ReplaceOptions, FindOneAndUpdateOptions);
impl_write_options!(DeleteOptions, is_upsert: |_| false);

impl<'a, T: Send + Sync> Fenced<'a, T> {
    /// A write with a filter. The user needs these `actions`, or [`needs::HOLD`] if it is an upsert.
    ///
    /// `found` is whether a result is of a document that was found. `stamp` adds the token to what is written. `send` sends
    /// the command: it gets the filter with the fence, what `stamp` returned, and the options.
    pub(super) fn write<O, R, C, F>(
        &self,
        actions: &'static str,
        filter: Document,
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
        FencedWrite::new(self.documents(), move |fenced, mut options: O| async move {
            let target = fenced.begin(if options.is_upsert() { needs::HOLD } else { actions })?;
            let content = stamp(&target.token_field)?;
            options.set_write_concern(target.write_concern());
            let id = if options.is_upsert() { Some(pinned_id(&filter)?) } else { None };
            let to = target.clone();
            target
                .run(async move {
                    let passing = to.token_field.passing_filter(&filter);
                    let send = || send(to.documents.clone(), passing.clone(), content.clone(), options.clone());
                    match id {
                        Some(id) => to.upsert(&id, send).await,
                        None => to.change(&filter, options.filter_options(), found, send).await,
                    }
                })
                .await
        })
    }
}

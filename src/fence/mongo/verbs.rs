//! The writes of a fenced collection, each a builder that is sent when it is awaited.

use std::borrow::Borrow;

use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    options::{
        DeleteOptions, FindOneAndUpdateOptions, InsertOneOptions, ReplaceOptions, ReturnDocument, UpdateModifications,
        UpdateOptions,
    },
    results::{DeleteResult, InsertOneResult, UpdateResult},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Fenced, Outcome, Reading, encode, fault, stamp::pinned};
use crate::{Result, store::mongo::error::needs};

/// A boxed future, as `IntoFuture` wants one.
type Sent<'a, R> = std::pin::Pin<Box<dyn Future<Output = Result<R>> + Send + 'a>>;

impl<'a, T: Send + Sync> Fenced<'a, T> {
    /// Updates a document that the filter matches, by operators or by a pipeline.
    ///
    /// The result is the driver's. Where the filter matches nothing it says so, after a second command
    /// that looked whether there is a document that only the token kept out.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`](crate::Error::Fenced) where a later holder has written the document: nothing is
    /// changed. [`Error::Lost`](crate::Error::Lost) where the lease has ended: nothing is sent.
    /// [`Error::Unavailable`](crate::Error::Unavailable) where nobody confirmed in time, and the write may
    /// stand or not. [`Error::Invalid`](crate::Error::Invalid) for an update that writes the field of the
    /// token, an upsert whose filter does not name an `_id`, a document with something else in that field,
    /// and whatever MongoDB itself refuses, with the driver's error as the source.
    ///
    /// # Cancel safety
    ///
    /// Dropping it once it was polled abandons the answer; the write may still be made.
    pub fn update_one(&self, filter: Document, update: impl Into<UpdateModifications>) -> UpdateOne<'a> {
        UpdateOne { at: self.documents(), filter, update: update.into(), options: UpdateOptions::default() }
    }

    /// Updates a document that the filter matches and gives it, as it was or as it is then.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one). A document that is not a `T` has been written all the same.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn find_one_and_update(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> FindOneAndUpdate<'a, T> {
        let options = FindOneAndUpdateOptions::default();
        FindOneAndUpdate { at: self.clone(), filter, update: update.into(), options }
    }

    /// Deletes a document that the filter matches. Nothing is left of it, and so nothing that would refuse
    /// an earlier holder who inserts it again: mark it as deleted instead where that matters.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one).
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn delete_one(&self, filter: Document) -> DeleteOne<'a> {
        DeleteOne { at: self.documents(), filter, options: DeleteOptions::default() }
    }

    pub(super) fn documents(&self) -> Fenced<'a, Document> {
        let Self { collection, by, field, within } = self;
        Fenced { collection: collection.clone_with_type(), by: *by, field: field.clone(), within: *within }
    }
}

impl<'a, T: Serialize + Send + Sync> Fenced<'a, T> {
    /// Replaces a document that the filter matches. Whatever the replacement has in the field of the token
    /// gives way to the token.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one).
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn replace_one(&self, filter: Document, replacement: impl Borrow<T>) -> ReplaceOne<'a> {
        let replacement = encode::document(replacement.borrow());
        ReplaceOne { at: self.documents(), filter, replacement, options: ReplaceOptions::default() }
    }

    /// Inserts a document, with the token.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one). Where a document with this `_id` is there: `Fenced` if a later
    /// holder has written it, else `Invalid` with the driver's error, a duplicate key.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn insert_one(&self, document: impl Borrow<T>) -> InsertOne<'a> {
        InsertOne {
            at: self.documents(),
            document: encode::document(document.borrow()),
            options: InsertOneOptions::default(),
        }
    }
}

/// Made by [`Fenced::update_one`].
#[derive(Debug)]
#[must_use = "a write does nothing until it is awaited"]
pub struct UpdateOne<'a> {
    at: Fenced<'a, Document>,
    filter: Document,
    update: UpdateModifications,
    options: UpdateOptions,
}

impl UpdateOne<'_> {
    /// Whether to insert the document where the filter matches none. The filter must name its `_id`.
    pub fn upsert(mut self, upsert: bool) -> Self {
        self.options.upsert = Some(upsert);
        self
    }

    /// Options of the driver, instead of those set before. The write concern in them does not count.
    pub fn with_options(mut self, options: UpdateOptions) -> Self {
        self.options = options;
        self
    }
}

impl<'a> IntoFuture for UpdateOne<'a> {
    type Output = Result<UpdateResult>;
    type IntoFuture = Sent<'a, UpdateResult>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { at, filter, update, mut options } = self;
            let target = at.begin(needs_of(options.upsert))?;
            let update = target.stamp.on_update(update)?;
            options.write_concern = Some(target.write_concern());
            let id = pinned_by(&filter, options.upsert)?;
            let reading = Reading::of(options.collation.as_ref(), options.hint.as_ref(), options.let_vars.as_ref());
            let to = target.clone();
            target
                .run(async move {
                    let passing = to.stamp.passing(&filter);
                    let send = || {
                        let sent = to.documents.update_one(passing.clone(), update.clone());
                        sent.with_options(options.clone()).into_future()
                    };
                    match id {
                        Some(id) => to.upsert(&id, send).await,
                        None => to.change(&filter, reading, send).await,
                    }
                })
                .await
        })
    }
}

impl Outcome for UpdateResult {
    fn wrote(&self) -> bool {
        self.matched_count > 0 || self.upserted_id.is_some()
    }
}

/// Made by [`Fenced::replace_one`].
#[derive(Debug)]
#[must_use = "a write does nothing until it is awaited"]
pub struct ReplaceOne<'a> {
    at: Fenced<'a, Document>,
    filter: Document,
    replacement: Result<Document>,
    options: ReplaceOptions,
}

impl ReplaceOne<'_> {
    /// Whether to insert the document where the filter matches none. The filter must name its `_id`.
    pub fn upsert(mut self, upsert: bool) -> Self {
        self.options.upsert = Some(upsert);
        self
    }

    /// Options of the driver, instead of those set before. The write concern in them does not count.
    pub fn with_options(mut self, options: ReplaceOptions) -> Self {
        self.options = options;
        self
    }
}

impl<'a> IntoFuture for ReplaceOne<'a> {
    type Output = Result<UpdateResult>;
    type IntoFuture = Sent<'a, UpdateResult>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { at, filter, replacement, mut options } = self;
            let target = at.begin(needs_of(options.upsert))?;
            let replacement = target.stamp.on_document(replacement?)?;
            options.write_concern = Some(target.write_concern());
            let id = pinned_by(&filter, options.upsert)?;
            let reading = Reading::of(options.collation.as_ref(), options.hint.as_ref(), options.let_vars.as_ref());
            let to = target.clone();
            target
                .run(async move {
                    let passing = to.stamp.passing(&filter);
                    let send = || {
                        let sent = to.documents.replace_one(passing.clone(), &replacement);
                        sent.with_options(options.clone()).into_future()
                    };
                    match id {
                        Some(id) => to.upsert(&id, send).await,
                        None => to.change(&filter, reading, send).await,
                    }
                })
                .await
        })
    }
}

/// Made by [`Fenced::find_one_and_update`].
#[derive(Debug)]
#[must_use = "a write does nothing until it is awaited"]
pub struct FindOneAndUpdate<'a, T: Send + Sync> {
    at: Fenced<'a, T>,
    filter: Document,
    update: UpdateModifications,
    options: FindOneAndUpdateOptions,
}

impl<T: Send + Sync> FindOneAndUpdate<'_, T> {
    /// Whether to insert the document where the filter matches none. The filter must name its `_id`.
    pub fn upsert(mut self, upsert: bool) -> Self {
        self.options.upsert = Some(upsert);
        self
    }

    /// Whether to give the document as it was, which is the default, or as it is then.
    pub fn return_document(mut self, which: ReturnDocument) -> Self {
        self.options.return_document = Some(which);
        self
    }

    /// Options of the driver, instead of those set before. The write concern in them does not count.
    pub fn with_options(mut self, options: FindOneAndUpdateOptions) -> Self {
        self.options = options;
        self
    }
}

impl<'a, T: DeserializeOwned + Send + Sync + 'static> IntoFuture for FindOneAndUpdate<'a, T> {
    type Output = Result<Option<T>>;
    type IntoFuture = Sent<'a, Option<T>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { at, filter, update, mut options } = self;
            let target = at.begin(needs_of(options.upsert))?;
            let update = target.stamp.on_update(update)?;
            options.write_concern = Some(target.write_concern());
            let id = pinned_by(&filter, options.upsert)?;
            let reading = Reading::of(options.collation.as_ref(), options.hint.as_ref(), options.let_vars.as_ref());
            let to = target.clone();
            let collection: Collection<T> = at.collection;
            target
                .run(async move {
                    let passing = to.stamp.passing(&filter);
                    let send = || {
                        let sent = collection.find_one_and_update(passing.clone(), update.clone());
                        sent.with_options(options.clone()).into_future()
                    };
                    match id {
                        Some(id) => to.upsert(&id, send).await,
                        None => to.change(&filter, reading, send).await,
                    }
                })
                .await
        })
    }
}

impl<T> Outcome for Option<T> {
    fn wrote(&self) -> bool {
        self.is_some()
    }
}

/// Made by [`Fenced::delete_one`].
#[derive(Debug)]
#[must_use = "a write does nothing until it is awaited"]
pub struct DeleteOne<'a> {
    at: Fenced<'a, Document>,
    filter: Document,
    options: DeleteOptions,
}

impl DeleteOne<'_> {
    /// Options of the driver, instead of those set before. The write concern in them does not count.
    pub fn with_options(mut self, options: DeleteOptions) -> Self {
        self.options = options;
        self
    }
}

impl<'a> IntoFuture for DeleteOne<'a> {
    type Output = Result<DeleteResult>;
    type IntoFuture = Sent<'a, DeleteResult>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { at, filter, mut options } = self;
            let target = at.begin(needs::REMOVE)?;
            options.write_concern = Some(target.write_concern());
            let reading = Reading::of(options.collation.as_ref(), options.hint.as_ref(), options.let_vars.as_ref());
            let to = target.clone();
            target
                .run(async move {
                    let send =
                        || to.documents.delete_one(to.stamp.passing(&filter)).with_options(options).into_future();
                    to.change(&filter, reading, send).await
                })
                .await
        })
    }
}

impl Outcome for DeleteResult {
    fn wrote(&self) -> bool {
        self.deleted_count > 0
    }
}

/// Made by [`Fenced::insert_one`].
#[derive(Debug)]
#[must_use = "a write does nothing until it is awaited"]
pub struct InsertOne<'a> {
    at: Fenced<'a, Document>,
    document: Result<Document>,
    options: InsertOneOptions,
}

impl InsertOne<'_> {
    /// Options of the driver, instead of those set before. The write concern in them does not count.
    pub fn with_options(mut self, options: InsertOneOptions) -> Self {
        self.options = options;
        self
    }
}

impl<'a> IntoFuture for InsertOne<'a> {
    type Output = Result<InsertOneResult>;
    type IntoFuture = Sent<'a, InsertOneResult>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { at, document, mut options } = self;
            let target = at.begin(needs::INSERT)?;
            let document = target.stamp.on_document(document?)?;
            options.write_concern = Some(target.write_concern());
            let to = target.clone();
            target
                .run(async move {
                    let error = match to.documents.insert_one(&document).with_options(options).await {
                        Ok(done) => return Ok(done),
                        Err(error) => error,
                    };
                    if let (true, Some(id)) = (fault::is_duplicate(&error), document.get("_id")) {
                        to.barred(doc! { "_id": { "$eq": id } }, Reading::default()).await?;
                    }
                    Err(to.meaning(error))
                })
                .await
        })
    }
}

/// What a user must be granted for an update, or for an upsert.
fn needs_of(upsert: Option<bool>) -> &'static str {
    if upsert == Some(true) { needs::HOLD } else { needs::CHANGE }
}

/// The `_id` that an upsert pins.
fn pinned_by(filter: &Document, upsert: Option<bool>) -> Result<Option<Bson>> {
    if upsert == Some(true) { pinned(filter).map(Some) } else { Ok(None) }
}

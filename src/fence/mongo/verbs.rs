//! The writes of a fenced collection, one by one.

use std::borrow::Borrow;

use mongodb::{
    bson::{Document, doc},
    options::{
        DeleteOptions, FindOneAndUpdateOptions, InsertOneOptions, ReplaceOptions, UpdateModifications, UpdateOptions,
    },
    results::{DeleteResult, InsertOneResult, UpdateResult},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Fenced, FilterOptions, Outcome, encode, error::is_duplicate, write::FencedWrite};
use crate::store::mongo::error::needs;

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
    pub fn update_one(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> FencedWrite<'a, UpdateOptions, UpdateResult> {
        let update = update.into();
        self.write(
            needs::CHANGE,
            filter,
            |token| token.on_update(update),
            |documents, filter, update, options| async move {
                documents.update_one(filter, update).with_options(options).await
            },
        )
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
    pub fn delete_one(&self, filter: Document) -> FencedWrite<'a, DeleteOptions, DeleteResult> {
        self.write(
            needs::REMOVE,
            filter,
            |_| Ok(()),
            |documents, filter, (), options| async move { documents.delete_one(filter).with_options(options).await },
        )
    }
}

impl<'a, T: DeserializeOwned + Send + Sync + 'static> Fenced<'a, T> {
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
    ) -> FencedWrite<'a, FindOneAndUpdateOptions, Option<T>> {
        let update = update.into();
        self.write(
            needs::CHANGE,
            filter,
            |token| token.on_update(update),
            |documents, filter, update, options| async move {
                documents.clone_with_type().find_one_and_update(filter, update).with_options(options).await
            },
        )
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
    pub fn replace_one(
        &self,
        filter: Document,
        replacement: impl Borrow<T>,
    ) -> FencedWrite<'a, ReplaceOptions, UpdateResult> {
        let replacement = encode::document(replacement.borrow());
        self.write(
            needs::CHANGE,
            filter,
            |token| token.on_document(replacement?),
            |documents, filter, replacement, options| async move {
                documents.replace_one(filter, replacement).with_options(options).await
            },
        )
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
    pub fn insert_one(&self, document: impl Borrow<T>) -> FencedWrite<'a, InsertOneOptions, InsertOneResult> {
        let document = encode::document(document.borrow());
        let fenced = self.documents();
        FencedWrite::new(move |mut options: InsertOneOptions| async move {
            let target = fenced.begin(needs::INSERT)?;
            let document = target.token_field.on_document(document?)?;
            options.write_concern = Some(target.write_concern());
            let to = target.clone();
            target
                .run(async move {
                    let error = match to.documents.insert_one(&document).with_options(options).await {
                        Ok(done) => return Ok(done),
                        Err(error) => error,
                    };
                    if let (true, Some(id)) = (is_duplicate(&error), document.get("_id")) {
                        to.ensure_not_blocked(doc! { "_id": { "$eq": id } }, FilterOptions::default()).await?;
                    }
                    Err(to.meaning(error))
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

impl<T> Outcome for Option<T> {
    fn wrote(&self) -> bool {
        self.is_some()
    }
}

impl Outcome for DeleteResult {
    fn wrote(&self) -> bool {
        self.deleted_count > 0
    }
}

//! The single writes of a fenced collection.

use std::borrow::Borrow;

use mongodb::{
    bson::{Bson, Document, doc},
    options::{
        DeleteOptions, FindOneAndUpdateOptions, InsertOneOptions, ReplaceOptions, ReturnDocument, UpdateModifications,
        UpdateOptions,
    },
    results::{DeleteResult, InsertOneResult, UpdateResult},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Fenced, encode, write::FencedWrite};
use crate::{store::mongo::error::needs, types::error::Result};

impl<'a, T: Send + Sync> Fenced<'a, T> {
    /// Updates a document that the filter matches, by operators or by a pipeline.
    ///
    /// The result is the driver's. If it says that nothing matched, a second command has checked that no document was
    /// hidden by the fence.
    ///
    /// # Errors
    ///
    /// - [`Error::Fenced`](crate::Error::Fenced): a later holder has claimed or written the document. Nothing is changed.
    /// - [`Error::Lost`](crate::Error::Lost): the lease has ended. Nothing is sent.
    /// - [`Error::Unavailable`](crate::Error::Unavailable): the server did not confirm in time. The write may have been
    ///   made or not.
    /// - [`Error::Invalid`](crate::Error::Invalid): the update writes the field of the token, the filter of an upsert
    ///   names no `_id`, the document has something else in that field, or MongoDB refuses the write; then the driver's
    ///   error is the source.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after its first poll, the answer is lost, and the write may still be made.
    pub fn update_one(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> FencedWrite<'a, UpdateOptions, UpdateResult> {
        let update = update.into();
        self.write(
            needs::CHANGE,
            filter,
            None,
            |done| done.matched_count > 0,
            |token| token.on_update(update),
            |documents, filter, update, options| async move {
                documents.update_one(filter, update).with_options(options).await
            },
        )
    }

    /// Deletes a document that the filter matches. No token is left, so an earlier holder may insert the document
    /// again: if that matters, mark it as deleted instead.
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
            None,
            |done| done.deleted_count > 0,
            |_| Ok(()),
            |documents, filter, (), options| async move { documents.delete_one(filter).with_options(options).await },
        )
    }
}

impl<'a, T: DeserializeOwned + Send + Sync + 'static> Fenced<'a, T> {
    /// Claims a document that the filter matches: leaves the token there, and returns the document. From then on the fence
    /// refuses each earlier holder. So a holder begins with it: acquire, claim, work.
    ///
    /// One command reads and writes, so the document is what it was when the earlier holders were shut out. Nothing but the
    /// token changes. A second claim with the same token returns the document again. `None`: the filter matches no document.
    /// With [`upsert`](FencedWrite::upsert) a document is inserted then. The document is always as it is after the claim, whatever
    /// the options say.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one). If the document is not a `T`, it was still claimed.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use mongoseal::{Fence, Lease, mongodb::{Collection, bson::{Document, doc}}};
    /// # async fn pay(orders: Collection<Document>, lease: Lease) -> mongoseal::Result<()> {
    /// let fenced = orders.fenced(&lease);
    /// let Some(order) = fenced.claim(doc! { "_id": 4711 }).await? else { return Ok(()) };
    /// if order.get_bool("is_paid") != Ok(true) {
    ///     fenced.update_one(doc! { "_id": 4711 }, doc! { "$set": { "is_paid": true } }).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim(&self, filter: Document) -> FencedWrite<'a, FindOneAndUpdateOptions, Option<T>> {
        self.find_and_update(filter, doc! {}.into(), |options| options.return_document = Some(ReturnDocument::After))
    }

    /// Claims the documents with these ids, one after the other, and returns them in the order of the ids. `None`: there is
    /// no such document.
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim). The documents before the one that was refused stay claimed, which refuses earlier holders
    /// only.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the documents that it has claimed stay claimed, and the next one may still be claimed.
    pub async fn claim_all(&self, ids: impl IntoIterator<Item = impl Into<Bson>>) -> Result<Vec<Option<T>>> {
        let claims: Vec<_> = ids.into_iter().map(|id| self.claim(doc! { "_id": { "$eq": id.into() } })).collect();
        let mut found = Vec::with_capacity(claims.len());
        for claim in claims {
            found.push(claim.await?);
        }
        Ok(found)
    }

    /// Updates a document that the filter matches, and returns it as it was before or as it is after the update.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one). If the document is not a `T`, it was still written.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn find_one_and_update(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> FencedWrite<'a, FindOneAndUpdateOptions, Option<T>> {
        self.find_and_update(filter, update.into(), |_| ())
    }

    /// `set` is called with the caller's options.
    fn find_and_update(
        &self,
        filter: Document,
        update: UpdateModifications,
        set: fn(&mut FindOneAndUpdateOptions),
    ) -> FencedWrite<'a, FindOneAndUpdateOptions, Option<T>> {
        self.write(
            needs::CHANGE,
            filter,
            None,
            Option::is_some,
            |token| token.on_update(update),
            move |documents, filter, update, mut options| async move {
                set(&mut options);
                documents.clone_with_type().find_one_and_update(filter, update).with_options(options).await
            },
        )
    }
}

impl<'a, T: Serialize + Send + Sync> Fenced<'a, T> {
    /// Replaces a document that the filter matches. The token replaces what the replacement has in its field.
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
            None,
            |done| done.matched_count > 0,
            |token| token.on_document(replacement?),
            |documents, filter, replacement, options| async move {
                documents.replace_one(filter, replacement).with_options(options).await
            },
        )
    }

    /// Inserts a document with the token.
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one). If a document with this `_id` exists, the error is `Fenced` if a later
    /// holder has claimed or written it, and otherwise `Invalid` with the driver's duplicate key error.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn insert_one(&self, document: impl Borrow<T>) -> FencedWrite<'a, InsertOneOptions, InsertOneResult> {
        let document = encode::document(document.borrow());
        let id = document.as_ref().ok().and_then(|document| document.get("_id").cloned());
        self.write(
            needs::INSERT,
            doc! {},
            id,
            |_| true,
            |token| token.on_document(document?),
            |documents, _, document, options| async move { documents.insert_one(document).with_options(options).await },
        )
    }
}

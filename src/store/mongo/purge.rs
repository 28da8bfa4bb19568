//! Finds expired entries of records, and deletes idle records.
//!
//! Invariant: a delete checks in the same command that the record is idle.

use mongodb::bson::{Bson, Document, doc};

use super::{
    context::MongoContext,
    document,
    error::{self, needs},
    expression, index,
    limits::{server_limit, write_concern},
    list,
};
use crate::{
    store::answers::{Expired, ExpiredPage},
    types::{deadline::Deadline, error::Result, key::Key, token::FencingToken},
};

/// The most records of a page.
const MAX_EXPIRED_PAGE: u32 = 1_000;

impl MongoContext {
    pub(super) async fn list_expired(
        &self,
        after: Option<&str>,
        page_size: u32,
        deadline: Deadline,
    ) -> Result<ExpiredPage> {
        let page_size = page_size.clamp(1, MAX_EXPIRED_PAGE);
        let (rows, has_more) =
            self.rows(self.expired_pipeline(after, page_size), page_size, "majority", deadline).await?;
        let next = rows.last().filter(|_| has_more).and_then(|row| row.get_str("_id").ok()).map(str::to_owned);
        let expired = |row: &Document| {
            let key = list::key(row)?;
            if row.get_bool("idle").ok()? {
                let version = FencingToken::try_from(row.get_i64("version").ok()?).ok()?;
                Some(Expired::Idle { key, version })
            } else {
                Some(Expired::Lapsed { key })
            }
        };
        Ok(ExpiredPage { expired: rows.iter().filter_map(expired).collect(), next })
    }

    fn expired_pipeline(&self, after: Option<&str>, page_size: u32) -> Vec<Document> {
        // Of arrays only, in whichever order the server evaluates this.
        let has_expired = |array: &str| {
            doc! { "$anyElementTrue": [{ "$map": {
                "input": { "$cond": [{ "$isArray": array }, array, []] },
                "in": { "$lte": ["$$this.expires_at", "$$NOW"] },
            } }] }
        };
        let mut keys = doc! { "$type": "string" };
        if let Some(after) = after {
            keys.insert("$gt", after);
        }
        let mut records = doc! { "_id": keys, "$expr": expression::is_record_beside_entries() };
        records.extend(document::format_query());
        vec![
            doc! { "$match": records },
            // From the index, so that the server stops when the page is full.
            doc! { "$sort": { "_id": 1 } },
            doc! { "$project": {
                "version": 1,
                "idle": self.is_idle(),
                "expired": { "$or": [has_expired("$holders"), has_expired("$queue")] },
            } },
            doc! { "$match": { "$or": [{ "idle": true }, { "expired": true }] } },
            doc! { "$limit": i64::from(page_size) },
        ]
    }

    /// Whether the record has no holders and no waiters and has been idle for the retention: the condition of the TTL
    /// index.
    fn is_idle(&self) -> Document {
        let retention = index::retention_seconds(self.retention).saturating_mul(1000);
        doc! { "$and": [
            { "$eq": [["$holders", "$queue"], { "$literal": [[], []] }] },
            { "$lte": ["$expires_at", { "$subtract": ["$$NOW", retention] }] },
        ] }
    }

    pub(super) async fn delete_idle(&self, key: &Key, version: FencingToken, deadline: Deadline) -> Result<bool> {
        let idle = doc! { "$and": [expression::is_record_beside_entries(), self.is_idle()] };
        let query = doc! { "_id": key.as_str(), "v": document::FORMAT, "version": version, "$expr": idle };
        let delete = doc! {
            "delete": &self.collection,
            "deletes": [{ "q": query, "limit": 1 }],
            "writeConcern": write_concern(deadline),
            "maxTimeMS": server_limit(deadline),
        };
        let reply =
            self.raw_command(&self.database, delete).await.map_err(|error| self.translate(error, needs::REMOVE))?;
        error::ensure_written(&reply)?;
        Ok(reply.get("n").and_then(Bson::as_i32).is_some_and(|count| count > 0))
    }
}

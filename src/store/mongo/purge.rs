//! What a record can be cleared of, and the deletion of one that has been idle.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use super::{
    Inner, document,
    fault::{self, needs},
    index, list, server_limit, write_concern,
};
use crate::{
    FencingToken, Key, Result,
    store::{Expired, ExpiredPage},
};

/// The most records that are looked for at once.
const MOST: u32 = 1_000;

impl Inner {
    pub(super) async fn list_expired(&self, after: Option<&str>, most: u32, within: Duration) -> Result<ExpiredPage> {
        let most = most.clamp(1, MOST);
        let (rows, more) = self.rows(self.backlog(after, most), most, "majority", within).await?;
        let next = rows.last().filter(|_| more).and_then(|row| row.get_str("_id").ok()).map(str::to_owned);
        let overdue = |row: &Document| {
            let key = list::key(row)?;
            if row.get_bool("idle").ok()? {
                let version = FencingToken::try_from(row.get_i64("version").ok()?).ok()?;
                Some(Expired::Idle { key, version })
            } else {
                Some(Expired::Lapsed { key })
            }
        };
        Ok(ExpiredPage { expired: rows.iter().filter_map(overdue).collect(), next })
    }

    fn backlog(&self, after: Option<&str>, most: u32) -> Vec<Document> {
        // Of arrays only, whatever the server looks at first.
        let lapsed = |array: &str| {
            doc! { "$anyElementTrue": [{ "$map": {
                "input": { "$cond": [{ "$isArray": array }, array, []] },
                "in": { "$lte": ["$$this.expires_at", "$$NOW"] },
            } }] }
        };
        let mut keys = doc! { "$type": "string" };
        if let Some(after) = after {
            keys.insert("$gt", after);
        }
        let mut records = doc! { "_id": keys, "$expr": document::is_record_beside_entries() };
        records.extend(document::of_this_format());
        vec![
            doc! { "$match": records },
            doc! { "$project": {
                "version": 1,
                "idle": self.is_idle(),
                "lapsed": { "$or": [lapsed("$holders"), lapsed("$queue")] },
            } },
            doc! { "$match": { "$or": [{ "idle": true }, { "lapsed": true }] } },
            doc! { "$sort": { "_id": 1 } },
            doc! { "$limit": i64::from(most) },
        ]
    }

    /// Whether nobody holds or waits, and nobody has for the retention: what the TTL index goes by.
    fn is_idle(&self) -> Document {
        let retention = index::retention_seconds(self.retention).saturating_mul(1000);
        doc! { "$and": [
            { "$eq": [["$holders", "$queue"], { "$literal": [[], []] }] },
            { "$lte": ["$expires_at", { "$subtract": ["$$NOW", retention] }] },
        ] }
    }

    pub(super) async fn delete_idle(&self, key: &Key, version: FencingToken, within: Duration) -> Result<bool> {
        let idle = doc! { "$and": [document::is_record_beside_entries(), self.is_idle()] };
        let query = doc! { "_id": key.as_str(), "v": document::FORMAT, "version": version, "$expr": idle };
        let delete = doc! {
            "delete": &self.collection,
            "deletes": [{ "q": query, "limit": 1 }],
            "writeConcern": write_concern(within),
            "maxTimeMS": server_limit(within),
        };
        let reply =
            self.raw_command(&self.database, delete).await.map_err(|error| self.meaning(error, needs::REMOVE))?;
        fault::written(&reply)?;
        Ok(reply.get("n").and_then(Bson::as_i32).is_some_and(|count| count > 0))
    }
}

//! Lists of the leases of many keys.
//!
//! Mechanism: each page of a list is one aggregation, so that no cursor is kept open. The server reads a page from the
//! index on `_id`, from the key of the page before it on, and stops when the page is full. It narrows the rows by keys,
//! owner and group. The rest of a filter is applied to the rows, so a page can be empty although the list goes on.
//!
//! Invariant: a document of another program does not make a list fail.

use mongodb::bson::{Document, doc};
use tracing::debug;

use super::{
    context::{MongoContext, first_batch},
    document,
    error::{self, needs},
    expression,
    limits::server_limit,
    state::admission::ServerDeadline,
};
use crate::{
    record::{Filter, Position, StoreTime},
    store::answers::Page,
    types::{
        error::{Error, Result},
        key::Key,
        token::FencingToken,
    },
};

/// The most leases of a page. They fit in a reply of 16 MiB unless their metadata has very many tiny entries. If they
/// do not fit, the page ends sooner.
const MAX_PAGE: u32 = 2_000;

impl MongoContext {
    pub(super) async fn list(
        &self,
        filter: &Filter,
        after: Option<&Position>,
        page_size: u32,
        deadline: ServerDeadline,
    ) -> Result<Page> {
        let page_size = page_size.clamp(1, MAX_PAGE);
        let pipeline = pipeline(filter, after, page_size);
        let (rows, has_more) = self.rows(pipeline, page_size, deadline).await?;
        let next = if has_more { rows.last().map(position).transpose()? } else { None };
        let read = |row: &Document| {
            let lease = document::decode_listed(row);
            lease
                .inspect_err(
                    |message| debug!(id = ?row.get("_id"), message, "an entry is no lease: it is left out of the list"),
                )
                .ok()
                .filter(|lease| filter.admits(lease))
        };
        Ok(Page { leases: rows.iter().filter_map(read).collect(), next })
    }

    /// Reads the server's clock. A stage of facets returns one document, whatever the collection contains.
    pub(super) async fn now(&self, deadline: ServerDeadline) -> Result<StoreTime> {
        let pipeline = vec![
            doc! { "$limit": 1_i64 },
            doc! { "$facet": { "any": [{ "$limit": 1_i64 }] } },
            doc! { "$project": { "now": "$$NOW" } },
        ];
        let (rows, _) = self.rows(pipeline, 1, deadline).await?;
        let now =
            rows.first().ok_or_else(|| Error::unavailable("the collection of the leases is being created: retry"))?;
        Ok(StoreTime::from_millis(now.get_datetime("now").map_err(error::unreadable)?.timestamp_millis()))
    }

    /// Runs an aggregation that returns at most `page_size` documents. Returns them, and whether there may be more.
    async fn rows(
        &self,
        pipeline: Vec<Document>,
        page_size: u32,
        deadline: ServerDeadline,
    ) -> Result<(Vec<Document>, bool)> {
        let aggregate = doc! {
            "aggregate": &self.collection,
            "pipeline": pipeline,
            // One more than there can be, so that the server closes the cursor with the reply.
            "cursor": { "batchSize": document::int(page_size.saturating_add(1)) },
            "readConcern": { "level": "linearizable" },
            "maxTimeMS": server_limit(*deadline),
        };
        let reply = self.command(aggregate, needs::READ).await?;
        let cursor = reply.get_document("cursor").map_err(error::unreadable)?;
        let id = cursor.get_i64("id").map_err(error::unreadable)?;
        if id != 0 {
            // The reply was full. The next page begins where it ends.
            let kill = doc! { "killCursors": &self.collection, "cursors": [id] };
            let killed = self.command(kill, needs::READ).await;
            debug!(?killed, "the leases of a page do not fit in a reply: the page ends sooner");
        }
        let rows = first_batch(reply)?;
        let has_more = id != 0 || u32::try_from(rows.len()).is_ok_and(|count| count >= page_size);
        Ok((rows, has_more))
    }
}

/// Filters in the order that saves the server most work: keys, then records, then holders. [`Filter::admits`] does the rest
/// on the rows. A value of a caller is only compared with. No document of another program makes this fail.
fn pipeline(filter: &Filter, after: Option<&Position>, page_size: u32) -> Vec<Document> {
    let mut records = doc! {
        "_id": match_keys(filter, after),
        "$expr": expression::is_record_beside_entries(),
    };
    records.extend(document::format_query());
    if let Some(group) = &filter.group {
        // The group again, so that the server can use an index on groups.
        records.insert("holders.group", doc! { "$eq": group.as_str() });
    }
    // A transfer gives a holder a larger token, and leaves it in its place.
    let by_token = doc! { "$sortArray": { "input": "$holders", "sortBy": { "version": 1 } } };
    vec![
        doc! { "$match": records },
        doc! { "$sort": { "_id": 1 } },
        doc! { "$set": { "holders": by_token } },
        doc! { "$unwind": "$holders" },
        doc! { "$match": match_holders(filter, after) },
        doc! { "$limit": i64::from(page_size) },
        doc! { "$project": document::listing_projection() },
    ]
}

/// Matches `_id`s: a range, which the server reads from the index on them.
fn match_keys(filter: &Filter, after: Option<&Position>) -> Document {
    let mut keys = match_prefix(&filter.prefix);
    if let Some(position) = after {
        // A position has the prefix, so it is not before it.
        keys.insert("$gte", &position.key);
    }
    if let Some(key) = &filter.key {
        keys.insert("$eq", key.as_str());
    }
    keys
}

/// Matches the `_id`s that are texts with this prefix.
pub(super) fn match_prefix(prefix: &str) -> Document {
    let mut keys = doc! { "$type": "string" };
    if !prefix.is_empty() {
        keys.insert("$gte", prefix);
        if let Some(end) = prefix_end(prefix) {
            keys.insert("$lt", end);
        }
    }
    keys
}

/// The smallest text that is larger than each text with this prefix, if there is one. Texts compare byte by byte, which
/// for UTF-8 is character by character.
fn prefix_end(prefix: &str) -> Option<String> {
    let mut rest: Vec<char> = prefix.chars().collect();
    while let Some(last) = rest.pop() {
        // Skips the gap in the range of characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            rest.push(next);
            return Some(rest.into_iter().collect());
        }
    }
    None
}

/// Matches holders, after `$unwind` of `holders`: those with a token, behind the position, of the owner and of the group.
fn match_holders(filter: &Filter, after: Option<&Position>) -> Document {
    let mut holders = doc! {
        "holders.version": document::version_range(),
        "$expr": { "$eq": [{ "$type": "$holders.version" }, "long"] },
    };
    if let Some(Position { key, token }) = after {
        holders.insert("$or", vec![doc! { "_id": { "$gt": key } }, doc! { "holders.version": { "$gt": *token } }]);
    }
    if let Some(owner) = &filter.owner {
        holders.insert("holders.owner", doc! { "$eq": owner.as_str() });
    }
    if let Some(group) = &filter.group {
        holders.insert("holders.group", doc! { "$eq": group.as_str() });
    }
    holders
}

/// The position behind a row that [`match_holders`] has matched.
fn position(row: &Document) -> Result<Position> {
    let holder = row.get_document("holders").map_err(error::unreadable)?;
    let token = FencingToken::try_from(holder.get_i64("version").map_err(error::unreadable)?)?;
    Ok(Position { token, key: row.get_str("_id").map_err(error::unreadable)?.to_owned() })
}

/// The `_id` of a row as a key, if it is one.
pub(super) fn key(row: &Document) -> Option<Key> {
    row.get_str("_id").ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_with_it_and_before_all_else() {
        for (prefix, end) in [
            ("a", Some("b")),
            ("a/", Some("a0")),
            ("ключ", Some("клюш")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("", None),
        ] {
            assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}

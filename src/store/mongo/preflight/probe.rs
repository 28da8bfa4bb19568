//! Whether the collection accepts the updates of this store.
//!
//! Mechanism: the server explains an update by a pipeline with its clocks, and executes nothing. So a server without
//! such updates refuses before the first acquire. The plan also has the collation with which the collection compares.

use mongodb::bson::{Document, doc};
use tracing::debug;

use super::super::{
    context::MongoContext,
    error::{self, needs},
};
use crate::types::error::{Error, Result};

/// The codes of a server that cannot parse a command: bad value, failed to parse, type mismatch, command not supported,
/// not implemented, undefined variable, and a variable that this server does not have.
const UNKNOWN_UPDATE: [i32; 7] = [2, 9, 14, 115, 238, 17276, 51144];

/// The database does not exist, so the collection will be created without a collation.
const NAMESPACE_NOT_FOUND: i32 = 26;

/// Refuses a collection with a collation of its own, a server without updates by a pipeline, and a client that is not
/// logged in.
pub(super) async fn run(store: &MongoContext) -> Result<()> {
    let update = doc! {
        "findAndModify": &store.collection,
        // The plan of a query by the id alone has no collation.
        "query": { "_id": "", "v": 0 },
        "update": [{ "$set": { "last_seen": "$$NOW", "version": "$$CLUSTER_TIME" } }],
    };
    let explain = doc! { "explain": update, "verbosity": "queryPlanner" };
    match store.raw_command(explain).await {
        Ok(plan) => match find_collation(&plan) {
            None => Ok(()),
            Some(locale) => Err(Error::invalid(format!(
                "the collection {}.{} has a collation, {locale:?}, in which two keys can be equal: use a collection without a collation",
                store.database.name(),
                store.collection
            ))),
        },
        Err(error) if error::is_refused_with(&error, &UNKNOWN_UPDATE) => {
            Err(Error::invalid(
                "this server has no updates by a pipeline with $$NOW and $$CLUSTER_TIME, which mongoseal needs: use MongoDB 6.0 or later",
            )
            .caused_by(error::source(error)))
        }
        Err(error) if error::is_refused_with(&error, &[NAMESPACE_NOT_FOUND]) => Ok(()),
        // A user who may not hold leases may still read them, and a client of the stable API may not explain.
        Err(error) if error::is_not_permitted(&error) => {
            debug!(%error, "this user may not see the collation of the collection");
            Ok(())
        }
        Err(error) => Err(store.translate(error, needs::HOLD)),
    }
}

/// The locale of the collation in a plan, if there is one. The simple collation, which compares byte by byte, counts as
/// none.
fn find_collation(plan: &Document) -> Option<&str> {
    let planner = plan.get_document("queryPlanner").ok()?;
    let collation = planner.get_document("collation").ok()?;
    let locale = collation.get_str("locale").unwrap_or("?");
    (locale != "simple").then_some(locale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_with_any_collation_but_the_simple_one_is_seen() {
        let plan = |collation: Document| doc! { "queryPlanner": { "collation": collation } };
        assert_eq!(find_collation(&plan(doc! { "locale": "en", "strength": 2 })), Some("en"));
        assert_eq!(find_collation(&plan(doc! { "locale": "simple" })), None);
        assert_eq!(find_collation(&doc! { "queryPlanner": { "namespace": "d.c" } }), None);
        assert_eq!(find_collation(&doc! {}), None);
    }
}

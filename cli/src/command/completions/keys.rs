//! The keys that a shell completes.
//!
//! They are read without a handle of the library: that one creates the collection of the leases if it is missing, and a
//! completion must not write. A failure is silent, and so is a server that does not answer in time.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    command::driver::{Deployment, doc, first_batch},
    connection::{Connection, Product},
    exit_status::Failure,
    ui::output,
};

/// How long a shell waits for keys.
const LIMIT: Duration = Duration::from_millis(300);
const MAX_KEYS: i32 = 100;

/// Prints keys that begin with a text, one per line.
pub(super) async fn print(connection: &Connection, prefix: &str) -> Result<(), Failure> {
    let keys = timeout(LIMIT, read(connection, prefix)).await.ok().flatten().unwrap_or_default();
    Ok(output::lines(&keys)?)
}

async fn read(connection: &Connection, prefix: &str) -> Option<Vec<String>> {
    let (uri, Product::MongoDb) = connection.target().ok()? else { return None };
    let mut connection = connection.clone();
    connection.timeout = LIMIT;
    let deployment = Deployment::open(&uri, &connection, "completions").await.ok()?;
    let find = doc! {
        "find": &deployment.collection,
        "filter": { "_id": { "$gte": prefix, "$lt": format!("{prefix}{}", char::MAX) } },
        "sort": { "_id": 1 },
        "projection": { "_id": 1 },
        "limit": MAX_KEYS,
        "singleBatch": true,
    };
    let found = deployment.read(find, LIMIT).await;
    deployment.close().await;
    let found = found.ok()?;
    let keys = first_batch(&found).filter_map(|record| record.get_str("_id").ok()).filter(|key| is_plain(key));
    Some(keys.map(str::to_owned).collect())
}

/// Whether each shell reads the key as one word, without quotes.
fn is_plain(key: &str) -> bool {
    key.starts_with(char::is_alphanumeric)
        && key.chars().all(|character| character.is_alphanumeric() || "/._-+@%,:".contains(character))
}

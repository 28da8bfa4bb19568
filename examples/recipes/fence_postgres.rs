//! Fences rows of PostgreSQL: the token is in a column, and the statement that writes compares it.
//!
//!     cargo run -p mongoseal-tests --example fence_postgres     # on DATABASE_URL, or postgres://postgres@127.0.0.1/postgres
//!
//! If a statement meets an uncommitted write of its row, it waits for the end of that transaction, then compares with
//! the committed row (<https://www.postgresql.org/docs/current/transaction-iso.html>, Read Committed). At stricter
//! levels it fails with 40001 and must be sent again. So the largest token stays, in any order of the writers.
//!
//! Limits:
//! - Writers without the condition are not refused.
//! - A deleted row has no fence, so mark rows as deleted instead.
//! - For several rows, give the key a row of its own. Update that row first in the transaction, and roll back if the
//!   update was refused. The row's lock makes a later holder wait until the commit.
//! - A server that loses commits loses fences: after a crash with `synchronous_commit = off`, after the promotion of a
//!   standby that commits did not wait for, after a restore.

use mongoseal::{FencingToken, Mongoseal};
use tokio_postgres::{Client, Error, NoTls};

pub(crate) const TABLE: &str = "TABLE reports (name text PRIMARY KEY, body text NOT NULL, fence bigint NOT NULL)";

/// A row that may be new. `ON CONFLICT` locks the row before it looks at the condition.
const WRITE: &str = "
    INSERT INTO reports (name, body, fence) VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE SET body = excluded.body, fence = excluded.fence
    WHERE reports.fence <= excluded.fence";

/// A row that is there. Where it is not, this says 0 as it does for one that is fenced.
const UPDATE: &str = "UPDATE reports SET body = $2, fence = $3 WHERE name = $1 AND fence <= $3";

/// Shuts earlier holders out of a row that is there, and reads it.
const CLAIM: &str = "UPDATE reports SET fence = $2 WHERE name = $1 AND fence <= $2 RETURNING body";

/// Claims the report that is there, unless a larger token has: gives its body.
pub(crate) async fn claim(db: &Client, name: &str, token: FencingToken) -> Result<Option<String>, Error> {
    let row = db.query_opt(CLAIM, &[&name, &i64::from(token)]).await?;
    Ok(row.map(|row| row.get(0)))
}

/// Writes the report, new or not, unless a larger token has written it. Says whether it did.
pub(crate) async fn write(db: &Client, name: &str, body: &str, token: FencingToken) -> Result<bool, Error> {
    Ok(db.execute(WRITE, &[&name, &body, &i64::from(token)]).await? == 1)
}

/// Writes the report that is there, unless a larger token has written it. Says whether it did.
pub(crate) async fn update(db: &Client, name: &str, body: &str, token: FencingToken) -> Result<bool, Error> {
    Ok(db.execute(UPDATE, &[&name, &body, &i64::from(token)]).await? == 1)
}

/// The report and the token that wrote it.
pub(crate) async fn read(db: &Client, name: &str) -> Result<Option<(String, i64)>, Error> {
    let row = db.query_opt("SELECT body, fence FROM reports WHERE name = $1", &[&name]).await?;
    Ok(row.map(|row| (row.get(0), row.get(1))))
}

#[allow(clippy::disallowed_methods, reason = "the task ends with the client")]
pub(crate) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL").unwrap_or("postgres://postgres@127.0.0.1/postgres".into());
    let db = connect(&url).await?;
    // Gone with this connection.
    db.batch_execute(&format!("CREATE TEMPORARY {TABLE}")).await?;
    let seal = Mongoseal::in_memory();

    let first = seal.acquire("reports/nightly").await?;
    let older = first.token();
    assert!(write(&db, "nightly", "draft", older).await?, "nobody wrote it before");
    // Or loses it, and does not notice.
    first.release().await?;

    let second = seal.acquire("reports/nightly").await?;
    let newer = second.token();
    assert_eq!(claim(&db, "nightly", newer).await?, Some("draft".into()));
    assert!(!update(&db, "nightly", "late", older).await?, "the older token is refused before the newer one writes");
    assert!(update(&db, "nightly", "final", newer).await?, "a newer token writes");
    assert!(write(&db, "nightly", "final, again", newer).await?, "an equal one, too");

    assert!(!write(&db, "nightly", "late", older).await?, "the older one is refused with either statement");
    assert_eq!(claim(&db, "nightly", older).await?, None, "and claims nothing");
    assert_eq!(read(&db, "nightly").await?, Some(("final, again".into(), newer.into())));
    println!("PostgreSQL refused token {older}: {newer} has written");
    seal.shutdown().await;
    Ok(())
}

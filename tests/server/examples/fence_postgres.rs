//! PostgreSQL as the fence: the token in a column, compared by the very statement that writes.
//!
//!     cargo run -p mongoseal-tests --example fence_postgres     # on DATABASE_URL, or postgres://postgres@127.0.0.1/postgres
//!
//! A statement that meets an uncommitted write of its row waits for that one's end, then compares with what
//! was committed (<https://www.postgresql.org/docs/current/transaction-iso.html>, Read Committed); at stricter
//! levels it fails with 40001 and is sent again. So the largest token stays, whoever comes first.
//!
//! Limits: writers without the condition are not refused. A deleted row has no fence, so mark it as deleted.
//! For several rows give the key a row of its own, update that first in the transaction, and roll back where
//! it was refused: its lock keeps a later holder waiting until the commit. A server that lost commits lost
//! fences: a crash with `synchronous_commit = off`, a promoted standby that no commit waited for, a restore.

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
    assert!(update(&db, "nightly", "final", newer).await?, "a newer token writes");
    assert!(write(&db, "nightly", "final, again", newer).await?, "an equal one, too");

    assert!(!update(&db, "nightly", "late", older).await?, "the older one is refused");
    assert!(!write(&db, "nightly", "late", older).await?, "with either statement");
    assert_eq!(read(&db, "nightly").await?, Some(("final, again".into(), newer.into())));
    println!("PostgreSQL refused token {older}: {newer} has written");
    seal.shutdown().await;
    Ok(())
}

//! The example `fence_postgres`.

use std::time::{Duration, Instant};

use mongoseal::FencingToken;
use mongoseal_test_support::Postgres;
use tokio_postgres::Client;

use crate::{
    example,
    fence_postgres::{TABLE, connect, read, update, write},
    race::{Storage, race},
};

pub(crate) async fn the_example_runs_on_a_real_server() {
    let server = Postgres::start().await;
    example("fence_postgres", Some(("DATABASE_URL", server.url())), "PostgreSQL refused token").await;
}

impl Storage for Client {
    async fn write(&mut self, token: FencingToken) -> bool {
        let body = token.to_string();
        // Either statement, unless the row may not be there.
        if fastrand::bool() && read(self, "raced").await.unwrap().is_some() {
            update(self, "raced", &body, token).await.unwrap()
        } else {
            write(self, "raced", &body, token).await.unwrap()
        }
    }

    async fn read(&mut self) -> Option<(String, u64)> {
        let (body, fence) = read(self, "raced").await.unwrap()?;
        Some((body, fence.try_into().unwrap()))
    }
}

pub(crate) async fn the_largest_of_racing_tokens_stays() {
    let server = Postgres::start().await;
    let mut clients = Vec::new();
    for _ in 0..17 {
        clients.push(connect(&server.url()).await.unwrap());
    }
    clients[0].batch_execute(&format!("CREATE {TABLE}")).await.unwrap();
    race(clients).await;
}

/// The statement began when the smaller token was all that was committed.
pub(crate) async fn a_statement_that_waits_compares_with_what_was_committed() {
    let server = Postgres::start().await;
    let (newer, older) = (connect(&server.url()).await.unwrap(), connect(&server.url()).await.unwrap());
    newer.batch_execute(&format!("CREATE {TABLE}")).await.unwrap();
    let token = |number| FencingToken::new(number).unwrap();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        newer.batch_execute("DELETE FROM reports").await.unwrap();
        older.batch_execute(&format!("SET default_transaction_isolation = '{level}'")).await.unwrap();
        write(&newer, "r", "first", token(5)).await.unwrap();
        for statement in ["upsert", "update"] {
            newer.batch_execute("BEGIN").await.unwrap();
            assert!(write(&newer, "r", "newer", token(7)).await.unwrap());
            let late = async {
                match statement {
                    "upsert" => write(&older, "r", "late", token(6)).await,
                    _ => update(&older, "r", "late", token(6)).await,
                }
            };
            let commit = async {
                waits_for_a_lock(&newer).await;
                newer.batch_execute("COMMIT").await.unwrap();
            };
            let (late, ()) = tokio::join!(late, commit);
            match late {
                Ok(written) => assert!(!written && level == "READ COMMITTED", "{level}, {statement}"),
                Err(error) => {
                    assert_eq!(error.code().unwrap().code(), "40001", "{level}, {statement}");
                    assert!(!write(&older, "r", "late", token(6)).await.unwrap(), "when it is sent again");
                }
            }
            assert_eq!(read(&newer, "r").await.unwrap(), Some(("newer".into(), 7)), "{level}, {statement}");
            newer.execute("UPDATE reports SET fence = 5", &[]).await.unwrap();
        }
    }
}

/// Until a statement of somebody else's waits for a row.
async fn waits_for_a_lock(db: &Client) {
    let begin = Instant::now();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    while db.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

//! A leader election: one of several processes leads, and its writes are fenced by its token. Start it in three
//! terminals, and stop or kill one of them:
//!
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' cargo run --example leader -- NAME
//!
//! A line on the standard input makes the leader resign. The end of the input, or Ctrl-C, ends the process.

use std::{env, time::Duration};

use mongoseal::{
    CancellationToken, Error, Fence, Mongoseal, Result,
    election::Leader,
    mongodb::{
        Client, Collection,
        bson::{Document, doc},
    },
};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::main]
async fn main() -> Result<()> {
    let name = env::args().nth(1).unwrap_or_else(|| format!("process {}", std::process::id()));
    let uri = env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://127.0.0.1/?replicaSet=rs0".into());
    let ttl = env::var("TTL_MS").ok().and_then(|ttl| ttl.parse().ok()).unwrap_or(5_000);
    let client = Client::with_uri_str(&uri).await?;
    let database = client.default_database().unwrap_or_else(|| client.database("mongoseal"));
    let board: Collection<Document> = database.collection("board");
    // The leases have a client of their own: a refresh does not wait for a connection behind slow queries.
    let seal = Mongoseal::builder().owner(name.as_str()).connect(&uri).await?;
    // Shuts the handle down, also if the campaign fails.
    seal.scope(async |seal| campaign(seal, &board, &name, Duration::from_millis(ttl)).await).await
}

async fn campaign(seal: &Mongoseal, board: &Collection<Document>, name: &str, ttl: Duration) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let end = CancellationToken::new();
    let on_ctrl_c = end.clone();
    #[allow(clippy::disallowed_methods, reason = "ends with the process")]
    tokio::spawn(async move {
        tokio::signal::ctrl_c().await.ok();
        on_ctrl_c.cancel();
    });
    println!("{name} started");
    // After a resignation it campaigns again, behind the other candidates.
    while !end.is_cancelled() {
        let elector = seal
            .campaign("scheduler")
            .value(name)
            .ttl(ttl)
            .elector()
            .on_new_leader(|leader| println!("{} leads with token {}", leader.value, leader.token))
            .on_stopped(|| println!("stopped"))
            .until(end.clone());
        let resigned = elector.run(async |leader| {
            tokio::select! {
                result = work(leader, board, name) => result,
                line = lines.next_line() => {
                    if !matches!(line, Ok(Some(_))) {
                        end.cancel();
                    }
                    Ok(())
                }
            }
        });
        match resigned.await {
            Ok(_resigned_or_ended) => {}
            Err(wrong @ (Error::Invalid { .. } | Error::Corrupt { .. })) => return Err(wrong),
            Err(refused) => println!("refused: {refused}"), // a later leader has written: nothing was written
        }
    }
    Ok(())
}

/// Writes that only the leader makes: each is refused once a later leader has written.
async fn work(leader: &Leader, board: &Collection<Document>, name: &str) -> Result<()> {
    println!("begins with token {}", leader.token());
    let write = doc! { "$push": { "log": { "by": name, "token": leader.token() } } };
    loop {
        board.fenced(leader.lease()).update_one(doc! { "_id": "scheduler" }, write.clone()).upsert(true).await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

//! Migrations: all pods of a release start together. Each step is run by one of them, in order, and no pod starts before all
//! steps that it knows are completed. If a pod dies, another one runs the step that was not completed. A pod of an older
//! release is refused. `docs/migrations.md` explains it. Start as many pods as you like:
//!
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' cargo run --example migrations -- NAME [STEPS]
//!
//! A pod with fewer STEPS than the others is one of an older release.

use std::{env, process::ExitCode, time::Duration};

use mongoseal::{
    Error, Mongoseal, OnceOutcome, Result, Skipped, Tick, TickLease,
    action::RunOnce,
    mongodb::{
        Client, ClientSession, Database, IndexModel,
        bson::{Document, doc},
    },
};
use tokio::time::sleep;

/// The steps, from 1 on. A release adds steps at the end. A step that was released never changes.
const STEPS: [&str; 6] = [
    "index the products",
    "add products",
    "write prices in cents",
    "add the stock",
    "count the spare box",
    "index the stock",
];

#[tokio::main]
async fn main() -> ExitCode {
    let name = env::args().nth(1).unwrap_or_else(|| format!("process {}", std::process::id()));
    let known = env::args().nth(2).and_then(|steps| steps.parse().ok()).unwrap_or(STEPS.len());
    match migrate(&name, &STEPS[..known.min(STEPS.len())]).await {
        Ok(()) => {
            println!("{name} starts"); // from here on it serves requests
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{name} does not start: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn migrate(name: &str, steps: &[&str]) -> Result<()> {
    let uri = env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://127.0.0.1/?replicaSet=rs0".into());
    let client = Client::with_uri_str(&uri).await?;
    let database = client.default_database().unwrap_or_else(|| client.database("mongoseal"));
    // The ttl is how long the others wait for a pod that died.
    let seal = Mongoseal::builder().owner(name).ttl(Duration::from_millis(1_500)).on_shared_client(&database)?;
    let migrated = seal.scope(async |seal| run_open_steps(seal, &database, name, steps).await).await;
    // Otherwise a task of the driver can outlive the runtime, and prints that it has panicked.
    client.shutdown().immediate(true).await;
    migrated
}

async fn run_open_steps(seal: &Mongoseal, database: &Database, name: &str, steps: &[&str]) -> Result<()> {
    let newest = steps.len() as u64;
    for (step, what) in (1..).zip(steps) {
        loop {
            // Kept for as long as possible: without the last completed step, a pod of an older release would start. Without a
            // wait in the queue, whose refreshes would make the transaction of the step start over.
            let once = seal.once("schema", Tick::number(step)).keep_for(RunOnce::MAX_KEEP).wait(Duration::ZERO);
            let ran = once.run(async |lease| {
                println!("{name} runs step {step}: {what}");
                run_step(step, lease, database).await
            });
            match ran.await {
                Ok(OnceOutcome::Skipped(Skipped::Superseded { tick, by, .. })) if tick > newest => {
                    return Err(Error::invalid(format!(
                        "{by} has run step {tick}, and this release knows {newest}: deploy a later release"
                    )));
                }
                Ok(OnceOutcome::Skipped(Skipped::Busy { .. })) => {} // another pod holds the key: retry
                // Steps are completed in order: if a later one is, this one is, too.
                Ok(_) => break,
                Err(error @ (Error::Lost { .. } | Error::Unavailable { .. })) => println!("{name} retries: {error}"),
                Err(error) => return Err(error),
            }
            sleep(Duration::from_millis(250)).await;
        }
    }
    Ok(())
}

async fn run_step(step: u64, lease: &TickLease, database: &Database) -> Result<()> {
    // An index is no part of a transaction. It is tried at least once, and twice does no harm.
    let index = match step {
        1 => Some(("products", "name")),
        6 => Some(("stock", "box")),
        _ => None,
    };
    if let Some((collection, field)) = index {
        let index = IndexModel::builder().keys(doc! { field: 1 }).build();
        database.collection::<Document>(collection).create_index(index).await?;
    }
    let (schema, id) = (database.collection::<Document>("schema"), i64::try_from(step).unwrap_or(i64::MAX));
    lease
        .lease()
        .transaction(async |session| {
            // A pod can die between this commit and the completion of its step. Then the step is in here.
            if schema.find_one(doc! { "_id": id }).session(&mut *session).await?.is_some() {
                return Ok(());
            }
            schema.insert_one(doc! { "_id": id, "token": lease.token() }).session(&mut *session).await?;
            change(step, session, database).await
        })
        .await
}

/// What a step changes, in its transaction. So it need not be repeatable.
async fn change(step: u64, session: &mut ClientSession, database: &Database) -> Result<()> {
    let (products, stock) = (database.collection::<Document>("products"), database.collection::<Document>("stock"));
    match step {
        2 => {
            let new = ["pen", "ink"].map(|name| doc! { "_id": name, "name": name, "price": 3 });
            products.insert_many(new).session(session).await?;
        }
        3 => {
            products.update_many(doc! {}, doc! { "$mul": { "price": 100 } }).session(session).await?;
        }
        4 => {
            stock.insert_one(doc! { "_id": "pen", "box": 7, "count": 10 }).session(session).await?;
        }
        5 => {
            stock.update_one(doc! { "_id": "pen" }, doc! { "$inc": { "count": 1 } }).session(session).await?;
        }
        _ => {}
    }
    Ok(())
}

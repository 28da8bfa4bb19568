//! A job worker: several workers share jobs, which are documents. A worker owns a job by a lease and writes its
//! progress through the fence. If a worker dies, another one resumes from the last checkpoint. If the first one comes
//! back, its writes are refused. Start as many workers as you like:
//!
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' cargo run --example job_worker -- NAME
//!
//! The effect of a step and its checkpoint are one write, so both are in the document of the job. If the effects are
//! elsewhere, `Lease::put_value` keeps the checkpoint with the key, without a collection.
//!
//! It inserts six jobs if there are none, and ends when all are finished.

use std::{env, time::Duration};

use mongoseal::{
    Error, Fence, Lease, Mongoseal, Result,
    mongodb::{
        Client, Collection,
        bson::{Document, doc},
        options::ReturnDocument,
    },
};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<()> {
    let name = env::args().nth(1).unwrap_or_else(|| format!("process {}", std::process::id()));
    let uri = env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://127.0.0.1/?replicaSet=rs0".into());
    let client = Client::with_uri_str(&uri).await?;
    let database = client.default_database().unwrap_or_else(|| client.database("mongoseal"));
    let jobs: Collection<Document> = database.collection("jobs");
    if jobs.find_one(doc! {}).await?.is_none() {
        let new = (1..=6).map(|id| doc! { "_id": id, "steps": 5, "done": 0, "log": [] });
        drop(jobs.insert_many(new).ordered(false).await); // another worker may have inserted them
    }
    // The leases have a client of their own: a refresh does not wait for a connection behind slow queries.
    let seal = Mongoseal::builder().owner(name.as_str()).ttl(Duration::from_millis(1_500)).connect(&uri).await?;
    // Shuts the handle down, also if the work fails.
    seal.scope(async |seal| work_on_open_jobs(seal, &jobs, &name).await).await
}

async fn work_on_open_jobs(seal: &Mongoseal, jobs: &Collection<Document>, name: &str) -> Result<()> {
    let open = doc! { "$expr": { "$lt": ["$done", "$steps"] } };
    while jobs.find_one(open.clone()).await?.is_some() {
        // A random open job, so that workers do not all choose the same one.
        let some = vec![doc! { "$match": &open }, doc! { "$sample": { "size": 1 } }];
        let mut found = jobs.aggregate(some).await?;
        if !found.advance().await? {
            break;
        }
        let id = found.deserialize_current()?.get_i32("_id").unwrap_or_default();
        let outcome = match seal.acquire(format!("jobs/{id}")).await {
            Ok(lease) => lease.run(work(jobs, &lease, id, name)).await.and_then(|done| done),
            Err(held) => Err(held),
        };
        match outcome {
            Ok(()) => println!("{name} finished job {id}"),
            Err(Error::Held { .. }) => sleep(Duration::from_millis(20)).await, // another worker has it
            Err(error @ (Error::Fenced { .. } | Error::Lost { .. })) => println!("{name} leaves job {id}: {error}"),
            Err(Error::Unavailable { .. }) => println!("{name} retries"), // a write may have been applied: read again
            Err(error) => return Err(error),
        }
    }
    println!("{name} sees no open job");
    Ok(())
}

/// Does the rest of a job. A step and its checkpoint are one write.
async fn work(jobs: &Collection<Document>, lease: &Lease, id: i32, name: &str) -> Result<()> {
    let jobs = jobs.fenced(lease);
    // From here on, writes of earlier owners are refused.
    let mut next = jobs.claim(doc! { "_id": id }).await?;
    while let Some(job) = next {
        let (done, steps) = (job.get_i32("done").unwrap_or_default(), job.get_i32("steps").unwrap_or_default());
        if done >= steps {
            break;
        }
        sleep(Duration::from_millis(30)).await; // the work
        let entry = doc! { "step": done, "by": name, "token": lease.token() };
        let step = doc! { "$set": { "done": done + 1 }, "$push": { "log": entry } };
        let written = jobs.find_one_and_update(doc! { "_id": id, "done": done }, step);
        next = written.return_document(ReturnDocument::After).await?;
    }
    Ok(())
}

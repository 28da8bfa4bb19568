//! A program without async: its threads share one handle. Each waits for a key, computes under the lease, and releases it.
//!
//!     cargo run --features blocking --example blocking                                   # in memory
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' cargo run --features blocking --example blocking

use std::{thread, time::Duration};

use mongoseal::{
    Result,
    blocking::{Lease, Mongoseal},
};

const WORKERS: u64 = 3;

fn main() -> Result<()> {
    // Shuts the handle down, also if a worker fails.
    let sums = open()?.scope(|seal| {
        thread::scope(|threads| {
            let workers: Vec<_> = (1..=WORKERS).map(|worker| threads.spawn(move || take_turn(seal, worker))).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker does not panic"))
                .collect::<Result<Vec<u64>>>()
        })
    })?;
    println!("the sums are {sums:?}");
    Ok(())
}

/// Waits for the key, and computes while the lease is held.
fn take_turn(seal: &Mongoseal, worker: u64) -> Result<u64> {
    let lease = seal.acquire("reports/nightly").ttl(Duration::from_secs(2)).wait(Duration::from_secs(60)).run()?;
    println!("worker {worker} holds {:?} with token {}", lease.key(), lease.token());
    // `run` returns an error if the lease was lost before the work had ended. The inner result is that of the work.
    let sum = lease.run(|lease| compute(lease, worker))??;
    lease.release()?;
    Ok(sum)
}

/// Computes, and leaves if the lease is lost. The threads of the handle refresh the lease meanwhile.
fn compute(lease: &Lease, worker: u64) -> Result<u64> {
    let mut sum = 0_u64;
    for step in 1..=1_000 {
        lease.check()?;
        sum += (0..1_000).map(|number| number % (step + worker)).sum::<u64>();
    }
    Ok(sum)
}

/// Opens a handle: on MongoDB if `MONGODB_URI` is set, otherwise in memory.
fn open() -> Result<Mongoseal> {
    if let Ok(uri) = std::env::var("MONGODB_URI") {
        println!("on the replica set of MONGODB_URI");
        return Mongoseal::connect(uri);
    }
    println!("in memory; set MONGODB_URI to run on a MongoDB replica set");
    Mongoseal::in_memory()
}

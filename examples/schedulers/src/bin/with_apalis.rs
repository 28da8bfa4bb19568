//! A worker of `apalis` that runs a job once for each tick of `apalis-cron` over all processes. Start as many as you like:
//!
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' \
//!         cargo run --manifest-path examples/schedulers/Cargo.toml --bin with_apalis -- NAME
//!
//! `apalis-cron` tells the job for which time it calls it. This time is the tick, also if the job starts late or again. It is a time
//! of the clock of this machine: if that is ahead by more than the period, the tick is refused.
//!
//! If the worker cannot poll its schedule for longer than a period, `apalis-cron` 1.0 ends it with an error, and the program exits:
//! a supervisor starts it again. So a job does not block the thread.

use std::{error::Error, str::FromStr};

use apalis::prelude::*;
use apalis_cron::{CronScheduler, Tick};
use cron::Schedule;
use mongoseal_schedulers::{CRON, PERIOD, Reporter};

async fn report(tick: Tick, reporter: Data<Reporter>) -> mongoseal::Result<()> {
    let millis = tick.get_timestamp() * 1_000;
    reporter.report(mongoseal::Tick::at_millis(millis).period(PERIOD)).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let reporter = Reporter::connect().await?;
    let worker = WorkerBuilder::new("reports")
        .backend(CronScheduler::new(Schedule::from_str(CRON)?))
        .retry(RetryPolicy::retries(3))
        .data(reporter.clone())
        .build(report);
    worker.run_until(tokio::signal::ctrl_c()).await?;
    reporter.shutdown().await;
    Ok(())
}

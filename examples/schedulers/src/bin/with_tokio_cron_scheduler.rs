//! A job of `tokio-cron-scheduler` that runs once for each tick over all processes. Start as many as you like:
//!
//!     MONGODB_URI='mongodb://db0,db1,db2/app?replicaSet=rs0' \
//!         cargo run --manifest-path examples/schedulers/Cargo.toml --bin with_tokio_cron_scheduler -- NAME
//!
//! This scheduler does not tell the job for which time it calls it. So the tick is the time of MongoDB, cut to the period. If the
//! clock of this machine is ahead, it calls the job in the period before: let the job of an hour start some minutes after the hour.

use std::error::Error;

use mongoseal::Tick;
use mongoseal_schedulers::{CRON, PERIOD, Reporter};
use tokio_cron_scheduler::{Job, JobScheduler};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let reporter = Reporter::connect().await?;
    let mut scheduler = JobScheduler::new().await?;
    let job = {
        let reporter = reporter.clone();
        Job::new_async(CRON, move |_id, _scheduler| {
            let reporter = reporter.clone();
            Box::pin(async move {
                // `report` has printed the error, and the scheduler takes none.
                reporter.report(Tick::of(PERIOD)).await.ok();
            })
        })?
    };
    scheduler.add(job).await?;
    scheduler.start().await?;
    tokio::signal::ctrl_c().await?;
    scheduler.shutdown().await?;
    reporter.shutdown().await;
    Ok(())
}

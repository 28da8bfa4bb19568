//! `mongoseal run`.

use std::time::Duration;

use mongoseal::{Lease, LeaseId, Mongoseal};

use crate::{
    acquire,
    arguments::Run,
    connection::Connection,
    exit_status::{Failure, Status},
    guard::protocol::Times,
    job,
    signals::Signals,
};

pub(crate) async fn perform(connection: &Connection, options: Run) -> Result<Status, Failure> {
    let times = Times::of(&options.lease)?;
    let mut signals = Signals::terminating()?;
    let seal = acquire::open(connection, &options.lease, &mut signals).await?;
    let lease = acquire::unless_signalled(&seal, &mut signals, acquire(&seal, &options)).await?;
    let verdict = match job::run(&lease, times, &options.command, &mut signals).await {
        Ok(end) => job::verdict(&lease, &end),
        Err(failure) => Err(failure),
    };
    job::finish(&seal, &mut signals, lease.remaining(), lease.release(), verdict).await
}

async fn acquire(seal: &Mongoseal, options: &Run) -> mongoseal::Result<Lease> {
    let wait = if options.no_wait { Duration::ZERO } else { options.wait.unwrap_or(Duration::MAX) };
    // All attempts use one lease id, so that a lost reply does not cost the place in the queue.
    let id = LeaseId::random();
    acquire::acquire(seal, &options.key, wait, |wait| {
        let acquire = seal.acquire(options.key.as_str()).ttl(options.lease.ttl).lease_id(id).wait(wait);
        match options.shared {
            Some(holders) => acquire.shared_up_to(holders),
            None => acquire,
        }
        .into_future()
    })
    .await
}

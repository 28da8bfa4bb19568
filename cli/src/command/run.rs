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
    let times = Times::of(&options.asking)?;
    let mut signals = Signals::that_end()?;
    let seal = acquire::open(connection, &options.asking, &mut signals).await?;
    let lease = acquire::given(&seal, &mut signals, acquire(&seal, &options)).await?;
    let verdict = match job::run(&lease, times, &options.command, &mut signals).await {
        Ok(end) => job::verdict(&lease, &end),
        Err(failure) => Err(failure),
    };
    job::finish(&seal, &mut signals, lease.remaining(), lease.release(), verdict).await
}

async fn acquire(seal: &Mongoseal, options: &Run) -> mongoseal::Result<Lease> {
    let wait = if options.no_wait { Duration::ZERO } else { options.wait.unwrap_or(Duration::MAX) };
    // The same each time it is asked, so that a place in the queue is not lost where an answer was.
    let id = LeaseId::random();
    acquire::acquire(seal, &options.key, wait, |wait| {
        let asked = seal.acquire(options.key.as_str()).ttl(options.asking.ttl).lease_id(id).wait(wait);
        match options.shared {
            Some(holders) => asked.shared_up_to(holders),
            None => asked,
        }
        .into_future()
    })
    .await
}

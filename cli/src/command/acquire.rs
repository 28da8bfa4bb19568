//! `mongoseal acquire`: acquires a key, writes its lease to a file, and ends without a release.

use std::{slice, time::Duration};

use mongoseal::{Error, Lease, Mongoseal};
use serde_json::json;

use super::lease_file::LeaseFile;
use crate::{
    acquire::{self, Wait, with_terms},
    arguments::Acquire,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    leases::Leases,
    ui::json::Until,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Acquire) -> Result<Status, Failure> {
    let mut signals = Signals::terminating()?;
    let mut file = LeaseFile::create(&options.lease_file, connection)?;
    let seal = acquire::open(connection, options.owner.as_deref(), &mut signals).await?;
    let lease = acquire::unless_signalled(&seal, &mut signals, &options.wait, acquire(&seal, &options)).await?;
    let left = file.write(&lease).and_then(|()| print(&lease, options.json));
    if left.is_ok() {
        file.keep();
        lease.orphan();
    } else {
        drop(lease);
    }
    signals.finish(seal.shutdown()).await.unwrap_or_default();
    left.map(|()| Status::DONE)
}

async fn acquire(seal: &Mongoseal, options: &Acquire) -> mongoseal::Result<Lease> {
    let wait = Wait::new(seal, slice::from_ref(&options.key), &options.wait);
    let attempt = |wait: Duration| {
        let acquire = with_terms!(seal.acquire(options.key.as_str()), &options.terms);
        acquire.ttl(options.ttl).without_refresh().wait(wait).into_future()
    };
    let lease = wait.acquire(attempt).await?;
    // A lease that was handed over has lost up to a third of its ttl.
    if lease.remaining() < options.ttl.mul_f64(0.95)
        && let Err(error @ Error::Lost { .. }) = lease.refresh().await
    {
        return Err(error);
    }
    wait.report_grant(&Leases::of([&lease], None));
    Ok(lease)
}

/// Prints the lease. If the reader has closed the pipe, the file still has the token.
fn print(lease: &Lease, is_json: bool) -> Result<(), Failure> {
    let until = Until::of(lease);
    let view = json!({
        "key": lease.key().as_str(),
        "owner": lease.owner().as_str(),
        "token": lease.token().get(),
        "remaining_ms": until.remaining_ms,
        "deadline_ms": until.deadline_ms,
    });
    match output::json_or_line(is_json, &view, &lease.token().to_string()) {
        Err(error) if !output::ReaderGone::is_cause_of(&error) => {
            let message = format!("cannot print the token, so the key is not held: {error}");
            Err(Failure::invalid(message))
        }
        _ => Ok(()),
    }
}

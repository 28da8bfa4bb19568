//! `mongoseal acquire`: acquires a key, writes its lease to a file, and ends without a release.

use std::{io, slice, time::Duration};

use mongoseal::{Error, Lease, Mongoseal};
use serde::Serialize;

use super::lease_file::LeaseFile;
use crate::{
    acquire::{self, Wait, with_terms},
    arguments::Acquire,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    ui::json::Until,
    ui::output,
};

/// The lease, as JSON.
#[derive(Serialize)]
struct View<'a> {
    key: &'a str,
    owner: &'a str,
    token: u64,
    #[serde(flatten)]
    until: Until,
}

pub(crate) async fn perform(connection: &Connection, options: Acquire) -> Result<Status, Failure> {
    let mut signals = Signals::terminating()?;
    let mut file = LeaseFile::create(&options.place, connection)?;
    let seal = acquire::open(connection, options.owner.as_deref(), &mut signals).await?;
    let acquired = acquire::unless_signalled(&seal, &mut signals, acquire(&seal, &options)).await;
    let lease = acquired.map_err(|failure| options.wait.status_of(failure))?;
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
    wait.report_grant(&(&lease).into());
    Ok(lease)
}

/// Prints the lease. If the reader has closed the pipe, the file still has the token.
fn print(lease: &Lease, is_json: bool) -> Result<(), Failure> {
    let printed = if is_json {
        let (key, owner, token) = (lease.key().as_str(), lease.owner().as_str(), lease.token().get());
        output::json(&View { key, owner, token, until: Until::of(lease) })
    } else {
        output::line(&lease.token().to_string())
    };
    match printed {
        Err(error) if !output::ReaderGone::is_cause_of(&error) => {
            let message = format!("cannot print the token, so the key is not held: {error}");
            Err(Failure::internal(io::Error::new(error.kind(), message)))
        }
        _ => Ok(()),
    }
}

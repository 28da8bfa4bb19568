//! `mongoseal run`.

use mongoseal::{LeaseSet, Mongoseal, ReleaseOutcome};

use crate::{
    acquire::{self, Wait, with_terms},
    arguments::Run,
    command::status_file::{self, StatusFile},
    connection::Connection,
    exit_status::{Failure, Status},
    job,
    job::guard::protocol::Times,
    job::signals::Signals,
    leases::{Leases, is_end_of_time},
};

pub(crate) async fn perform(connection: &Connection, options: Run) -> Result<Status, Failure> {
    let file = options.status_file.as_deref().map(StatusFile::create).transpose()?;
    let mut seen = status_file::Run::default();
    let result = run(connection, &options, &mut seen).await;
    if let Some(file) = file {
        file.write(&seen, &result);
    }
    result
}

async fn run(connection: &Connection, options: &Run, seen: &mut status_file::Run) -> Result<Status, Failure> {
    let times = Times::of(&options.lease, options.hold.max_hold)?;
    let mut signals = Signals::terminating()?;
    let seal = acquire::open(connection, options.lease.owner.as_deref(), &mut signals).await?;
    let set = acquire::unless_signalled(&seal, &mut signals, &options.wait, acquire(&seal, options)).await?;
    let leases = Leases::of(&set, None);
    seen.granted(&leases);
    let end = job::perform(connection, &leases, times, &options.command, &mut signals).await;
    let verdict = end.and_then(|end| {
        seen.ended(end);
        job::verdict(&leases, end)
    });
    let remaining = leases.remaining();
    job::finish(&seal, &mut signals, remaining, release(set), verdict).await
}

/// Releases all leases. Returns the outcome of the first that was lost before its expiry.
async fn release(set: LeaseSet) -> mongoseal::Result<ReleaseOutcome> {
    let is_taken =
        |outcome: &ReleaseOutcome| matches!(outcome, ReleaseOutcome::AlreadyLost { cause } if !is_end_of_time(cause));
    let taken = set.release().await?.into_iter().map(|(_, outcome)| outcome).find(is_taken);
    Ok(taken.unwrap_or(ReleaseOutcome::Released))
}

async fn acquire(seal: &Mongoseal, options: &Run) -> mongoseal::Result<LeaseSet> {
    let attempt = |wait| {
        let mut acquire = with_terms!(seal.acquire_all(&options.keys), &options.terms).wait(wait);
        if let Some(time) = options.hold.min_hold {
            acquire = acquire.min_hold(time);
        }
        if let Some(time) = options.hold.max_hold {
            acquire = acquire.max_hold(time);
        }
        if options.without_expiry { acquire.without_expiry() } else { acquire.ttl(options.lease.ttl) }.into_future()
    };
    let wait = Wait::new(seal, &options.keys, &options.wait);
    let set = wait.acquire(attempt).await?;
    wait.report_grant(&Leases::of(&set, None));
    Ok(set)
}

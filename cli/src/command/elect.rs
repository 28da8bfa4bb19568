//! `mongoseal elect`.

use std::time::Duration;

use mongoseal::{Leader, LeaseState, Mongoseal};

use crate::{
    acquire,
    arguments::Elect,
    connection::Connection,
    exit_status::{Failure, Status},
    guard::protocol::Times,
    job, say,
    signals::Signals,
};

pub(crate) async fn perform(connection: &Connection, options: Elect) -> Result<Status, Failure> {
    let times = Times::of(&options.asking)?;
    let mut signals = Signals::that_end()?;
    let seal = acquire::open(connection, &options.asking, &mut signals).await?;
    let leader = acquire::given(&seal, &mut signals, campaign(&seal, &options)).await?;
    let lease = leader.lease();
    let verdict = if options.command.is_empty() {
        lead(&leader, &mut signals).await
    } else {
        match job::run(lease, times, &options.command, &mut signals).await {
            Ok(end) => job::verdict(lease, &end),
            Err(failure) => Err(failure),
        }
    };
    job::finish(&seal, &mut signals, lease.remaining(), leader.resign(), verdict).await
}

async fn campaign(seal: &Mongoseal, options: &Elect) -> mongoseal::Result<Leader> {
    acquire::acquire(seal, &options.name, Duration::MAX, |wait| {
        let campaign = seal.campaign(options.name.as_str()).value(&options.value).ttl(options.asking.ttl).wait(wait);
        if options.command.is_empty() {
            campaign
        } else {
            // The command is ended before the lease is, so it needs no time after that.
            campaign.stop_within(Duration::ZERO)
        }
        .into_future()
    })
    .await
}

/// Leads until told to stop, which is what was asked for.
async fn lead(leader: &Leader, signals: &mut Signals) -> Result<Status, Failure> {
    let lease = leader.lease();
    say(&format!("leads {:?} with token {}", lease.key(), lease.token()));
    // Either way: one that was told to stop may have been so late that it led no more.
    drop(signals.unless(lease.cancelled()).await);
    match lease.state() {
        LeaseState::Lost { cause } => Err(Failure::new(
            Status::LOST,
            format!("{:?} is led by this one no more, with token {}: {cause}", lease.key(), lease.token()),
        )),
        _ => Ok(Status::DONE),
    }
}

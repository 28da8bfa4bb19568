//! `mongoseal elect`.

use std::{slice, time::Duration};

use mongoseal::{LeaseState, Mongoseal, election::Leader};

use crate::{
    acquire::{self, Wait, with_labels},
    arguments::Elect,
    connection::Connection,
    exit_status::{Failure, Status},
    job,
    job::guard::protocol::Times,
    job::refreshes,
    job::signals::Signals,
    leases::{Leases, is_end_of_time},
    ui::message::print_note,
};

pub(crate) async fn perform(connection: &Connection, options: Elect) -> Result<Status, Failure> {
    let times = Times::of(&options.lease, None)?;
    let mut signals = Signals::terminating()?;
    let seal = acquire::open(connection, options.lease.owner.as_deref(), &mut signals).await?;
    let leader = acquire::unless_signalled(&seal, &mut signals, &options.wait, campaign(&seal, &options)).await?;
    let lease = leader.lease();
    let verdict = if options.command.is_empty() {
        lead(&leader, &mut signals).await
    } else {
        let leases = Leases::of([lease], None);
        let end = job::perform(connection, &leases, times, &options.command, &mut signals).await;
        end.and_then(|end| job::verdict(&leases, end))
    };
    job::finish(&seal, &mut signals, lease.remaining(), leader.resign(), verdict).await
}

async fn campaign(seal: &Mongoseal, options: &Elect) -> mongoseal::Result<Leader> {
    let attempt = |wait| {
        let campaign = with_labels!(seal.campaign(options.name.as_str()), &options.labels);
        let campaign = campaign.value(&options.value).ttl(options.lease.ttl).wait(wait);
        if options.command.is_empty() {
            campaign
        } else {
            // The guard ends the command before the lease ends, so the leader needs no extra time to stop.
            campaign.stop_margin(Duration::ZERO)
        }
        .into_future()
    };
    let wait = Wait::new(seal, slice::from_ref(&options.name), &options.wait);
    let leader = wait.acquire(attempt).await?;
    wait.report_grant(&Leases::of([leader.lease()], None));
    Ok(leader)
}

/// Leads until a signal, which is success, or until the leadership is lost.
async fn lead(leader: &Leader, signals: &mut Signals) -> Result<Status, Failure> {
    let lease = leader.lease();
    print_note(&format!("leading {:?} with token {}", lease.key(), lease.token()));
    // The state decides, also after a signal: the lease may have been lost just before it.
    drop(signals.unless(lease.cancelled()).await);
    match lease.state() {
        LeaseState::Lost { cause } => {
            let why = if is_end_of_time(&cause) { refreshes::last_failure() } else { String::new() };
            Err(Failure::new(
                Status::LOST,
                format!("the leadership of {:?} with token {} was lost: {cause}{why}", lease.key(), lease.token()),
            ))
        }
        _ => Ok(Status::DONE),
    }
}

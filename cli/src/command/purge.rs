//! `mongoseal purge`.

use mongoseal::{Purged, StoreTime};
use serde::Serialize;

use crate::{
    arguments::Purge,
    connection::Connection,
    exit_status::{Failure, Status},
    time,
    ui::escape,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Purge) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    let purged = seal.purge().await;
    seal.shutdown().await;
    let purged = purged?;
    if options.json {
        print_json(&purged)?;
    } else {
        print_text(&purged)?;
    }
    Ok(Status::DONE)
}

#[derive(Serialize)]
#[serde(tag = "purged", rename_all = "lowercase")]
enum PurgedView<'a> {
    Lease { key: &'a str, token: u64, owner: &'a str, since: String },
    Record { key: &'a str },
}

fn print_json(purged: &Purged) -> Result<(), Failure> {
    for lease in &purged.leases {
        let holding = &lease.holder;
        output::json(&PurgedView::Lease {
            key: lease.key.as_str(),
            token: holding.token.get(),
            owner: holding.owner.as_str(),
            since: time::of_store(holding.since),
        })?;
    }
    for key in &purged.records {
        output::json(&PurgedView::Record { key: key.as_str() })?;
    }
    Ok(())
}

fn print_text(purged: &Purged) -> Result<(), Failure> {
    let ago = |from: StoreTime, now: StoreTime| time::brief(now.since(from));
    for lease in &purged.leases {
        let holding = &lease.holder;
        output::line(&escape::visible(&format!(
            "deleted the lease on {:?} of {} with token {}, granted {} ago, last seen {} ago",
            lease.key,
            holding.owner,
            holding.token,
            ago(holding.since, lease.read_at),
            ago(holding.last_seen, lease.read_at),
        )))?;
    }
    for key in &purged.records {
        output::line(&escape::visible(&format!("deleted the record of {key:?}")))?;
    }
    if purged.leases.is_empty() && purged.records.is_empty() {
        output::line("Nothing to delete.")?;
    }
    Ok(())
}

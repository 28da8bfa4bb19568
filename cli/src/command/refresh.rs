//! `mongoseal refresh`: refreshes the lease that `mongoseal acquire` has left.

use serde::Serialize;

use super::lease_file::LeftLease;
use crate::{
    arguments::Refresh,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::json::Until,
    ui::output,
};

/// The refreshed lease, as JSON.
#[derive(Serialize)]
struct View<'a> {
    key: &'a str,
    token: u64,
    #[serde(flatten)]
    until: Until,
}

pub(crate) async fn perform(connection: &Connection, options: Refresh) -> Result<Status, Failure> {
    let left = LeftLease::read(&options.place, connection)?;
    let seal = connection.open().await?;
    let resume = left.resume(&seal);
    // The resumption is the refresh.
    let resumed = match options.ttl {
        Some(ttl) => resume.ttl(ttl).await,
        None => resume.await,
    };
    let until = resumed.map(|lease| {
        let until = Until::of(&lease);
        lease.orphan();
        until
    });
    seal.shutdown().await;
    let until = until?;
    if options.json {
        output::json(&View { key: left.key().as_str(), token: left.token().get(), until })?;
    } else {
        output::line(&until.to_string())?;
    }
    Ok(Status::DONE)
}

//! `mongoseal refresh`: refreshes the lease that `mongoseal acquire` has left.

use serde_json::json;

use super::lease_file::LeftLease;
use crate::{
    arguments::Refresh,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::json::Until,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Refresh) -> Result<Status, Failure> {
    let left = LeftLease::read(&options.lease_file, connection)?;
    let resumed = connection.with_handle(async |seal| {
        let resume = left.resume(seal);
        // The resumption is the refresh.
        let lease = match options.ttl {
            Some(ttl) => resume.ttl(ttl).await,
            None => resume.await,
        }?;
        let until = Until::of(&lease);
        lease.orphan();
        Ok::<_, mongoseal::Error>(until)
    });
    let until = resumed.await??;
    let view = json!({
        "key": left.key().as_str(),
        "token": left.token().get(),
        "remaining_ms": until.remaining_ms,
        "deadline_ms": until.deadline_ms,
    });
    output::json_or_line(options.json, &view, &until.to_string())?;
    Ok(Status::DONE)
}

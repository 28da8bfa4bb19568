//! `mongoseal release`: releases the lease that `mongoseal acquire` has left, and removes its file.

use mongoseal::{Error, LossCause, Mongoseal, ReleaseOutcome, Result};
use serde_json::json;

use super::lease_file::LeftLease;
use crate::{
    arguments::Release,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Release) -> std::result::Result<Status, Failure> {
    let left = LeftLease::read(&options.lease_file, connection)?;
    let released = connection.with_handle(async |seal| release(seal, &left).await).await?;
    // Without a confirmed end the file stays, so that the command can be repeated.
    if matches!(released, Ok(()) | Err(Error::Lost { .. })) {
        left.remove();
    }
    let (key, token) = (left.key(), left.token());
    released.map_err(|error| match error {
        // The record does not tell a release from the end of the ttl.
        Error::Lost { cause: LossCause::Expired, .. } => Failure::new(
            Status::LOST,
            format!(
                "the lease on {key:?} with token {token} was released before, or its time ran out: nothing to release"
            ),
        ),
        error => error.into(),
    })?;
    let view = json!({ "key": key.as_str(), "token": token.get(), "released": true });
    output::json_or_line(options.json, &view, &format!("released {key:?} with token {token}"))?;
    Ok(Status::DONE)
}

/// Releases a lease that is still held. It is held after the work of the script has ended, even if the reply to the
/// release is lost.
async fn release(seal: &Mongoseal, left: &LeftLease) -> Result<()> {
    let lease = left.resume(seal).await?;
    match lease.release().await? {
        ReleaseOutcome::AlreadyLost { cause } => {
            Err(Error::Lost { key: left.key().clone(), token: left.token(), cause })
        }
        _ => Ok(()),
    }
}

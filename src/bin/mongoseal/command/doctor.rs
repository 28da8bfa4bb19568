//! `mongoseal doctor`.

use crate::{
    arguments::Doctor,
    connection::Connection,
    status::{Failure, Status},
};

pub(crate) async fn perform(connection: &Connection, options: Doctor) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    drop(options);
    seal.shutdown().await;
    Ok(Status::DONE)
}

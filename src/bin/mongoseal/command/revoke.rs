//! `mongoseal revoke`.

use crate::{
    arguments::Revoke,
    connection::Connection,
    status::{Failure, Status},
};

pub(crate) async fn perform(connection: &Connection, options: Revoke) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    drop(options);
    seal.shutdown().await;
    Ok(Status::DONE)
}

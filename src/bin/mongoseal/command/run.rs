//! `mongoseal run`.

use crate::{
    arguments::Run,
    connection::Connection,
    status::{Failure, Status},
};

pub(crate) async fn perform(connection: &Connection, options: Run) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    drop(options);
    seal.shutdown().await;
    Ok(Status::DONE)
}

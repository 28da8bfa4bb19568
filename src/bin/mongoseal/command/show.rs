//! `mongoseal show`.

use crate::{
    arguments::Show,
    connection::Connection,
    status::{Failure, Status},
};

pub(crate) async fn perform(connection: &Connection, options: Show) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    drop(options);
    seal.shutdown().await;
    Ok(Status::DONE)
}

//! `mongoseal ls`.

use crate::{
    arguments::Ls,
    connection::Connection,
    status::{Failure, Status},
};

pub(crate) async fn perform(connection: &Connection, options: Ls) -> Result<Status, Failure> {
    let seal = connection.open().await?;
    drop(options);
    seal.shutdown().await;
    Ok(Status::DONE)
}

//! `mongoseal verify`.

use mongoseal::{FencingToken, Inspection};

use crate::{
    arguments::Verify,
    connection::Connection,
    exit_status::{Failure, Status},
    say,
};

pub(crate) async fn perform(connection: &Connection, options: Verify) -> Result<Status, Failure> {
    let Verify { key, token } = options;
    let seal = connection.open().await?;
    let record = seal.inspect(key.as_str()).await?;
    seal.shutdown().await;
    let no = match record {
        // Of a key that is held alone no newer token was issued, even if its version was raised.
        Some(record) if record.version == token || is_held_alone(&record, token) => return Ok(Status::DONE),
        Some(record) if record.version > token => {
            format!("the version of {key:?} is {}, above this token", record.version)
        }
        // As after a restore of the database, or where the token is another key's.
        Some(record) => format!("token {token} is not one of {key:?}, of which the newest is {}", record.version),
        None => format!("nothing is known of {key:?}: nobody has held it for as long as records are kept"),
    };
    say(&no);
    Ok(Status::NO)
}

fn is_held_alone(record: &Inspection, token: FencingToken) -> bool {
    record.holders.iter().any(|holding| holding.token == token && holding.limit.is_none() && !holding.is_expired())
}

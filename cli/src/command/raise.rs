//! `mongoseal raise`.

use mongoseal::{FencingToken, Mongoseal};
use serde::Serialize;

use crate::{
    arguments::Raise,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::escape,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: Raise) -> Result<Status, Failure> {
    let to = options.to;
    let seal = connection.open().await?;
    let raised = raise(&seal, to, &options).await;
    seal.shutdown().await;
    raised
}

#[derive(Serialize)]
struct RaisedView<'a> {
    key: &'a str,
    version: u64,
}

/// Raises one key after the other, and stops at the first error. Raising a key again is harmless.
async fn raise(seal: &Mongoseal, to: FencingToken, options: &Raise) -> Result<Status, Failure> {
    for key in &options.keys {
        let version = seal.raise_token_floor(key.as_str(), to).await.map_err(|error| {
            let failure = Failure::from(error);
            Failure::new(failure.status(), format!("{key:?} was not raised: {}", failure.message()))
        })?;
        if options.json {
            output::json(&RaisedView { key, version: version.get() })?;
        } else {
            output::line(&escape::visible(&format!("{key:?} has version {version}; its next token is larger")))?;
        }
    }
    Ok(Status::DONE)
}

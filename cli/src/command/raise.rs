//! `mongoseal raise`.

use serde_json::json;

use crate::{
    arguments::Raise,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::output,
};

/// Raises one key after the other, and stops at the first error. Raising a key again is harmless.
pub(crate) async fn perform(connection: &Connection, options: Raise) -> Result<Status, Failure> {
    let raised = connection.with_handle(async |seal| {
        for key in &options.keys {
            let version = seal.raise_token_floor(key.as_str(), options.to).await.map_err(|error| {
                let failure = Failure::from(error);
                Failure::new(failure.status(), format!("{key:?} was not raised: {}", failure.message()))
            })?;
            let text = format!("{key:?} has version {version}; its next token is larger");
            output::json_or_line(options.json, &json!({ "key": key, "version": version.get() }), &text)?;
        }
        Ok(Status::DONE)
    });
    raised.await?
}

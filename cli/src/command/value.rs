//! `mongoseal value`: reads the value of a key, or stores it under the lease that `run` passes to its command.

use serde_json::json;

use crate::{
    arguments::ValueOptions,
    command::value_file,
    connection::Connection,
    exit_status::{Failure, Status},
    leases::OuterLeases,
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, options: ValueOptions) -> Result<Status, Failure> {
    let ValueOptions { key, set, json } = options;
    if let Some(path) = set {
        let Some((id, token)) = OuterLeases::of_environment().lease(&key) else {
            return Err(Failure::invalid(format!(
                "this program was not started under a lease of {key:?}: call it in the command of `mongoseal run {key}`"
            )));
        };
        let content = value_file::parse(&path, &value_file::read(&path)?)?;
        connection.with_handle(async |seal| seal.put_value(key.as_str(), id, token, &content).await).await??;
        return Ok(Status::DONE);
    }
    let record = connection.with_handle(async |seal| seal.inspect(key.as_str()).await).await??;
    let Some(value) = record.and_then(|record| record.value) else {
        return Err(Failure::new(Status::NO, format!("{key:?} has no value")));
    };
    if json {
        output::json(&json!({
            "key": key,
            "value": value.content,
            "token": value.token.get(),
            "at": value.at.to_string(),
        }))?;
    } else {
        output::bytes(format!("{}\n", value.content).as_bytes())?;
    }
    Ok(Status::DONE)
}

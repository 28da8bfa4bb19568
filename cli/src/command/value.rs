//! `mongoseal value`: reads the value of a key, or stores it under the lease that `run` passes to its command.

use std::{fs, io::Read, path::Path};

use mongoseal::Json;
use serde_json::json;

use crate::{
    arguments::ValueOptions,
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
        let content = read(&path)?;
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

/// Reads the JSON of a file, or of the standard input if the path is `-`.
fn read(path: &Path) -> Result<Json, Failure> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    let bytes = bytes.map_err(|error| Failure::invalid(format!("cannot read {}: {error}", path.display())))?;
    Json::from_text(&bytes).map_err(|error| {
        let error = Failure::from(error);
        Failure::invalid(format!("{} cannot be stored as the value: {}", path.display(), error.message()))
    })
}

//! The forms of the commands that the store sends.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use mongodb::{
    Client,
    bson::Bson,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};

/// The commands that were sent for each key, as the names of their forms.
pub(super) type Commands = Arc<Mutex<HashMap<String, Vec<&'static str>>>>;

/// A client that notes which form each acquire and each release has.
pub(super) async fn noting_client(uri: &str) -> (Client, Commands) {
    let (commands, mut options) = (Commands::default(), ClientOptions::parse(uri).await.unwrap());
    let note = Arc::clone(&commands);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        let CommandEvent::Started(started) = event else { return };
        let command = started.command;
        // The fast path has short pipelines, and releases by an update.
        let (key, form) = if let Ok([Bson::Document(update)]) = command.get_array("updates").map(Vec::as_slice) {
            (update.get_document("q").and_then(|query| query.get_str("_id")), "fast")
        } else {
            let stages = command.get_array("update").map_or(0, Vec::len);
            let key = command.get_document("query").and_then(|query| query.get_str("_id"));
            (key, if stages == 2 { "fast" } else { "whole" })
        };
        if let Ok(key) = key {
            note.lock().unwrap().entry(key.to_owned()).or_default().push(form);
        }
    }));
    (Client::with_options(options).unwrap(), commands)
}

/// The path of an acquire or a release that sent commands of these forms.
pub(super) fn path(forms: &[&str]) -> &'static str {
    match forms {
        ["fast"] => "by the fast path",
        ["fast", "whole"] => "by the whole pipeline after the fast path",
        ["whole"] => "by the whole pipeline",
        other => panic!("no request is sent as {other:?}"),
    }
}

//! By whom a grant is confirmed: the write concern that the command carried.

use std::sync::{Arc, Mutex, PoisonError};

use mongodb::{
    event::{EventHandler, command::CommandEvent},
    options::WriteConcern,
};

use crate::{
    peer::{Peer, Result, Setup},
    set::described,
};

/// With a client as the driver makes it.
pub(super) async fn by_default(peer: &dyn Peer, default: &str) -> Result<String> {
    let sent = sent(peer, None).await?;
    Ok(if sent == NONE { format!("{NONE}; the set's is {default}") } else { sent })
}

/// With a client that says that one member is enough.
pub(super) async fn with_w1(peer: &dyn Peer) -> Result<String> {
    sent(peer, Some(WriteConcern::nodes(1))).await
}

/// Of a command without a write concern.
const NONE: &str = "none sent";

/// The write concern of what acquired a key.
async fn sent(peer: &dyn Peer, write_concern: Option<WriteConcern>) -> Result<String> {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let hears = Arc::clone(&seen);
    let listener = EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event
            && ["findAndModify", "update", "insert"].contains(&started.command_name.as_str())
        {
            let concern = started.command.get_document("writeConcern").map_or_else(|_| NONE.into(), described);
            hears.lock().unwrap_or_else(PoisonError::into_inner).push(concern);
        }
    });
    let setup = Setup { write_concern, listener: Some(listener), ..Setup::default() };
    let client = peer.client(&setup).await?;
    seen.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let held = client.acquire("confirmed").await?;
    let mut sent = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    held.release().await?;
    client.close().await;
    sent.dedup();
    Ok(sent.join(", "))
}

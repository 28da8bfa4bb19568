//! What is measured.

pub(crate) mod free;
pub(crate) mod hand_over;
pub(crate) mod idle;
pub(crate) mod many;
pub(crate) mod refused;

use crate::peer::{Client, Peer, Result, Setup};

/// The name of the floor where it has a line of its own.
const FLOOR: &str = "two bare updates";

/// So many clients of a peer, each of which has held a key: what only the first time takes is over.
async fn clients(peer: &dyn Peer, many: usize) -> Result<Vec<Box<dyn Client>>> {
    let mut clients = Vec::new();
    for number in 0..many {
        let client = peer.client(&Setup::default()).await?;
        client.acquire(&format!("first/{number}")).await?.release().await?;
        clients.push(client);
    }
    Ok(clients)
}

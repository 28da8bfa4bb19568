//! What each peer promises, found by trying it.

mod confirmed;
mod paused;

use std::sync::Arc;

use serde_json::Value;

use crate::{
    Bench,
    peer::{Peer, Result, Setup},
    table::{Row, Table},
};

/// Tries all peers side by side: nothing here is a time.
pub(crate) async fn measure(bench: &Bench) -> Table {
    let default: Arc<str> = bench.set.default_write_concern().await.into();
    let trying: Vec<_> = bench
        .peers
        .iter()
        .map(|peer| {
            let (peer, default) = (Arc::clone(peer), Arc::clone(&default));
            let name = peer.about().name;
            (name, tokio::spawn(async move { tried(&peer, &default).await }))
        })
        .collect();
    let mut rows = Vec::new();
    for (peer, tried) in trying {
        rows.push(match tried.await.expect("no trial panics") {
            Ok(cells) => Row { peer, cells, notes: vec![] },
            Err(error) => {
                Row { peer, cells: vec![Value::Null; 6], notes: vec![format!("not tried to its end: {error}")] }
            }
        });
    }
    Table {
        case: "safety",
        what: format!("by trial, with a ttl of {} s", paused::TTL.as_secs()),
        columns: vec![
            "token that grows",
            "kept while it works on",
            "ended when paused",
            "old release frees the new",
            "write concern",
            "of a client with w=1",
        ],
        rows,
    }
}

async fn tried(peer: &Arc<dyn Peer>, default: &str) -> Result<Vec<Value>> {
    let (kept, paused) = tokio::try_join!(paused::works_on(peer), paused::stands_still(peer))?;
    let [own, weak] = if peer.about().on_mongodb {
        [confirmed::by_default(peer.as_ref(), default).await?.into(), confirmed::with_w1(peer.as_ref()).await?.into()]
    } else {
        [Value::Null, Value::Null]
    };
    Ok(vec![
        token_grows(peer.as_ref()).await?.into(),
        kept.into(),
        paused.ended.into(),
        paused.freed.map_or(Value::Null, Into::into),
        own,
        weak,
    ])
}

/// Whether a lock has a fencing token, and that of the next one is larger.
async fn token_grows(peer: &dyn Peer) -> Result<bool> {
    let client = peer.client(&Setup::default()).await?;
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let held = client.acquire("token").await?;
        tokens.push(held.token());
        held.release().await?;
    }
    client.close().await;
    Ok(tokens.is_sorted_by(|before, after| before.is_some() && before < after))
}

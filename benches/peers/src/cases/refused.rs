//! A key that somebody else holds, asked for once.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::clients;
use crate::{
    Bench,
    peer::{Client, Result},
    samples::Samples,
    table::{Row, Table},
};

pub(crate) async fn measure(bench: &Bench) -> Table {
    let attempts = if bench.quick { 30 } else { 100 };
    let mut rows = Vec::new();
    let mut asked = Vec::new();
    for peer in &bench.peers {
        if let Some(reason) = peer.about().only_waits {
            rows.push(Row { peer: peer.about().name, cells: vec![Value::Null; 2], notes: vec![reason.into()] });
            continue;
        }
        let mut clients = clients(peer.as_ref(), 2).await.expect("clients of a peer can be made");
        asked.push((peer, clients.remove(0), clients.remove(0), Samples::default()));
    }
    for _ in 0..bench.rounds() {
        // Held anew in each round, as not everybody refreshes.
        let mut all_held = Vec::new();
        for (_, holder, _, samples) in &mut asked {
            samples.next_round();
            all_held.push(holder.acquire("refused").await.expect("the key is free"));
        }
        for _ in 0..attempts {
            for (_, _, other, samples) in &mut asked {
                match refused(other.as_ref()).await {
                    Ok(took) => samples.push(took),
                    Err(error) => samples.failed(&error),
                }
            }
        }
        for held in all_held {
            held.release().await.expect("it is released");
        }
    }
    for (peer, holder, other, samples) in asked {
        let cells = vec![samples.quantile(50), samples.quantile(99)];
        rows.push(Row { peer: peer.about().name, cells, notes: samples.note().into_iter().collect() });
        holder.close().await;
        other.close().await;
    }
    Table { case: "refused", what: "one attempt on a held key".into(), columns: vec!["median ms", "p99 ms"], rows }
}

async fn refused(client: &dyn Client) -> Result<Duration> {
    let began = Instant::now();
    let answer = client.attempt("refused").await?;
    let took = began.elapsed();
    match answer {
        None => Ok(took),
        Some(held) => {
            held.release().await?;
            Err("it was granted while it was held".into())
        }
    }
}

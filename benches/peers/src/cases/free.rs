//! A key that nobody else wants.

use std::time::{Duration, Instant};

use super::{FLOOR, clients};
use crate::{
    Bench,
    peer::{Client, Result},
    samples::Samples,
    table::{Row, Table},
};

/// Acquires and releases new and known keys, one peer after the other, and the floor each time.
pub(crate) async fn measure(bench: &Bench) -> Table {
    let cycles = if bench.quick { 20 } else { 60 };
    let floor = bench.set.floor().await;
    let mut bare = Samples::default();
    let mut taken = Vec::new();
    for peer in &bench.peers {
        let client = clients(peer.as_ref(), 1).await.and_then(|mut clients| clients.pop().ok_or("none".into()));
        taken.push((peer, client.unwrap_or_else(|error| panic!("{}: {error}", peer.about().name)), Samples::default()));
    }
    for round in 0..bench.rounds() {
        bare.next_round();
        for (_, _, samples) in &mut taken {
            samples.next_round();
        }
        for cycle in 0..cycles {
            // Every other one is a key that was never held.
            let key = if cycle % 2 == 0 { "known".into() } else { format!("new/{round}/{cycle}") };
            bare.push(floor.cycle("free").await);
            // Each has every place behind the floor in turn.
            let turn = cycle % taken.len();
            let (later, sooner) = taken.split_at_mut(turn);
            for (_, client, samples) in sooner.iter_mut().chain(later) {
                match once(client.as_ref(), &key).await {
                    Ok(took) => samples.push(took),
                    Err(error) => samples.failed(&error),
                }
            }
        }
    }
    let mut rows: Vec<Row> = taken
        .iter()
        .map(|(peer, _, samples)| Row {
            peer: peer.about().name,
            cells: vec![samples.quantile(50), samples.quantile(99), samples.ratio(&bare)],
            notes: samples.note().into_iter().collect(),
        })
        .collect();
    rows.push(Row { peer: FLOOR, cells: vec![bare.quantile(50), bare.quantile(99), bare.ratio(&bare)], notes: vec![] });
    for (_, client, _) in taken {
        client.close().await;
    }
    Table {
        case: "acquire-release",
        what: "a free key acquired and released".into(),
        columns: vec!["median ms", "p99 ms", "ratio to the floor"],
        rows,
    }
}

async fn once(client: &dyn Client, key: &str) -> Result<Duration> {
    let began = Instant::now();
    client.acquire(key).await?.release().await?;
    Ok(began.elapsed())
}

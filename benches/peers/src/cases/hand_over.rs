//! A contended key, passed from hand to hand.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::clients;
use crate::{
    Bench,
    peer::{Client, Peer},
    samples::{self, Samples},
    set::Set,
    table::{Row, Table},
};

const CLIENTS: usize = 8;
const WORK: Duration = Duration::from_millis(5);

/// One lock, from its request to its release.
struct Turn {
    client: usize,
    asked: Instant,
    granted: Instant,
    called: Instant,
    returned: Instant,
}

/// What came of a peer's rounds.
#[derive(Default)]
struct Taken {
    samples: Samples,
    grants: usize,
    /// Grants to the client that had it before.
    again: usize,
    /// From request to grant.
    longest: Duration,
    requests: usize,
    /// Grants that came before the holder before had even called its release.
    overlaps: usize,
}

pub(crate) async fn measure(bench: &Bench) -> Table {
    let time = Duration::from_millis(if bench.quick { 1_000 } else { 3_000 });
    let mut all: Vec<(_, Taken)> = bench.peers.iter().map(|peer| (peer, Taken::default())).collect();
    for round in 0..bench.rounds() {
        for (peer, taken) in &mut all {
            taken.samples.next_round();
            contend(&bench.set, peer.as_ref(), &format!("hot/{round}"), time, taken).await;
        }
    }
    let rows = all.iter().map(|(peer, taken)| {
        let about = peer.about();
        let commands =
            if about.on_mongodb { samples::each(taken.requests, taken.grants) } else { serde_json::Value::Null };
        let overlaps = (taken.overlaps > 0).then(|| format!("{} grants before the release was called", taken.overlaps));
        Row {
            peer: about.name,
            cells: vec![
                taken.samples.quantile(50),
                taken.samples.quantile(99),
                samples::each(taken.again, taken.grants),
                samples::millis(taken.longest).into(),
                taken.grants.into(),
                commands,
            ],
            notes: taken.samples.note().into_iter().chain(overlaps).collect(),
        }
    });
    Table {
        case: "hand-over",
        what: format!(
            "one key among {CLIENTS} clients that want it all the time, with {} ms of work each time, for {} s: return \
             of a release to return of the acquire of another client",
            WORK.as_millis(),
            time.as_secs_f64() * f64::from(u32::try_from(bench.rounds()).unwrap_or(u32::MAX)),
        ),
        columns: vec![
            "median ms",
            "p99 ms",
            "share to the same again",
            "longest wait ms",
            "grants",
            "commands a grant",
        ],
        rows: rows.collect(),
    }
}

/// Clients that want one key all the time.
async fn contend(set: &Set, peer: &dyn Peer, key: &str, time: Duration, taken: &mut Taken) {
    let clients = clients(peer, CLIENTS).await.expect("clients of a peer can be made");
    let before = set.sent().await;
    let began = Instant::now();
    let mut contenders = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        contenders.spawn(contender(number, client, key.to_owned(), began + time));
    }
    let mut turns = Vec::new();
    for (own, errors) in contenders.join_all().await {
        turns.extend(own);
        for error in &errors {
            taken.samples.failed(error);
        }
    }
    let after = set.sent().await;
    taken.requests += usize::try_from(after.requests - before.requests).unwrap_or(usize::MAX);
    taken.grants += turns.len();
    turns.sort_by_key(|turn| turn.granted);
    let pairs = || turns.windows(2).map(|pair| (&pair[0], &pair[1]));
    taken.overlaps += pairs().filter(|(last, next)| next.granted < last.called).count();
    taken.again += pairs().filter(|(last, next)| next.client == last.client).count();
    let waits = turns.iter().map(|turn| turn.granted - turn.asked);
    taken.longest = waits.chain([taken.longest]).max().unwrap_or_default();
    // Past the time there are fewer and fewer of them.
    let handed = pairs().filter(|(last, next)| next.granted < began + time && next.client != last.client);
    taken.samples.extend(handed.map(|(last, next)| next.granted.saturating_duration_since(last.returned)));
}

async fn contender(number: usize, client: Box<dyn Client>, key: String, until: Instant) -> (Vec<Turn>, Vec<String>) {
    let (mut turns, mut errors) = (Vec::new(), Vec::new());
    loop {
        let asked = Instant::now();
        if asked >= until {
            break;
        }
        let held = match client.acquire(&key).await {
            Ok(held) => held,
            Err(error) => {
                errors.push(error.to_string());
                continue;
            }
        };
        let granted = Instant::now();
        tokio::time::sleep(WORK).await;
        let called = Instant::now();
        if let Err(error) = held.release().await {
            errors.push(error.to_string());
        }
        turns.push(Turn { client: number, asked, granted, called, returned: Instant::now() });
    }
    client.close().await;
    (turns, errors)
}

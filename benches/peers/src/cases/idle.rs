//! Waiters of a key that nobody releases.

use std::time::Duration;

use tokio::task::JoinSet;

use super::clients;
use crate::{
    Bench,
    peer::Peer,
    set::Set,
    table::{Row, Table},
};

const WAITERS: usize = 8;

pub(crate) async fn measure(bench: &Bench) -> Table {
    let time = Duration::from_secs(if bench.quick { 1 } else { 4 });
    let mut rows = Vec::new();
    for peer in bench.peers.iter().filter(|peer| peer.about().on_mongodb) {
        let (requests, reads) = wait(&bench.set, peer.as_ref(), time).await;
        let cells = vec![requests.into(), reads.into()];
        rows.push(Row { peer: peer.about().name, cells, notes: vec![] });
    }
    Table {
        case: "idle-waiters",
        what: format!(
            "{WAITERS} clients that wait for {} s for a held key, of those on MongoDB; getMore is of the other members, too",
            time.as_secs()
        ),
        columns: vec!["commands a second", "getMore a second"],
        rows,
    }
}

async fn wait(set: &Set, peer: &dyn Peer, time: Duration) -> (f64, f64) {
    let mut clients = clients(peer, WAITERS + 1).await.expect("clients of a peer can be made");
    let holder = clients.remove(0);
    let held = holder.acquire("idle").await.expect("the key is free");
    let mut waiting = JoinSet::new();
    for client in clients {
        waiting.spawn(async move {
            let held = client.acquire("idle").await.expect("it is granted when its turn has come");
            held.release().await.expect("it is released");
            client.close().await;
        });
    }
    // Until all of them wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = set.sent().await;
    tokio::time::sleep(time).await;
    let after = set.sent().await;
    held.release().await.expect("it is released");
    waiting.join_all().await;
    holder.close().await;
    #[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
    let a_second = |before: u64, after: u64| (after - before) as f64 / time.as_secs_f64();
    (a_second(before.requests, after.requests), a_second(before.reads, after.reads))
}

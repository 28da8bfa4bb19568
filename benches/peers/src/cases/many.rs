//! Many keys at once, each wanted by one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::{FLOOR, clients};
use crate::{
    Bench,
    peer::{Client, Result},
    samples::{self, Samples},
    set::Floor,
    table::{Row, Table},
};

const TASKS: usize = 64;

/// Cycles a second, in each round, and what went wrong.
#[derive(Default)]
struct Rates {
    rates: Vec<f64>,
    errors: Samples,
}

/// Tasks of so many clients, beside those of as many clients that do two updates.
pub(crate) async fn measure(bench: &Bench, case: &'static str, many: usize) -> Table {
    let time = Duration::from_millis(if bench.quick { 500 } else { 1_500 });
    let mut floors = Vec::new();
    for _ in 0..many {
        floors.push(Arc::new(bench.set.floor().await));
    }
    let mut bare = Rates::default();
    let mut all: Vec<_> = bench.peers.iter().map(|peer| (peer, Rates::default())).collect();
    for round in 0..bench.rounds() {
        bare.measure(time, |task| updates(Arc::clone(&floors[task % many]), task)).await;
        for (peer, rates) in &mut all {
            let clients = clients(peer.as_ref(), many).await.expect("clients of a peer can be made");
            let clients: Vec<Arc<dyn Client>> = clients.into_iter().map(Arc::from).collect();
            rates
                .measure(time, |task| cycle(Arc::clone(&clients[task % many]), format!("own/{many}/{round}/{task}")))
                .await;
            for client in clients {
                client.close().await;
            }
        }
    }
    let row = |peer, rates: &Rates| {
        let shares = rates.rates.iter().zip(&bare.rates).map(|(own, bare)| own / bare);
        Row {
            peer,
            cells: vec![samples::median(rates.rates.iter().copied()).into(), samples::median(shares).into()],
            notes: rates.errors.note().into_iter().collect(),
        }
    };
    let mut rows: Vec<Row> = all.iter().map(|(peer, rates)| row(peer.about().name, rates)).collect();
    rows.push(row(FLOOR, &bare));
    Table {
        case,
        what: format!(
            "{TASKS} tasks that acquire and release keys of their own, for {} ms each round; clients in all: {many}",
            time.as_millis()
        ),
        columns: vec!["cycles a second", "share of the floor's"],
        rows,
    }
}

impl Rates {
    /// Runs cycles of all tasks side by side.
    async fn measure<F>(&mut self, time: Duration, cycle: impl Fn(usize) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut running = JoinSet::new();
        let start = |running: &mut JoinSet<_>, task: usize| {
            let cycle = cycle(task);
            running.spawn(async move { (task, cycle.await) });
        };
        let began = Instant::now();
        for task in 0..TASKS {
            start(&mut running, task);
        }
        let mut cycles = 0_u32;
        while let Some(done) = running.join_next().await {
            let (task, outcome) = done.expect("no task panics");
            match outcome {
                Ok(()) => cycles += 1,
                Err(error) => self.errors.failed(&error),
            }
            if began.elapsed() < time {
                start(&mut running, task);
            }
        }
        self.rates.push(f64::from(cycles) / began.elapsed().as_secs_f64());
    }
}

async fn updates(floor: Arc<Floor>, task: usize) -> Result<()> {
    floor.cycle(&format!("own/{task}")).await;
    Ok(())
}

async fn cycle(client: Arc<dyn Client>, key: String) -> Result<()> {
    client.acquire(&key).await?.release().await
}

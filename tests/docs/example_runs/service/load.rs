//! Clients that put orders all the time, each by its own process, and follow its answers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mongoseal::CancellationToken;
use mongoseal_test_support::{millis, secs};
use reqwest::{Client, Response, StatusCode, header::RETRY_AFTER};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Between two orders of a client.
const PAUSE: Duration = millis(15);
/// Shorter than `Retry-After`, because the test measures how long no process takes orders.
const RETRY: Duration = millis(50);
/// Shorter than the time for which a process is stopped.
const TIMEOUT: Duration = millis(700);

/// How the orders were answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) accepted: Vec<String>,
    /// 421, followed to the leader.
    pub(super) misdirected: usize,
    /// 503: no leader was known, or the outcome.
    pub(super) unavailable: usize,
    /// 409 of the fence.
    pub(super) fenced: usize,
    /// No answer: the process is dead or stopped.
    pub(super) unanswered: usize,
}

pub(super) struct Load {
    tally: Arc<Mutex<Tally>>,
    end: CancellationToken,
    clients: JoinSet<()>,
}

impl Load {
    /// Starts a client for each process.
    pub(super) fn begin(addresses: &[String]) -> Self {
        let (tally, end) = (Arc::<Mutex<Tally>>::default(), CancellationToken::new());
        let mut clients = JoinSet::new();
        for first in 0..addresses.len() {
            let http = Client::builder().timeout(TIMEOUT).build().unwrap();
            let client = PutOrders { http, addresses: addresses.to_vec(), first, tally: Arc::clone(&tally) };
            clients.spawn(client.run(end.clone()));
        }
        Self { tally, end, clients }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally.lock().unwrap().clone()
    }

    /// Lets each client finish its order.
    pub(super) async fn end(mut self) -> Tally {
        self.end.cancel();
        while let Some(client) = timeout(secs(20), self.clients.join_next()).await.expect("an order is accepted") {
            client.unwrap();
        }
        self.tally()
    }
}

struct PutOrders {
    http: Client,
    addresses: Vec<String>,
    /// The process to which each order goes first.
    first: usize,
    tally: Arc<Mutex<Tally>>,
}

impl PutOrders {
    async fn run(self, end: CancellationToken) {
        let mut number = 0_u32;
        while !end.is_cancelled() {
            number += 1;
            self.put(format!("{}-{number}", self.first)).await;
            sleep(PAUSE).await;
        }
    }

    /// Sends an order until a process has accepted it.
    async fn put(&self, id: String) {
        let mut process = self.first;
        let mut address = self.addresses[process].clone();
        loop {
            let answer = self.http.put(format!("http://{address}/orders/{id}")).body("pen").send().await;
            match answer.as_ref().map(Response::status) {
                Ok(StatusCode::OK) => return self.count(|tally| tally.accepted.push(id)),
                Ok(StatusCode::MISDIRECTED_REQUEST) => {
                    self.count(|tally| tally.misdirected += 1);
                    answer.unwrap().headers()["leader"].to_str().unwrap().clone_into(&mut address);
                    continue;
                }
                Ok(StatusCode::SERVICE_UNAVAILABLE) => {
                    assert!(answer.unwrap().headers().contains_key(RETRY_AFTER));
                    self.count(|tally| tally.unavailable += 1);
                }
                Ok(StatusCode::CONFLICT) => self.count(|tally| tally.fenced += 1),
                Ok(other) => panic!("order {id} was answered with {other}"),
                Err(_no_answer) => {
                    self.count(|tally| tally.unanswered += 1);
                    process = (process + 1) % self.addresses.len();
                    address.clone_from(&self.addresses[process]);
                }
            }
            sleep(RETRY).await;
        }
    }

    fn count(&self, note: impl FnOnce(&mut Tally)) {
        note(&mut self.tally.lock().unwrap());
    }
}

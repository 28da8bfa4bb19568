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

pub(super) struct Load {
    accepted: Arc<Mutex<Vec<String>>>,
    end: CancellationToken,
    clients: JoinSet<()>,
}

impl Load {
    /// Starts a client for each process.
    pub(super) fn begin(addresses: &[String]) -> Self {
        let (accepted, end) = (Arc::<Mutex<Vec<_>>>::default(), CancellationToken::new());
        let mut clients = JoinSet::new();
        for first in 0..addresses.len() {
            let http = Client::builder().timeout(TIMEOUT).build().unwrap();
            let (addresses, accepted, end) = (addresses.to_vec(), Arc::clone(&accepted), end.clone());
            clients.spawn(async move {
                for number in (1..).take_while(|_| !end.is_cancelled()) {
                    let id = format!("{first}-{number}");
                    put(&http, &addresses, first, &id).await;
                    accepted.lock().unwrap().push(id);
                    sleep(PAUSE).await;
                }
            });
        }
        Self { accepted, end, clients }
    }

    /// The orders that a process has accepted.
    pub(super) fn accepted(&self) -> Vec<String> {
        self.accepted.lock().unwrap().clone()
    }

    /// Lets each client finish its order.
    pub(super) async fn end(mut self) -> Vec<String> {
        self.end.cancel();
        while let Some(client) = timeout(secs(20), self.clients.join_next()).await.expect("an order is accepted") {
            client.unwrap();
        }
        self.accepted()
    }
}

/// Sends an order until a process has accepted it, first to this process.
async fn put(http: &Client, addresses: &[String], mut process: usize, id: &str) {
    let mut address = addresses[process].clone();
    loop {
        let answer = http.put(format!("http://{address}/orders/{id}")).body("pen").send().await;
        match answer.as_ref().map(Response::status) {
            Ok(StatusCode::OK) => return,
            Ok(StatusCode::MISDIRECTED_REQUEST) => {
                answer.unwrap().headers()["leader"].to_str().unwrap().clone_into(&mut address);
                continue;
            }
            // No leader is known, or the outcome is not.
            Ok(StatusCode::SERVICE_UNAVAILABLE) => assert!(answer.unwrap().headers().contains_key(RETRY_AFTER)),
            // The fence refuses it.
            Ok(StatusCode::CONFLICT) => {}
            Ok(other) => panic!("order {id} was answered with {other}"),
            // The process is dead or stopped.
            Err(_no_answer) => {
                process = (process + 1) % addresses.len();
                address.clone_from(&addresses[process]);
            }
        }
        sleep(RETRY).await;
    }
}

//! Clients that put orders all the time, each by its own process, and follow its answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongoseal::CancellationToken;
use mongoseal_test_support::millis;
use reqwest::{Client, Response, StatusCode, header::RETRY_AFTER};
use tokio::time::sleep;

/// Between two orders of a client.
const PAUSE: Duration = millis(15);
/// Shorter than `Retry-After`, because the test measures how long no process takes orders.
const RETRY: Duration = millis(50);
/// Shorter than the time for which a process is stopped.
const TIMEOUT: Duration = millis(700);

/// Puts orders until the end, each first to this process, and counts those that are accepted. Returns them.
pub(super) async fn put_all(
    addresses: Vec<String>,
    first: usize,
    end: CancellationToken,
    count: Arc<AtomicUsize>,
) -> Vec<String> {
    let http = Client::builder().timeout(TIMEOUT).build().unwrap();
    let mut accepted = Vec::new();
    while !end.is_cancelled() {
        let id = format!("{first}-{}", accepted.len());
        put(&http, &addresses, first, &id).await;
        accepted.push(id);
        count.fetch_add(1, Ordering::Relaxed);
        sleep(PAUSE).await;
    }
    accepted
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

//! Three processes of the example, and what their routes answer.

use std::{path::PathBuf, time::Duration};

use mongoseal_test_support::{eventually, free_port, secs};
use nix::sys::signal::Signal;
use reqwest::{Client, Method, Response, StatusCode, header::RETRY_AFTER};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use super::TTL;
use crate::{Process, built};

const POLL: Duration = Duration::from_millis(5);
const PATIENCE: Duration = secs(20);

/// A process that leads, as it reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Leading {
    pub(super) number: usize,
    pub(super) token: i64,
}

pub(super) struct Cluster {
    example: PathBuf,
    uri: String,
    http: Client,
    pub(super) addresses: Vec<String>,
    /// `None` for a process that is dead.
    processes: Vec<Option<Process>>,
}

impl Cluster {
    /// Three processes that are ready.
    pub(super) async fn start(uri: String) -> Self {
        let example = tokio::task::spawn_blocking(|| built("service")).await.unwrap();
        let addresses: Vec<String> = (0..3).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let http = Client::builder().timeout(secs(2)).build().unwrap();
        let mut cluster = Self { example, uri, http, addresses, processes: vec![None, None, None] };
        for number in 0..3 {
            cluster.launch(number).await;
        }
        cluster
    }

    /// Starts a process that is dead, and waits until it is ready.
    pub(super) async fn launch(&mut self, number: usize) {
        let address = &self.addresses[number];
        let settings =
            [("LISTEN", address.clone()), ("ADVERTISED", address.clone()), ("TTL_SECONDS", TTL.as_secs().to_string())];
        self.processes[number] = Some(Process::start(&self.example, &[address], &self.uri, &settings));
        self.until_it_is_ready(number).await;
    }

    pub(super) fn signal(&self, number: usize, signal: Signal) {
        self.processes[number].as_ref().unwrap().signal(signal);
    }

    /// Waits until a process has ended, and returns whether it succeeded.
    pub(super) async fn has_ended_well(&mut self, number: usize) -> bool {
        let mut process = self.processes[number].take().unwrap();
        timeout(PATIENCE, process.child.wait()).await.expect("the process ends").unwrap().success()
    }

    async fn send(&self, method: Method, number: usize, path: &str) -> reqwest::Result<Response> {
        let url = format!("http://{}{path}", self.addresses[number]);
        self.http.request(method, url).body("pen").send().await
    }

    async fn is_ready(&self, number: usize) -> bool {
        let answer = self.send(Method::GET, number, "/ready").await;
        answer.is_ok_and(|answer| answer.status() == StatusCode::OK)
    }

    pub(super) async fn until_it_is_ready(&self, number: usize) {
        let is_ready = async || self.is_ready(number).await;
        eventually(PATIENCE, &format!("{} is ready", self.addresses[number]), is_ready).await;
    }

    /// All of these are ready at this moment.
    pub(super) async fn are_ready(&self, numbers: &[usize]) {
        for number in numbers {
            assert!(self.is_ready(*number).await, "{} is ready", self.addresses[*number]);
        }
    }

    async fn json(&self, method: Method, number: usize, path: &str) -> Value {
        let answer = self.send(method, number, path).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    /// The value of a metric with these labels, if the process has it.
    pub(super) async fn metric(&self, number: usize, name: &str, labels: &[&str]) -> Option<f64> {
        let text = self.send(Method::GET, number, "/metrics").await.unwrap().text().await.unwrap();
        let fits = |line: &&str| {
            let is_name = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            is_name && labels.iter().all(|label| line.contains(label))
        };
        text.lines().find(fits).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    pub(super) async fn until_metric(&self, number: usize, name: &str, labels: &[&str], value: f64) {
        let has_value = async || self.metric(number, name, labels).await == Some(value);
        eventually(PATIENCE, &format!("{name} with {labels:?} is {value}"), has_value).await;
    }

    /// Makes a process give way, and returns whether it led.
    pub(super) async fn step_down(&self, number: usize) -> bool {
        self.json(Method::POST, number, "/step-down").await["led"].as_bool().unwrap()
    }

    /// Waits until one of these processes leads with a token larger than this, and returns when that was seen.
    pub(super) async fn next_leader(&self, live: &[usize], after: i64) -> (Leading, Instant) {
        let next = async {
            loop {
                for number in live {
                    let answer = self.json(Method::GET, *number, "/leader").await;
                    match answer["token"].as_i64() {
                        Some(token) if token > after => {
                            assert_eq!(answer["leads"], true, "{answer}");
                            assert_eq!(answer["leader"], self.addresses[*number], "{answer}");
                            return (Leading { number: *number, token }, Instant::now());
                        }
                        _ => tokio::time::sleep(POLL).await,
                    }
                }
            }
        };
        timeout(PATIENCE, next).await.expect("a process leads")
    }

    /// Waits until a follower sends clients to this leader, and returns when that was seen. Until then it knows another
    /// leader or none; it never takes an order.
    pub(super) async fn until_it_follows(&self, number: usize, leader: usize) -> Instant {
        let follows = async {
            loop {
                let answer = self.send(Method::PUT, number, "/orders/misdirected").await.unwrap();
                match answer.status() {
                    StatusCode::MISDIRECTED_REQUEST => {
                        let header = answer.headers()["leader"].to_str().unwrap().to_owned();
                        let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
                        assert_eq!(body["leader"], header);
                        assert_ne!(header, self.addresses[number], "a client is not sent back");
                        if header == self.addresses[leader] {
                            return Instant::now();
                        }
                    }
                    StatusCode::SERVICE_UNAVAILABLE => assert!(answer.headers().contains_key(RETRY_AFTER)),
                    other => panic!("a follower answered {other}"),
                }
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(PATIENCE, follows).await.expect("a follower sees the leader")
    }

    /// Sends the head of a request, and waits until the process has admitted it and wants the body.
    pub(super) async fn begin_order(&self, number: usize, id: &str) -> Admitted {
        let address = &self.addresses[number];
        let mut connection = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "PUT /orders/{id} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let answered = async {
            while !answer.ends_with(b"\r\n\r\n") {
                answer.push(connection.read_u8().await.unwrap());
            }
        };
        timeout(PATIENCE, answered).await.expect("the process wants the body");
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
        Admitted { connection }
    }
}

/// A request that its process has admitted, and whose body is not sent yet.
pub(super) struct Admitted {
    connection: TcpStream,
}

impl Admitted {
    /// Sends the body, and returns the answer with its head.
    pub(super) async fn finish(mut self) -> String {
        self.connection.write_all(b"pen").await.unwrap();
        let mut answer = String::new();
        let answered = timeout(PATIENCE, self.connection.read_to_string(&mut answer)).await;
        answered.expect("the process answers").unwrap();
        answer
    }
}

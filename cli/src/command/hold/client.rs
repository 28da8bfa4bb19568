//! The program that `mongoseal hold` works for: it reads the events and writes the requests.
//!
//! Mechanism: one thread writes the output and another reads the input, because each can block for as long as the
//! client wants. A short channel leads to each thread.
//!
//! Invariants: neither a client that does not read nor one that writes without end makes the buffers grow. If an answer
//! is not read, no further request is read. Of the states that are not read, only the last is kept.

use std::{
    collections::VecDeque,
    future::pending,
    io::{self, BufRead},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use super::{event::Event, lines::next_line};
use crate::ui::output;

/// How many lines wait for the thread that writes, and how many requests wait to be read.
const CHANNEL_SIZE: usize = 16;
/// The longest request, in bytes.
const MAX_REQUEST: usize = 4096;
/// The time that the last events have to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A request, with the id that its answer repeats.
#[derive(Debug, PartialEq)]
pub(super) enum Request {
    Verify(Value),
    Refresh(Value),
    Release(Value),
    /// A line that is no request.
    Malformed {
        id: Value,
        message: &'static str,
    },
    /// The end of the input.
    End,
}

/// The client.
pub(super) struct Client {
    pub(super) is_json: bool,
    /// Events that do not fit into the channel, each with whether it is a state.
    unsent: VecDeque<(bool, String)>,
    lines: Sender<String>,
    writer: JoinHandle<io::Result<()>>,
    requests: Receiver<Request>,
    /// Keeps the channel of requests open if there is no thread that reads.
    _no_input: Option<Sender<Request>>,
}

impl Client {
    /// Starts the threads.
    pub(super) fn start(is_json: bool, has_input: bool) -> Self {
        let (lines, writer) = output::start_writer(CHANNEL_SIZE, output::line);
        let (sender, requests) = mpsc::channel(CHANNEL_SIZE);
        let no_input = if has_input {
            drop(spawn_blocking(move || read_requests(io::stdin().lock(), &sender)));
            None
        } else {
            Some(sender)
        };
        Self { is_json, unsent: VecDeque::new(), lines, writer, requests, _no_input: no_input }
    }

    /// Prints an event, now or when the client has read earlier ones.
    pub(super) fn print(&mut self, event: &Event) {
        if event.is_state() && self.unsent.back().is_some_and(|(is_state, _)| *is_state) {
            self.unsent.pop_back();
        }
        self.unsent.push_back((event.is_state(), event.line(self.is_json)));
        while let Some((is_state, line)) = self.unsent.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(line)) = self.lines.try_send(line) {
                self.unsent.push_front((is_state, line));
                break;
            }
        }
    }

    /// Sends the unsent events, then waits for the next request, if one `is_wanted`. Dropping the future loses nothing.
    pub(super) async fn next_request(&mut self, is_wanted: bool) -> Request {
        self.send_all().await;
        if !is_wanted {
            pending::<()>().await;
        }
        self.requests.recv().await.unwrap_or(Request::End)
    }

    /// Sends the unsent events, as soon as there is room for them.
    async fn send_all(&mut self) {
        while !self.unsent.is_empty() {
            // If the output is closed, the events are of no use.
            let permit = self.lines.reserve().await.ok();
            if let (Some((_, line)), Some(permit)) = (self.unsent.pop_front(), permit) {
                permit.send(line);
            }
        }
    }

    /// The channel to pass to [`output::closed`], which must not borrow the client.
    pub(super) fn lines(&self) -> Sender<String> {
        self.lines.clone()
    }

    /// Waits until the last events are written, but not for long: the client may not read. Returns the error of the
    /// output, if there is one.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        let written = async {
            self.send_all().await;
            drop(self.lines);
            self.writer.await.unwrap_or(Ok(()))
        };
        timeout(LAST_LINES, written).await.unwrap_or(Ok(()))
    }
}

/// Reads requests until the end of the input, or until the program ends.
fn read_requests(mut input: impl BufRead, requests: &Sender<Request>) {
    while let Some(line) = next_line(&mut input, MAX_REQUEST) {
        if requests.blocking_send(parse(&line)).is_err() {
            return;
        }
    }
}

/// Reads a request from a line.
fn parse(line: &[u8]) -> Request {
    let malformed = |id, message| Request::Malformed { id, message };
    if line.trim_ascii_end().len() > MAX_REQUEST {
        return malformed(Value::Null, "the line is longer than 4096 bytes: shorten it");
    }
    let Ok(Value::Object(mut members)) = serde_json::from_slice(line) else {
        return malformed(Value::Null, "the line is no JSON object: send one such as {\"id\":1,\"do\":\"verify\"}");
    };
    let id = members.remove("id").unwrap_or_default();
    match members.get("do").and_then(Value::as_str) {
        Some("verify") => Request::Verify(id),
        Some("refresh") => Request::Refresh(id),
        Some("release") => Request::Release(id),
        _ => malformed(id, "the request has no known `do`: send verify, refresh or release"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_line_is_a_request_or_an_error_with_its_id() {
        let long = format!("{{\"id\":5,\"do\":\"verify\",\"pad\":\"{}\"}}\n", "x".repeat(100_000));
        let fits = format!("{{\"id\":6,\"do\":\"verify\",\"pad\":\"{}\"}}", "x".repeat(MAX_REQUEST - 31));
        assert_eq!(fits.len(), MAX_REQUEST);
        let lines = format!(
            "{{\"id\":1,\"do\":\"verify\"}}\n{{\"do\":\"refresh\"}}\n\nnonsense\n{{\"id\":[2],\"do\":\"x\"}}\n{long}{fits}\n[]\n{{\"id\":\"7\",\"do\":\"release\"}}"
        );
        let mut input = lines.as_bytes();
        let requests: Vec<Request> =
            std::iter::from_fn(|| next_line(&mut input, MAX_REQUEST)).map(|line| parse(&line)).collect();
        let id = |request: &Request| match request {
            Request::Malformed { id, .. } => Some(id.clone()),
            _ => None,
        };
        assert_eq!(requests[0], Request::Verify(json!(1)));
        assert_eq!(requests[1], Request::Refresh(Value::Null));
        let ids: Vec<_> = requests[2..=5].iter().map(id).collect();
        assert_eq!(ids, [Some(Value::Null), Some(Value::Null), Some(json!([2])), Some(Value::Null)]);
        assert_eq!(requests[6], Request::Verify(json!(6)));
        assert_eq!(id(&requests[7]), Some(Value::Null));
        assert_eq!(requests[8..], [Request::Release(json!("7"))]);
    }

    #[test]
    fn of_states_that_are_not_read_only_the_last_is_kept() {
        let (lines, mut received) = mpsc::channel(1);
        let (_sender, requests) = mpsc::channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let writer = runtime.spawn_blocking(|| Ok(()));
        let mut client = Client { is_json: false, unsent: VecDeque::new(), lines, writer, requests, _no_input: None };
        for position in 1..=100 {
            client.print(&Event::Waiting { position: Some(position) });
        }
        client.print(&Event::Released { id: None, confirmed: true });
        let mut read = Vec::new();
        let reading = async {
            while let Some(line) = received.recv().await {
                read.push(line);
            }
        };
        let (finished, ()) = runtime.block_on(async { tokio::join!(client.finish(), reading) });
        finished.unwrap();
        assert_eq!(read, ["waiting    position 1", "waiting    position 100", "released"]);
    }
}

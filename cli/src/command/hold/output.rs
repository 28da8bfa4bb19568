//! The output to a reader who may not read.
//!
//! Mechanism: a thread writes the lines, because a write can block for as long as the reader wants. The lines that wait are
//! counted in bytes.
//!
//! Invariant: to print never waits.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{
        Notify,
        mpsc::{self, UnboundedReceiver, UnboundedSender},
    },
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use super::event::Event;
use crate::ui::output;

/// How many bytes may wait for the reader.
const MAX_BACKLOG: usize = 8 * 1024 * 1024;
/// How many bytes are written at once, if as many wait.
const CHUNK: usize = 64 * 1024;
/// The interval of the check whether the reader has closed the pipe.
const CLOSED_INTERVAL: Duration = Duration::from_millis(250);
/// The time that the last lines have to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Where all tasks print.
#[derive(Clone)]
pub(super) struct Output {
    lines: UnboundedSender<String>,
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Backlog {
    bytes: AtomicUsize,
    is_full: Notify,
}

/// The end of the output.
pub(super) struct Closed {
    backlog: Arc<Backlog>,
    writer: JoinHandle<io::Result<()>>,
}

impl Output {
    /// Starts the thread.
    pub(super) fn start() -> (Self, Closed) {
        let (lines, received) = mpsc::unbounded_channel();
        let backlog = Arc::new(Backlog::default());
        let written = Arc::clone(&backlog);
        let writer = spawn_blocking(move || write(received, &written));
        (Self { lines, backlog: Arc::clone(&backlog) }, Closed { backlog, writer })
    }

    /// Prints an event.
    pub(super) fn print(&self, event: &Event) {
        let line = output::json_line(event) + "\n";
        let before = self.backlog.bytes.fetch_add(line.len(), Ordering::Relaxed);
        if before.saturating_add(line.len()) > MAX_BACKLOG {
            self.backlog.is_full.notify_one();
        }
        // If the output is closed, the event is of no use.
        self.lines.send(line).unwrap_or_default();
    }
}

impl Closed {
    /// Waits until the reader has closed the pipe. Fails if the output cannot be written, or if too much of it is not read.
    pub(super) async fn wait(&mut self) -> io::Result<()> {
        let closed = async {
            while !self.writer.is_finished() && !output::is_closed() {
                sleep(CLOSED_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            () = self.backlog.is_full.notified() => Err(io::Error::other(
                "8 MiB of the output were not read, so all leases are released: read the output all the time",
            )),
            () = closed => Ok(()),
        }
    }

    /// Waits until the last lines are written, but not for long: the reader may not read. Returns the error of the output, if
    /// there is one.
    pub(super) async fn finish(self, output: Output) -> io::Result<()> {
        let until = async {
            while output.backlog.bytes.load(Ordering::Relaxed) > 0 && !self.writer.is_finished() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LAST_LINES, until).await.unwrap_or_default();
        if self.writer.is_finished() { self.writer.await.unwrap_or(Ok(())) } else { Ok(()) }
    }
}

/// Writes lines, several at once if they wait.
fn write(mut lines: UnboundedReceiver<String>, backlog: &Backlog) -> io::Result<()> {
    while let Some(mut chunk) = lines.blocking_recv() {
        while chunk.len() < CHUNK
            && let Ok(line) = lines.try_recv()
        {
            chunk.push_str(&line);
        }
        output::raw(&chunk)?;
        backlog.bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
    }
    Ok(())
}

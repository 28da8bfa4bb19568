//! The standard output: text lines, with colours on a terminal, and JSON lines.
//!
//! Invariant: an output that does not block is written as one that does. Its error is never taken for a reader that left.

use std::{
    env, fmt,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use serde::Serialize;
use tokio::{
    sync::mpsc::{self, Sender},
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

use crate::ui::escape;

/// The interval of the check whether the reader has closed the pipe.
const CLOSED_INTERVAL: Duration = Duration::from_millis(250);

/// Returns whether the standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns whether the terminal cannot move its cursor, as those of some editors.
pub(crate) fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Returns the columns, if the standard output is a terminal.
pub(crate) fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0);
    is_terminal().then(|| size.map_or(80, |size| size.ws_col.into()))
}

/// Returns whether the reader has closed the pipe, as `head` does.
pub(crate) fn is_closed() -> bool {
    events(PollFlags::empty()).intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Returns which of these events the standard output has now. Errors need not be named.
fn events(of: PollFlags) -> PollFlags {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, of)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).map_or(PollFlags::empty(), |_| polled[0].revents())
}

/// Waits until the reader has closed the pipe, or until the thread that writes has ended.
pub(crate) async fn closed(texts: Sender<String>) {
    while !texts.is_closed() && !is_closed() {
        sleep(CLOSED_INTERVAL).await;
    }
}

/// Starts a thread that writes lines, because a write can block for as long as the reader wants. A few lines wait for it. It
/// ends after an error, or when the sender was dropped.
pub(crate) fn start_writer() -> (Sender<String>, JoinHandle<io::Result<()>>) {
    let (lines, mut received) = mpsc::channel::<String>(16);
    let writer = spawn_blocking(move || {
        while let Some(text) = received.blocking_recv() {
            line(&text)?;
        }
        Ok(())
    });
    (lines, writer)
}

/// The error of an output whose reader has closed the pipe. Only this module makes it.
#[derive(Debug)]
pub(crate) struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader has closed the pipe")
    }
}

impl std::error::Error for ReaderGone {}

impl ReaderGone {
    /// Marks the error of a write to the standard output as this, if it is this. Another error names the output.
    pub(crate) fn mark(error: &io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => io::Error::other(Self),
            kind => io::Error::new(kind, format!("cannot write the standard output: {error}")),
        }
    }

    pub(crate) fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Self>)
    }
}

/// Prints a line.
pub(crate) fn line(line: &str) -> io::Result<()> {
    raw(&format!("{}\n", wanted(line)))
}

/// Prints bytes as they are. If the output does not block and is full, waits until it takes more.
pub(crate) fn bytes(mut rest: &[u8]) -> io::Result<()> {
    let stdout = io::stdout();
    while !rest.is_empty() {
        match rustix::io::write(&stdout, rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], None)),
            Err(error) => return Err(ReaderGone::mark(&error.into())),
        }
    }
    Ok(())
}

/// Prints what the parser has formatted: help, or what is wrong with the arguments.
pub(crate) fn help(error: &clap::Error) -> io::Result<()> {
    error.print().and_then(|()| io::stdout().flush()).map_err(|error| ReaderGone::mark(&error))
}

pub(crate) fn lines(lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|one| line(one))
}

/// Prints an object as a line of JSON.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    line(&json_line(value))
}

/// Prints an object as JSON if that is wanted, otherwise a text.
pub(crate) fn json_or_line(is_json: bool, value: &impl Serialize, text: &str) -> io::Result<()> {
    if is_json { json(value) } else { line(&escape::visible(text)) }
}

/// Formats an object as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    // The keys of all maps are texts, so that this cannot fail.
    escape::visible_json(&serde_json::to_string(value).unwrap_or_default())
}

/// Writes control sequences and text as they are: `NO_COLOR` does not apply to cursor movements.
pub(crate) fn raw(text: &str) -> io::Result<()> {
    bytes(text.as_bytes())
}

/// Returns a text without its colours, unless the output is a terminal and `NO_COLOR` is unset.
pub(crate) fn wanted(text: &str) -> String {
    match AutoStream::choice(&io::stdout()) {
        ColorChoice::Never => strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}

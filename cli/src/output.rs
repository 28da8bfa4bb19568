//! The standard output: text lines, with colours on a terminal, and JSON lines.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use crate::escape;

/// Returns whether the standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Returns the columns and rows, if the standard output is a terminal.
pub(crate) fn size() -> Option<(usize, usize)> {
    is_terminal().then(|| window().unwrap_or((80, 24)))
}

/// Returns the columns, if the standard output is a terminal.
pub(crate) fn width() -> Option<usize> {
    size().map(|(columns, _)| columns)
}

fn window() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// Returns whether the reader has closed the pipe, as `head` does.
pub(crate) fn is_closed() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
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
    /// Marks the error of a write to the standard output as this, if it is this.
    pub(crate) fn mark(error: io::Error) -> io::Error {
        if error.kind() == io::ErrorKind::BrokenPipe { io::Error::other(Self) } else { error }
    }

    pub(crate) fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Self>)
    }
}

/// Prints a line and flushes. Removes its colours outside a terminal and with `NO_COLOR`.
pub(crate) fn line(line: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(ReaderGone::mark)
}

/// Prints bytes as they are, and flushes.
pub(crate) fn bytes(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(ReaderGone::mark)
}

/// Prints what the parser has formatted: help, or what is wrong with the arguments.
pub(crate) fn help(error: &clap::Error) -> io::Result<()> {
    error.print().and_then(|()| io::stdout().flush()).map_err(ReaderGone::mark)
}

pub(crate) fn lines(lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|one| line(one))
}

/// Prints an object as a line of JSON.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    line(&escape::visible_json(&serde_json::to_string(value)?))
}

/// Makes the first line of a table bold.
pub(crate) fn with_bold_header(mut lines: Vec<String>) -> Vec<String> {
    let bold = anstyle::Style::new().bold();
    if let Some(header) = lines.first_mut() {
        *header = format!("{bold}{header}{bold:#}");
    }
    lines
}

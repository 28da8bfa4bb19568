//! The standard output: lines for people, colours on a terminal, objects for programs.

use std::io::{self, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use crate::escape;

/// Whether somebody looks.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Columns and rows of the terminal, if it is one.
pub(crate) fn size() -> Option<(usize, usize)> {
    is_terminal().then(|| window().unwrap_or((80, 24)))
}

/// Columns of the terminal, if it is one.
pub(crate) fn width() -> Option<usize> {
    size().map(|(columns, _)| columns)
}

fn window() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// Whether whoever read the output has gone, as `head` does.
pub(crate) fn is_closed() -> bool {
    let stdout = io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// One line, at once. Colours in it are left out where nobody wants them.
pub(crate) fn line(line: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

pub(crate) fn lines(lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|one| line(one))
}

/// One object on a line.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    line(&escape::visible_json(&serde_json::to_string(value)?))
}

/// A table's lines, its header in bold.
pub(crate) fn with_bold_header(mut lines: Vec<String>) -> Vec<String> {
    let bold = anstyle::Style::new().bold();
    if let Some(header) = lines.first_mut() {
        *header = format!("{bold}{header}{bold:#}");
    }
    lines
}

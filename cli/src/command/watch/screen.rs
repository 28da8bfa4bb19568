//! The full-screen view of `watch`: a table of the leases, and the latest events below it.

use std::{
    collections::VecDeque,
    io::{self, Write},
};

use mongoseal::{ListedLease, Result};

use super::KeyEvent;
use crate::{escape, json::LeaseTable, output, table};

/// The largest number of events that are kept for the screen.
const MAX_EVENTS: usize = 200;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// The alternate screen of a terminal. Dropping it restores the normal screen.
pub(super) struct Screen {
    events: VecDeque<String>,
}

impl Screen {
    /// Enters the alternate screen, if the standard output is a terminal.
    pub(super) fn open() -> io::Result<Option<Self>> {
        if !output::is_terminal() {
            return Ok(None);
        }
        // Made before the write, so that its drop restores the terminal even if the write fails.
        let screen = Self { events: VecDeque::new() };
        write(ENTER)?;
        Ok(Some(screen))
    }

    pub(super) fn add(&mut self, events: &[KeyEvent]) {
        // The screen shows no dates: its events are recent.
        let without_date = |line: String| line.split_once('T').map_or(line.clone(), |(_, rest)| rest.to_owned());
        self.events.extend(events.iter().map(KeyEvent::line).map(without_date));
        while self.events.len() > MAX_EVENTS {
            self.events.pop_front();
        }
    }

    /// Draws the table of the leases, and the latest events below it.
    pub(super) fn draw(&self, leases: Result<Vec<ListedLease>>) -> io::Result<()> {
        let (columns, rows) = output::size().unwrap_or((80, 24));
        // The events get a third of the screen, and the rows that the table does not need.
        let room = (rows - rows / 3).saturating_sub(3).max(1);
        let mut lines = match leases {
            Ok(leases) => lease_table(leases, room, columns),
            Err(error) => vec![table::cut(&escape::visible(&error.to_string()), columns)],
        };
        lines.push(String::new());
        let room = rows.saturating_sub(lines.len());
        let from = self.events.len().saturating_sub(room);
        lines.extend(self.events.iter().skip(from).map(|event| table::cut(event, columns)));
        lines.truncate(rows);
        let body: Vec<String> = lines.iter().map(|line| format!("{line}{REST_OF_LINE}")).collect();
        write(&format!("{HOME}{}{REST_OF_SCREEN}", body.join("\r\n")))
    }
}

/// Formats a table of at most `room` leases, and the number of further leases.
fn lease_table(mut leases: Vec<ListedLease>, room: usize, columns: usize) -> Vec<String> {
    let hidden = leases.len().saturating_sub(room);
    leases.truncate(room);
    let mut table = LeaseTable::new();
    for lease in &leases {
        table.row(lease);
    }
    if table.is_empty() {
        return vec!["No leases.".into()];
    }
    let mut lines = output::with_bold_header(table.lines(Some(columns)));
    if hidden > 0 {
        lines.push(format!("… and {hidden} more"));
    }
    lines
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Fails if the terminal is gone, and then there is nothing to restore.
        drop(write(LEAVE));
    }
}

/// Writes control sequences to the terminal, unfiltered: `NO_COLOR` does not apply to cursor movements.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

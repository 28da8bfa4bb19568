//! A terminal on which a table stays where it is.

use std::{
    collections::VecDeque,
    io::{self, Write},
};

use mongoseal::{ListedLease, Mongoseal, Result};

use super::Happened;
use crate::{
    escape,
    json::{self, LeaseTable},
    output, table,
};

/// How many events are kept for a screen.
const KEPT: usize = 200;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// The second screen of a terminal. Leaving it brings back the first as it was.
pub(super) struct Screen {
    events: VecDeque<String>,
}

impl Screen {
    /// One, if the standard output is a terminal.
    pub(super) fn open() -> io::Result<Option<Self>> {
        if !output::is_terminal() {
            return Ok(None);
        }
        // Before it is entered, so that it is left whatever comes then.
        let screen = Self { events: VecDeque::new() };
        write(ENTER)?;
        Ok(Some(screen))
    }

    pub(super) fn note(&mut self, happened: &[Happened]) {
        // The day is that of who looks.
        let of_today = |line: String| line.split_once('T').map_or(line.clone(), |(_, rest)| rest.to_owned());
        self.events.extend(happened.iter().map(Happened::line).map(of_today));
        while self.events.len() > KEPT {
            self.events.pop_front();
        }
    }

    /// Shows who holds what, and below it the latest events.
    pub(super) async fn draw(&self, seal: &Mongoseal, leases: Result<Vec<ListedLease>>) -> io::Result<()> {
        let (columns, rows) = output::size().unwrap_or((80, 24));
        // A third of the screen is for events, and what the table leaves.
        let room = (rows - rows / 3).saturating_sub(3).max(1);
        let mut lines = match leases {
            Ok(leases) => held(seal, leases, room, columns).await,
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

/// The table of so many leases at most, and how many more there are.
async fn held(seal: &Mongoseal, mut leases: Vec<ListedLease>, room: usize, columns: usize) -> Vec<String> {
    let hidden = leases.len().saturating_sub(room);
    leases.truncate(room);
    let waiting = json::queues(seal, &leases).await;
    let mut table = LeaseTable::new();
    for lease in &leases {
        table.row(lease, waiting.get(&lease.key).copied());
    }
    if table.is_empty() {
        return vec!["Nobody holds anything.".into()];
    }
    let mut lines = output::with_bold_header(table.lines(Some(columns)));
    if hidden > 0 {
        lines.push(format!("… and {hidden} more"));
    }
    lines
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal has gone there is nothing to bring back.
        drop(write(LEAVE));
    }
}

/// Whether colours are wanted or not, the cursor is moved: this is for a terminal only.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

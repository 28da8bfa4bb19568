//! The full-screen view of `watch`: a table of the holders, and the latest events below it.
//!
//! The view is drawn on the alternate screen. At the end, and during a stop by Ctrl-Z, the terminal has its normal screen
//! and its modes back. After the end, the last table and events are printed on the normal screen.

use std::{collections::VecDeque, io, time::Duration};

use mongoseal::{
    Mongoseal,
    inspect::{EventKind, WatchItem},
    store::{Clock, Instant},
};
use rustix::process::Signal;
use signal_hook::low_level::emulate_default_handler;
use tokio::{
    sync::mpsc::{Sender, error::TrySendError},
    task::JoinHandle,
    time::timeout,
};

use super::{LAST_WRITES, check, events::Events, format, holders::Holders, keyboard::Keyboard};
use crate::{
    arguments::Watch, exit_status::Failure, job::signals::Signals, job::terminal::is_job_of_a_shell, time, ui::escape,
    ui::output, ui::table, ui::table::Table,
};

/// The largest number of events that are kept for the screen.
const MAX_EVENTS: usize = 200;
/// The longest and the shortest time between two drawings. Each second the ages change.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
const MIN_INTERVAL: Duration = Duration::from_millis(50);

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";

/// Shows the holders and events until a signal, the key `q`, or an error.
pub(super) async fn show(
    seal: &Mongoseal,
    events: &mut Events,
    options: &Watch,
    signals: &mut Signals,
) -> Result<(), Failure> {
    signals.add_forwarded()?;
    let mut screen = Screen::new(options);
    let ended = screen.run(seal, events, signals).await;
    for item in events.take_all() {
        screen.add(item);
    }
    let (columns, rows) = size();
    // The prompt of the shell needs a row.
    let last = screen.body(columns, rows.saturating_sub(1)).join("\n") + "\n";
    screen.leave(&last).await?;
    ended
}

/// The view. Dropping it restores the terminal.
struct Screen {
    /// What is watched, as a text.
    selection: String,
    keyboard: Keyboard,
    /// The thread that writes, and the channel to it.
    writer: Option<(Sender<String>, JoinHandle<io::Result<()>>)>,
    /// Whether the alternate screen was entered, and must be left.
    is_entered: bool,
    /// Whether the next frame enters it, for the first time or again.
    enters: bool,
    holders: Holders,
    /// The latest items, without `holds`: the table has these holders.
    events: VecDeque<WatchItem>,
    /// The message that the server does not answer.
    failure: Option<String>,
    /// When the last frame was drawn and when the next one is, on the boot-time clock.
    drawn: Instant,
    next: Instant,
}

impl Screen {
    fn new(options: &Watch) -> Self {
        let selection = match &options.key {
            None => String::new(),
            Some(prefix) if options.prefix => format!(" of keys that begin with {prefix:?}"),
            Some(key) => format!(" of {key:?}"),
        };
        Self {
            selection,
            keyboard: Keyboard::open(),
            writer: None,
            is_entered: false,
            enters: true,
            holders: Holders::default(),
            events: VecDeque::new(),
            failure: None,
            drawn: Instant::ORIGIN,
            next: Instant::ORIGIN,
        }
    }

    async fn run(&mut self, seal: &Mongoseal, events: &mut Events, signals: &mut Signals) -> Result<(), Failure> {
        let mut checked = Box::pin(check(seal));
        self.enter();
        loop {
            tokio::select! {
                biased;
                number = signals.next() => match Signal::from_named_raw(number) {
                    Some(Signal::TSTP) => self.suspend().await?,
                    Some(Signal::CONT) => self.enter(),
                    Some(Signal::WINCH) => self.next = Instant::ORIGIN,
                    _ => return Ok(()),
                },
                () = self.keyboard.pressed(b'q') => return Ok(()),
                () = Clock::Boot.sleep_until(self.next) => if !self.draw() {
                    return Ok(());
                },
                item = events.next() => match item {
                    Some(item) => self.add(item?),
                    None => return Ok(()),
                },
                failure = &mut checked => {
                    checked.set(check(seal));
                    self.failure = failure;
                }
            }
        }
    }

    fn add(&mut self, item: WatchItem) {
        let mut is_in_table = false;
        if let WatchItem::Event(event) = &item {
            self.holders.apply(event, Clock::Boot.now());
            is_in_table = matches!(event.kind, EventKind::Holds { .. });
        }
        if !is_in_table {
            self.events.push_back(item);
            if self.events.len() > MAX_EVENTS {
                self.events.pop_front();
            }
        }
        self.next = self.next.min(self.drawn.after(MIN_INTERVAL));
    }

    /// Prepares the terminal, and draws everything anew. In the background, stops this program until it is continued.
    fn enter(&mut self) {
        if self.keyboard.is_in_background() && is_job_of_a_shell() {
            stop();
            return;
        }
        self.keyboard.start();
        if self.writer.is_none() {
            self.writer = Some(output::start_writer(1, output::raw));
        }
        (self.enters, self.next) = (true, Instant::ORIGIN);
    }

    /// Stops this program as Ctrl-Z does, with the terminal as it was before.
    async fn suspend(&mut self) -> io::Result<()> {
        // Without a shell, no process would continue this program.
        if is_job_of_a_shell() {
            self.leave("").await?;
            stop();
        }
        Ok(())
    }

    /// Restores the terminal, and prints this text on the normal screen.
    async fn leave(&mut self, last: &str) -> io::Result<()> {
        let is_entered = std::mem::take(&mut self.is_entered);
        let mut written = Ok(());
        if let Some((frames, writer)) = self.writer.take() {
            let text = format!("{}{last}", if is_entered { LEAVE } else { "" });
            let finished = timeout(LAST_WRITES, async {
                // Fails if the writer has failed.
                frames.send(text).await.unwrap_or_default();
                drop(frames);
                writer.await
            });
            if let Ok(Ok(result)) = finished.await {
                written = result;
            }
        }
        self.keyboard.stop();
        written
    }

    /// Draws the view, if the terminal has taken the last frame. Returns whether the terminal is there.
    fn draw(&mut self) -> bool {
        let now = Clock::Boot.now();
        let frame = self.frame();
        self.next = now.after(REDRAW_INTERVAL);
        // This program was continued, and the signal of that comes now.
        let Some((frames, _)) = &self.writer else { return true };
        match frames.try_send(frame) {
            Ok(()) => (self.is_entered, self.enters, self.drawn) = (true, false, now),
            Err(TrySendError::Full(_)) => self.next = now.after(MIN_INTERVAL),
            Err(TrySendError::Closed(_)) => return false,
        }
        true
    }

    fn frame(&self) -> String {
        let (columns, rows) = size();
        let status = self.failure.clone().unwrap_or_else(|| {
            let count = self.holders.len();
            let leases = if count == 1 { "lease" } else { "leases" };
            format!("Press q to end. {count} {leases}{}", self.selection)
        });
        let mut lines = vec![table::cut(&escape::visible(&status), columns), String::new()];
        lines.extend(self.body(columns, rows.saturating_sub(2)));
        lines.resize(rows, String::new());
        // The rest of a line is erased before its text: behind a full line the last character would be erased.
        let lines: Vec<String> = lines.iter().map(|line| format!("{REST_OF_LINE}{line}")).collect();
        let enter = if self.enters { ENTER } else { "" };
        format!("{enter}{HOME}{}", lines.join("\r\n"))
    }

    /// Formats the table of the holders, and the latest events below it, in so many rows.
    fn body(&self, columns: usize, rows: usize) -> Vec<String> {
        // The events get a third of the rows, and those that the table does not need.
        let needed = if self.events.is_empty() { 0 } else { self.events.len().saturating_add(2) };
        let free = rows.saturating_sub(self.holders.len().saturating_add(1));
        let of_events = needed.min(free.max(rows / 3));
        let room = rows.saturating_sub(of_events).max(1);
        let mut lines = self.holders.lines(Clock::Boot.now(), room, columns);
        let from = self.events.len().saturating_sub(of_events.saturating_sub(2));
        let mut table = Table::new(format::COLUMNS).with_fixed_rows();
        for item in self.events.iter().skip(from) {
            table.row(format::cells(item, time::of_day));
        }
        if !table.is_empty() {
            lines.push(String::new());
            lines.extend(table.lines(Some(columns)));
        }
        lines.iter().map(|line| output::wanted(line)).collect()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Only after a panic: otherwise this was done.
        if self.is_entered {
            output::raw_now(LEAVE);
        }
    }
}

fn size() -> (usize, usize) {
    output::size().unwrap_or((80, 24))
}

/// Stops this process until it is continued.
fn stop() {
    // Never fails for this signal.
    emulate_default_handler(Signal::TSTP.as_raw()).unwrap_or_default();
}

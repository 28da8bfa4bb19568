//! Messages on the standard error: errors, warnings, and notes, which `--quiet` suppresses. On a terminal also progress.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use clap::builder::Styles;
use mongoseal::store::Clock;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    termios::tcgetwinsize,
};

use super::{escape, output, table};

static IS_QUIET: AtomicBool = AtomicBool::new(false);
/// Whether a terminating signal has come.
static IS_SIGNALLED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// How long a message waits for its reader after such a signal.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many bytes a pipe that is ready takes at once.
const PIPE_BUF: usize = 4_096;

/// Suppresses notes from now on.
pub(crate) fn suppress_notes() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Whether progress can be shown in a line that is rewritten.
pub(crate) fn has_progress_line() -> bool {
    !is_quiet() && io::stderr().is_terminal() && !output::is_dumb()
}

/// Prints what the program does or has found, unless this is suppressed.
pub(crate) fn print_note(line: &str) {
    if !is_quiet() {
        print("", line);
    }
}

/// Prints the sentence that stands for an empty output, unless notes are suppressed.
pub(crate) fn print_answer(line: &str) {
    if !is_quiet() {
        print_line(line);
    }
}

/// Prints what may need attention.
pub(crate) fn print_warning(line: &str) {
    print("", line);
}

/// Prints why the program, or a part of it, has failed. On a terminal the word `error` has the colour that it has in the
/// errors of the parser.
pub(crate) fn print_error(line: &str) {
    let style = match AutoStream::choice(&io::stderr()) {
        ColorChoice::Never => anstyle::Style::new(),
        _ => *Styles::styled().get_error(),
    };
    print(&format!("{style}error:{style:#} "), line);
}

fn print(label: &str, line: &str) {
    print_line(&format!("mongoseal: {label}{}", escape::visible(line)));
}

/// Prints a line by one write, unless it is very long. Ignores a closed pipe. If the reader takes nothing, waits until a
/// terminating signal.
fn print_line(line: &str) {
    let (stderr, began) = (io::stderr(), Clock::Boot.now());
    for part in format!("{line}\n").as_bytes().chunks(PIPE_BUF) {
        while !takes_more(&stderr) {
            let is_signalled = IS_SIGNALLED.get().is_some_and(|is_signalled| is_signalled.load(Ordering::Relaxed));
            // The signal may be an old one, which a command has survived.
            if is_signalled && Clock::Boot.now().since(began) > PATIENCE {
                return;
            }
        }
        if (&stderr).write_all(part).is_err() {
            return;
        }
    }
}

/// Whether a write of [`PIPE_BUF`] bytes returns at once. Waits for that for a short time.
fn takes_more(stderr: &io::Stderr) -> bool {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    match poll(&mut [PollFd::new(stderr, PollFlags::OUT)], Some(&time)) {
        Ok(ready) => ready > 0,
        Err(error) => error != Errno::INTR,
    }
}

/// After this signal, the program drops a message that its reader does not take within [`PATIENCE`]. The program handles the
/// signal, so the signal does not end the write.
pub(crate) fn give_up_after(signal: i32) -> io::Result<()> {
    let is_signalled = IS_SIGNALLED.get_or_init(Arc::default);
    signal_hook::flag::register(signal, Arc::clone(is_signalled)).map(drop)
}

/// The progress line, which is rewritten during a wait and erased at its end. Only for a terminal: see [`has_progress_line`].
#[derive(Default)]
pub(crate) struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    pub(crate) fn show(&mut self, text: &str) {
        // Some terminals report a width of 0.
        let width = tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        let whole = escape::visible(&format!("mongoseal: {text}"));
        let line = table::cut(&whole, width.unwrap_or(80).saturating_sub(1));
        drop(write!(io::stderr(), "\r{line}\x1b[K"));
        self.is_shown = true;
    }

    pub(crate) fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.erase();
    }
}

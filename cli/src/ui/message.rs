//! Messages on the standard error: errors, warnings, and notes, which `--quiet` suppresses. On a terminal also progress.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use anstream::{AutoStream, ColorChoice};
use clap::builder::Styles;

use rustix::termios::tcgetwinsize;

use super::{escape, output, table};

static IS_QUIET: AtomicBool = AtomicBool::new(false);

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

/// Prints a line by one write. Ignores a closed pipe.
fn print_line(line: &str) {
    drop(io::stderr().write_all(format!("{line}\n").as_bytes()));
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

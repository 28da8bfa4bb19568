//! A line for each item.

use mongoseal::{Mongoseal, inspect::WatchItem};
use tokio::{sync::mpsc::Sender, time::timeout};

use super::{LAST_WRITES, check, events::Events, format};
use crate::{exit_status::Failure, job::signals::Signals, ui::message::print_note, ui::output};

/// How many lines wait for the reader. Then the watch waits, too.
const CHANNEL_SIZE: usize = 16;

/// Prints items until a signal, an error, or the end of the reader.
pub(super) async fn print(
    seal: &Mongoseal,
    events: &mut Events,
    is_json: bool,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if !seal.capabilities().change_streams {
        print_note(
            "this server has no change streams, so the watch polls: a lease that is granted and ends between two polls has no events",
        );
    }
    // Another thread writes: a reader that does not read must not block the signals.
    let (lines, writer) = output::start_writer(CHANNEL_SIZE, output::line);
    let ended = signals.unless(relay(seal, events, is_json, &lines)).await.unwrap_or(Ok(()));
    for item in events.take_all() {
        if lines.try_send(line(is_json, &item)).is_err() {
            break;
        }
    }
    drop(lines);
    if let Ok(Ok(written)) = timeout(LAST_WRITES, writer).await {
        written?;
    }
    ended
}

fn line(is_json: bool, item: &WatchItem) -> String {
    if is_json { format::json(item) } else { format::line(item, output::width()) }
}

/// Sends a line for each item until an error, or until the reader has closed the output.
async fn relay(seal: &Mongoseal, events: &mut Events, is_json: bool, lines: &Sender<String>) -> Result<(), Failure> {
    let mut closed = Box::pin(output::closed(lines.clone()));
    let mut checked = Box::pin(check(seal));
    let mut is_reported = false;
    loop {
        tokio::select! {
            biased;
            () = &mut closed => return Ok(()),
            item = events.next() => {
                let Some(item) = item else { return Ok(()) };
                if lines.send(line(is_json, &item?)).await.is_err() {
                    return Ok(());
                }
            }
            failure = &mut checked => {
                checked.set(check(seal));
                let is_new = !std::mem::replace(&mut is_reported, failure.is_some());
                if let Some(message) = failure.filter(|_| is_new) {
                    print_note(&message);
                }
            }
        }
    }
}

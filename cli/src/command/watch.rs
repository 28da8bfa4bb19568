//! `mongoseal watch`: a line for each event.

mod events;
mod format;

use std::time::Duration;

use events::Events;
use mongoseal::{Error, Mongoseal, inspect::WatchItem};
use tokio::{
    sync::mpsc::Sender,
    time::{sleep, timeout},
};

use crate::{
    arguments::Watch,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    ui::{message::print_note, output},
};

/// The interval of the checks whether the server answers. The stream of events is silent if it does not.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The time that the last lines have to be written. A reader that does not read must not delay the end.
const LAST_WRITES: Duration = Duration::from_millis(500);

pub(crate) async fn perform(connection: &Connection, options: Watch) -> Result<Status, Failure> {
    // Registered first, so that no signal is missed.
    let mut signals = Signals::terminating()?;
    let Ok(seal) = signals.unless(connection.open()).await else { return Ok(Status::DONE) };
    let seal = seal?;
    let ended = print(&seal, &options, &mut signals).await;
    signals.finish(seal.shutdown()).await.unwrap_or_default();
    ended.map(|()| Status::DONE)
}

/// Prints events until a signal, an error, or the end of the reader.
async fn print(seal: &Mongoseal, options: &Watch, signals: &mut Signals) -> Result<(), Failure> {
    let Ok(events) = signals.unless(Events::open(seal, options)).await else { return Ok(()) };
    let mut events = events?;
    if !seal.capabilities().change_streams {
        print_note(
            "this server has no change streams, so the watch polls: a lease that is granted and ends between two polls has no events",
        );
    }
    // Another thread writes: a reader that does not read must not block the signals.
    let (lines, writer) = output::start_writer();
    let ended = signals.unless(relay(seal, &mut events, options.json, &lines)).await.unwrap_or(Ok(()));
    for item in events.take_all() {
        if lines.try_send(line(options.json, &item)).is_err() {
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

/// Checks, after the interval, whether the server answers. Returns a message if it does not.
async fn check(seal: &Mongoseal) -> Option<String> {
    sleep(CHECK_INTERVAL).await;
    match seal.now().await {
        Err(error @ Error::Unavailable { .. }) => Some(Failure::from(&error).message().to_owned()),
        _ => None,
    }
}

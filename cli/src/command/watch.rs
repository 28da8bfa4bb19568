//! `mongoseal watch`.

mod events;
mod format;
mod holders;
mod keyboard;
mod lines;
mod screen;

use std::time::Duration;

use events::Events;
use mongoseal::{Error, Mongoseal};
use tokio::time::sleep;

use crate::{
    arguments::Watch,
    connection::Connection,
    exit_status::{Failure, Status},
    job::signals::Signals,
    ui::output,
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
    let ended = watch(&seal, &options, &mut signals).await;
    signals.finish(seal.shutdown()).await.unwrap_or_default();
    ended.map(|()| Status::DONE)
}

/// Reports events until a signal, a key, or the end of the reader.
async fn watch(seal: &Mongoseal, options: &Watch, signals: &mut Signals) -> Result<(), Failure> {
    let Ok(events) = signals.unless(Events::open(seal, options)).await else { return Ok(()) };
    let mut events = events?;
    if options.json || options.plain || !output::is_terminal() || output::is_dumb() {
        lines::print(seal, &mut events, options.json, signals).await
    } else {
        screen::show(seal, &mut events, options, signals).await
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

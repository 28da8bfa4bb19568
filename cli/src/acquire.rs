//! Acquires a key for `run` and `elect`, with a progress line on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use mongoseal::{Clock, Error, Inspection, Mongoseal, Result};
use rustix::termios::tcgetwinsize;
use tokio::time::sleep;

use crate::{
    arguments::LeaseOptions, connection::Connection, escape, exit_status::Failure, print_message, signals::Signals,
    time,
};

/// The wait after which the progress line appears, and the interval at which it is updated.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// The pause before a retry if MongoDB did not answer.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Acquires a key within `wait`. Calls `attempt` with the wait that remains, and calls it again if MongoDB is
/// unavailable.
pub(crate) async fn acquire<T, A: Future<Output = Result<T>>>(
    seal: &Mongoseal,
    key: &str,
    wait: Duration,
    attempt: impl Fn(Duration) -> A,
) -> Result<T> {
    let clock = Clock::Boot;
    let until = clock.now().saturating_add(wait);
    let mut is_reported = false;
    loop {
        let remaining = until.saturating_sub(clock.now());
        let result = with_progress(seal, key, attempt(remaining)).await;
        let Err(Error::Unavailable { message, .. }) = &result else { return result };
        if wait.is_zero() || clock.now() >= until {
            return result;
        }
        if !is_reported {
            print_message(&format!("MongoDB did not answer, retrying {key:?}: {message}"));
            is_reported = true;
        }
        sleep(RETRY_DELAY).await;
    }
}

/// Connects with the owner of `options`, unless a signal ends the program first.
pub(crate) async fn open(
    connection: &Connection,
    options: &LeaseOptions,
    signals: &mut Signals,
) -> std::result::Result<Mongoseal, Failure> {
    let mut builder = connection.builder();
    if let Some(owner) = &options.owner {
        builder = builder.owner(owner.as_str());
    }
    signals.unless(connection.open_with(builder)).await.unwrap_or_else(|number| Err(Failure::by_signal(number)))
}

/// Waits for `request`, unless a signal ends the program first. If there is no result, the handle shuts down, which
/// withdraws the waiter; a second signal shortens that.
pub(crate) async fn unless_signalled<T>(
    seal: &Mongoseal,
    signals: &mut Signals,
    request: impl Future<Output = Result<T>>,
) -> std::result::Result<T, Failure> {
    let failure = match signals.unless(request).await {
        Ok(Ok(result)) => return Ok(result),
        Ok(Err(error)) => error.into(),
        Err(number) => Failure::by_signal(number),
    };
    // If the shutdown is cut short, the waiter expires by its ttl.
    signals.finish(seal.shutdown()).await.unwrap_or_default();
    Err(failure)
}

/// Waits for `request`, and shows the queue and the holder on a terminal meanwhile.
async fn with_progress<T>(seal: &Mongoseal, key: &str, request: impl Future<Output = T>) -> T {
    let mut request = pin!(request);
    if !io::stderr().is_terminal() {
        return request.await;
    }
    let mut line = Line { is_shown: false };
    let mut pause = PROGRESS_DELAY;
    loop {
        tokio::select! {
            biased;
            result = &mut request => return result,
            () = sleep(pause) => {}
        }
        tokio::select! {
            biased;
            result = &mut request => return result,
            record = seal.inspect(key) => if let Ok(Some(record)) = record {
                line.show(&progress(&record, seal));
            }
        }
        pause = PROGRESS_INTERVAL;
    }
}

/// Returns the text of the progress line. The position comes before the holder, because a narrow terminal cuts the end.
fn progress(record: &Inspection, seal: &Mongoseal) -> String {
    // If several waiters have this owner, the position of this one is unknown.
    let mut ours = record.queue.iter().filter(|waiter| waiter.owner == *seal.owner());
    let position = match (ours.next(), ours.next()) {
        (Some(waiter), None) if waiter.position == 0 => "next in line".to_owned(),
        (Some(waiter), None) => format!("{} ahead in the queue", waiter.position),
        _ => format!("{} in the queue", record.queue.len()),
    };
    let text = format!("waiting for {:?}, {position}", record.key.as_str());
    let mut holders = record.holders.iter().filter(|holder| !holder.is_expired());
    let Some(holder) = holders.next() else { return text };
    let remaining = holder.remaining.map(|time| format!(" ({} remaining)", time::brief(time))).unwrap_or_default();
    let others = match holders.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{text}; held by {}{remaining}{others}", holder.owner)
}

/// The progress line, which is rewritten during the wait and erased when dropped.
struct Line {
    is_shown: bool,
}

impl Line {
    fn show(&mut self, text: &str) {
        // Some terminals report a width of 0.
        let width = tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        let whole = escape::visible(&format!("mongoseal: {text}"));
        let cut: String = whole.chars().take(width.unwrap_or(80).saturating_sub(1)).collect();
        drop(write!(io::stderr(), "\r{cut}\x1b[K"));
        self.is_shown = true;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_shown {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}

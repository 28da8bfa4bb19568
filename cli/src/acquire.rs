//! Waiting for a key, and saying so on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use mongoseal::{Clock, Error, Inspection, Mongoseal, Result};
use rustix::termios::tcgetwinsize;
use tokio::time::sleep;

use crate::{arguments::Asking, connection::Connection, escape, exit_status::Failure, say, signals::Signals, time};

/// After how long a wait is said, and how often that is brought up to date.
const FIRST: Duration = Duration::from_millis(300);
const EVERY: Duration = Duration::from_secs(2);
/// How long it is until MongoDB, which did not answer, is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Asks for a key by `ask`, which waits as long as it is told, until it is given or `wait` is over. A database that
/// goes away meanwhile is asked again.
pub(crate) async fn acquire<T, A: Future<Output = Result<T>>>(
    seal: &Mongoseal,
    key: &str,
    wait: Duration,
    ask: impl Fn(Duration) -> A,
) -> Result<T> {
    let clock = Clock::Boot;
    let until = clock.now().saturating_add(wait);
    let mut said = false;
    loop {
        let left = until.saturating_sub(clock.now());
        let asked = with_progress(seal, key, ask(left)).await;
        let Err(Error::Unavailable { message, .. }) = &asked else { return asked };
        if wait.is_zero() || clock.now() >= until {
            return asked;
        }
        if !said {
            say(&format!("retries {key:?} until MongoDB answers: {message}"));
            said = true;
        }
        sleep(PAUSE).await;
    }
}

/// Opens the leases, for one who holds some, unless told to end.
pub(crate) async fn open(
    connection: &Connection,
    asking: &Asking,
    signals: &mut Signals,
) -> std::result::Result<Mongoseal, Failure> {
    let mut builder = connection.builder();
    if let Some(owner) = &asking.owner {
        builder = builder.owner(owner.as_str());
    }
    signals.unless(connection.open_with(builder)).await.unwrap_or_else(|number| Err(Failure::by_signal(number)))
}

/// Waits for what was asked, unless told to end. Whoever is not given it withdraws; soon, where they are told again.
pub(crate) async fn given<T>(
    seal: &Mongoseal,
    signals: &mut Signals,
    asked: impl Future<Output = Result<T>>,
) -> std::result::Result<T, Failure> {
    let failure = match signals.unless(asked).await {
        Ok(Ok(given)) => return Ok(given),
        Ok(Err(error)) => error.into(),
        Err(number) => Failure::by_signal(number),
    };
    // Either way it has ended: what is left undone, the ttl does.
    signals.hurry(seal.shutdown()).await.unwrap_or_default();
    Err(failure)
}

/// Waits for what was asked, and says for whom on a terminal.
async fn with_progress<T>(seal: &Mongoseal, key: &str, asked: impl Future<Output = T>) -> T {
    let mut asked = pin!(asked);
    if !io::stderr().is_terminal() {
        return asked.await;
    }
    let mut line = Line { is_shown: false };
    let mut pause = FIRST;
    loop {
        tokio::select! {
            biased;
            answer = &mut asked => return answer,
            () = sleep(pause) => {}
        }
        tokio::select! {
            biased;
            answer = &mut asked => return answer,
            seen = seal.inspect(key) => if let Ok(Some(record)) = seen {
                line.show(&sentence(&record, seal));
            }
        }
        pause = EVERY;
    }
}

/// How many come before this one, and who holds the key: in this order, as a narrow terminal has no room for all.
fn sentence(record: &Inspection, seal: &Mongoseal) -> String {
    // Others may go by the same owner, and then nobody knows which of them this is.
    let mut ours = record.queue.iter().filter(|waiter| waiter.owner == *seal.owner());
    let place = match (ours.next(), ours.next()) {
        (Some(one), None) if one.position == 0 => "next in line".to_owned(),
        (Some(one), None) => format!("{} before it", one.position),
        _ => format!("{} in line", record.queue.len()),
    };
    let sentence = format!("waits for {:?}, {place}", record.key.as_str());
    let mut holders = record.holders.iter().filter(|holder| !holder.is_expired());
    let Some(holder) = holders.next() else { return sentence };
    let left = holder.remaining.map(|left| format!(" ({} left)", time::brief(left))).unwrap_or_default();
    let others = match holders.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{sentence}; held by {}{left}{others}", holder.owner)
}

/// The line that is rewritten while somebody waits, and gone afterwards.
struct Line {
    is_shown: bool,
}

impl Line {
    fn show(&mut self, sentence: &str) {
        // Some do not know how wide they are.
        let width = tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        let whole = escape::visible(&format!("mongoseal: {sentence}"));
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

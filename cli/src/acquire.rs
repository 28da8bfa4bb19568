//! Acquires keys for `run`, `elect`, `hold` and `acquire`, and reports the wait.

mod progress;

use std::{sync::Arc, time::Duration};

use mongoseal::{
    Builder, Error, Mongoseal, Result,
    store::{Clock, Instant},
};
use tokio::time::sleep;

use crate::{
    arguments::WaitOptions,
    connection::Connection,
    exit_status::Failure,
    job::refreshes,
    job::signals::Signals,
    leases::{Leases, OuterLeases},
    time,
    ui::message::print_note,
};
use progress::Progress;

/// The pause before a retry if the server did not answer.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A wait for keys.
pub(crate) struct Wait<'a> {
    seal: &'a Mongoseal,
    keys: &'a [String],
    limit: Duration,
    verbose: bool,
    began: Instant,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(seal: &'a Mongoseal, keys: &'a [String], options: &WaitOptions) -> Self {
        Self { seal, keys, limit: options.limit(), verbose: options.verbose, began: Clock::Boot.now() }
    }

    /// Acquires the keys. Calls `attempt` with the wait that remains, and calls it again if the server is
    /// unavailable.
    pub(crate) async fn acquire<T, A: Future<Output = Result<T>>>(&self, attempt: impl Fn(Duration) -> A) -> Result<T> {
        let clock = Clock::Boot;
        let until = self.began.after(self.limit);
        let mut progress = Progress::new(self.seal, self.keys, self.verbose);
        let mut is_reported = false;
        loop {
            let remaining = until.since(clock.now());
            let result = progress.during(attempt(remaining)).await;
            let error = match result {
                Err(error @ Error::Unavailable { .. }) if !self.limit.is_zero() => error,
                result => return result,
            };
            if clock.now() >= until {
                // The error has the time of the last attempt only.
                let waited = time::brief(clock.now().since(self.began));
                let message = format!("the wait ended after {waited}: {error}");
                return Err(Error::unavailable(message).caused_by(error));
            }
            if !is_reported {
                let keys: Vec<String> = self.keys.iter().map(|key| format!("{key:?}")).collect();
                print_note(&format!("retrying {}: {}", keys.join(", "), Failure::from(&error).message()));
                is_reported = true;
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Reports the grant, if that is wanted.
    pub(crate) fn report_grant(&self, leases: &Leases<'_>) {
        if self.verbose {
            let waited = time::brief(Clock::Boot.now().since(self.began));
            print_note(&format!("granted {leases} after {waited}"));
        }
    }
}

/// Sets the terms of a lease on the builder of an acquire of one key or several.
macro_rules! with_terms {
    ($acquire:expr, $terms:expr) => {{
        let terms: &$crate::arguments::Terms = $terms;
        let acquire = $crate::acquire::with_labels!($acquire, &terms.labels);
        match terms.shared {
            Some(holders) => acquire.shared_up_to(holders),
            None => acquire,
        }
    }};
}
pub(crate) use with_terms;

/// Sets what others see of a lease on the builder of an acquire or of a campaign.
macro_rules! with_labels {
    ($acquire:expr, $labels:expr) => {{
        let labels: &$crate::arguments::Labels = $labels;
        let mut acquire = $acquire;
        if let Some(group) = &labels.group {
            acquire = acquire.group(group.as_str());
        }
        for (name, text) in &labels.metadata {
            acquire = acquire.metadata(name, text);
        }
        acquire
    }};
}
pub(crate) use with_labels;

/// Connects with this owner, unless a signal ends the program first.
pub(crate) async fn open(
    connection: &Connection,
    owner: Option<&str>,
    signals: &mut Signals,
) -> std::result::Result<Mongoseal, Failure> {
    open_with(connection, connection.builder(), owner, signals).await
}

/// Connects by this builder with this owner, unless a signal ends the program first.
pub(crate) async fn open_with(
    connection: &Connection,
    mut builder: Builder,
    owner: Option<&str>,
    signals: &mut Signals,
) -> std::result::Result<Mongoseal, Failure> {
    if let Some(owner) = owner {
        builder = builder.owner(owner);
    }
    builder = builder.observer(Arc::new(refreshes::note));
    signals.unless(connection.open_with(builder)).await.unwrap_or_else(|number| Err(Failure::by_signal(number)))
}

/// Waits for `request`, unless a signal ends the program first. If there is no result, the handle shuts down, which
/// withdraws the waiter; a second signal shortens that.
pub(crate) async fn unless_signalled<T>(
    seal: &Mongoseal,
    signals: &mut Signals,
    wait: &WaitOptions,
    request: impl Future<Output = Result<T>>,
) -> std::result::Result<T, Failure> {
    let failure = match signals.unless(request).await {
        Ok(Ok(result)) => return Ok(result),
        Ok(Err(error)) => wait.status_of(error.into()),
        Err(number) => Failure::by_signal(number),
    };
    // If the shutdown is cut short, the waiter expires by its ttl.
    signals.finish(seal.shutdown()).await.unwrap_or_default();
    Err(failure)
}

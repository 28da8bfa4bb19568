//! Metrics of a handle, by the facade crate [`metrics`](https://docs.rs/metrics). Feature `metrics`.
//!
//! Purpose: an operator sees acquires, refreshes, losses and leaderships in any exporter of the facade. The
//! [page on metrics](crate::guide::metrics) lists each metric and what to alert on.
//!
//! Mechanism: an [`Observer`] turns each event of a handle into updates of the current recorder.
//!
//! Invariants: no label has a key, except the name of a campaign. A gauge is raised and lowered by pairs of events, so it
//! returns to its value.

use std::{borrow::Cow, fmt, time::Duration};

use ::metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::{
    engine::{
        lease_state::ReleaseOutcome,
        observer::{AcquireMode, AcquireOutcome, HandleEvent, Observer, RefreshOutcome},
    },
    types::{error::Error, key::Key},
};

const ACQUIRE_DURATION: &str = "mongoseal.acquire.duration";
const HAND_OVER_DURATION: &str = "mongoseal.hand_over.duration";
const HELD_DURATION: &str = "mongoseal.lease.held.duration";
const REFRESH_DURATION: &str = "mongoseal.refresh.duration";
const RELEASE_DURATION: &str = "mongoseal.release.duration";
const LEASES: &str = "mongoseal.leases";
const WAITERS: &str = "mongoseal.waiters";
const LEADER: &str = "mongoseal.leader";
const LOST: &str = "mongoseal.lease.lost";
const AT_RISK: &str = "mongoseal.lease.at_risk";
const STREAM_OPENED: &str = "mongoseal.stream.opened";
const STREAM_CLOSED: &str = "mongoseal.stream.closed";
const POLLING_STARTED: &str = "mongoseal.polling.started";

/// An [`Observer`] that keeps metrics of its handles in the recorder of the crate `metrics`.
///
/// The [page on metrics](crate::guide::metrics) lists the metrics. One observer serves several handles:
/// [`Builder::observer`](crate::Builder::observer) takes a clone of its [`Arc`](std::sync::Arc).
///
/// Install the recorder before you make the observer. Units, descriptions and zeros are registered when the observer is
/// made. A gauge counts from the installation of the recorder, so it is too low by the leases of before.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use mongoseal::{Mongoseal, metrics::MetricsObserver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let observer = MetricsObserver::new().key_class(|key| match key.as_str().split_once('/') {
///     Some(("reports", _)) => "reports",
///     _ => "other",
/// });
/// let seal = Mongoseal::builder().observer(Arc::new(observer)).in_memory()?;
/// seal.acquire("reports/nightly").await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "an observer receives nothing until a builder has it"]
pub struct MetricsObserver {
    class_of: Option<Box<ClassOf>>,
}

type ClassOf = dyn Fn(&Key) -> Cow<'static, str> + Send + Sync;

impl MetricsObserver {
    /// Creates an observer, and registers its metrics with the current recorder.
    pub fn new() -> Self {
        describe();
        // An exporter shows these before their first events.
        gauge!(LEASES).increment(0);
        gauge!(WAITERS).increment(0);
        counter!(STREAM_OPENED).increment(0);
        counter!(POLLING_STARTED).increment(0);
        Self { class_of: None }
    }

    /// Adds the label `class` to the metrics of keys, with the value that `class_of` returns for the key. Default: no such
    /// label.
    ///
    /// Return few different values. Each value makes new time series in the recorder, which keeps them. `class_of` runs
    /// for each event of the key, on the task of its acquire or lease, so it must return at once.
    pub fn key_class<C>(mut self, class_of: impl Fn(&Key) -> C + Send + Sync + 'static) -> Self
    where
        C: Into<Cow<'static, str>>,
    {
        self.class_of = Some(Box::new(move |key| class_of(key).into()));
        self
    }

    /// The labels of a metric of a key.
    fn of_key<const N: usize>(&self, key: &Key, labels: [(&'static str, &'static str); N]) -> Vec<Label> {
        let class = self.class_of.as_ref().map(|class_of| Label::new("class", class_of(key)));
        to_labels(labels).chain(class).collect()
    }

    fn record_end(&self, key: &Key, end: &'static str, held: Duration, is_campaign: bool) {
        gauge!(LEASES).decrement(1);
        if is_campaign {
            leader(key).decrement(1);
        }
        histogram!(HELD_DURATION, self.of_key(key, [("end", end)])).record(held);
    }
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver").field("has_class", &self.class_of.is_some()).finish()
    }
}

impl Observer for MetricsObserver {
    fn observe(&self, event: &HandleEvent<'_>) {
        // Without a wildcard, so that the compiler names an event without a metric.
        match event {
            HandleEvent::Queued { key, position: _, is_campaign } => {
                gauge!(WAITERS).increment(1);
                if *is_campaign {
                    leader(key).increment(0);
                }
            }
            HandleEvent::AcquireFinished { key, mode, outcome, waited, position, is_campaign } => {
                if position.is_some() {
                    gauge!(WAITERS).decrement(1);
                }
                let granted = u32::from(matches!(outcome, AcquireOutcome::Granted(_)));
                gauge!(LEASES).increment(granted);
                if *is_campaign {
                    leader(key).increment(granted);
                }
                let labels = [("outcome", acquire_outcome(outcome)), ("mode", acquire_mode(*mode, *is_campaign))];
                histogram!(ACQUIRE_DURATION, self.of_key(key, labels)).record(*waited);
            }
            HandleEvent::HandedOver { key, token: _, took } => {
                if let Some(took) = took {
                    histogram!(HAND_OVER_DURATION, self.of_key(key, [])).record(*took);
                }
            }
            HandleEvent::Resumed { key: _, token: _ } => gauge!(LEASES).increment(1),
            HandleEvent::RefreshFinished { key: _, leases: _, outcome, took } => {
                let (outcome, error) = match outcome {
                    RefreshOutcome::Confirmed => ("confirmed", None),
                    RefreshOutcome::Refused => ("refused", None),
                    RefreshOutcome::Failed(error) => ("failed", Some(*error)),
                };
                histogram!(REFRESH_DURATION, of_request(outcome, error)).record(*took);
            }
            HandleEvent::AtRisk { key, token: _, remaining: _, error: _ } => {
                counter!(AT_RISK, self.of_key(key, [])).increment(1);
            }
            HandleEvent::Lost { key, token: _, cause, held, is_campaign } => {
                self.record_end(key, cause.kind(), *held, *is_campaign);
                counter!(LOST, self.of_key(key, [("cause", cause.kind())])).increment(1);
            }
            HandleEvent::Ended { key, token: _, reason, held, is_campaign } => {
                self.record_end(key, reason.kind(), *held, *is_campaign);
            }
            HandleEvent::ReleaseFinished { key: _, token: _, outcome, took } => {
                let (outcome, error) = match outcome {
                    Ok(ReleaseOutcome::Released) => ("released", None),
                    Ok(ReleaseOutcome::Unknown) => ("unknown", None),
                    Ok(ReleaseOutcome::AlreadyLost { .. }) => ("already_lost", None),
                    Ok(ReleaseOutcome::AlreadyTransferred) => ("already_transferred", None),
                    Err(error) => ("failed", Some(*error)),
                };
                histogram!(RELEASE_DURATION, of_request(outcome, error)).record(*took);
            }
            HandleEvent::StreamOpened => counter!(STREAM_OPENED).increment(1),
            HandleEvent::StreamClosed { error } => counter!(STREAM_CLOSED, of_error(*error)).increment(1),
            HandleEvent::PollingStarted { error: _ } => counter!(POLLING_STARTED).increment(1),
        }
    }
}

/// Registers units and descriptions.
fn describe() {
    let histogram = |name: &'static str, text: &'static str| describe_histogram!(name, Unit::Seconds, text);
    histogram(ACQUIRE_DURATION, "How long an acquire of a key took, by its outcome");
    histogram(HAND_OVER_DURATION, "Time from the grant of a key at the store to the notification of its waiter");
    histogram(HELD_DURATION, "How long a lease was held, by what ended it");
    histogram(REFRESH_DURATION, "How long a request took that refreshes one lease or a batch of leases");
    histogram(RELEASE_DURATION, "How long it took to end a lease at the store");
    let gauge = |name: &'static str, text: &'static str| describe_gauge!(name, Unit::Count, text);
    gauge(LEASES, "Leases that are held");
    gauge(WAITERS, "Acquires and campaigns that are queued");
    gauge(LEADER, "1 while a campaign of this process leads the name, 0 as a candidate and after");
    let counter = |name: &'static str, text: &'static str| describe_counter!(name, Unit::Count, text);
    counter(LOST, "Leases that ended although their holder did not end them");
    counter(AT_RISK, "How often the refreshes of a lease were not confirmed, with the deadline ahead");
    counter(STREAM_OPENED, "How often the stream of grants and revocations was opened");
    counter(STREAM_CLOSED, "How often that stream ended or could not be opened");
    counter(POLLING_STARTED, "How often that stream was refused: the waiters poll until a retry succeeds");
}

/// The gauge of a leadership. A process campaigns for few names, so the name may be a label.
fn leader(name: &Key) -> ::metrics::Gauge {
    gauge!(LEADER, "name" => name.as_str().to_owned())
}

fn to_labels<const N: usize>(labels: [(&'static str, &'static str); N]) -> impl Iterator<Item = Label> {
    labels.into_iter().map(|(name, value)| Label::from_static_parts(name, value))
}

/// The labels of a request. As in the conventions of OpenTelemetry, `error.type` is there only if it failed.
fn of_request(outcome: &'static str, error: Option<&Error>) -> Vec<Label> {
    to_labels([("outcome", outcome)]).chain(of_error(error)).collect()
}

fn of_error(error: Option<&Error>) -> Vec<Label> {
    error.map(|error| Label::from_static_parts("error.type", error.kind())).into_iter().collect()
}

fn acquire_outcome(outcome: &AcquireOutcome<'_>) -> &'static str {
    match outcome {
        AcquireOutcome::Granted(_) => "granted",
        AcquireOutcome::Failed(error) => error.kind(),
        AcquireOutcome::Abandoned => "abandoned",
    }
}

/// A candidate waits for as long as another process leads. Its wait is no delay, so it is apart from other waits.
fn acquire_mode(mode: AcquireMode, is_campaign: bool) -> &'static str {
    match mode {
        _ if is_campaign => "campaign",
        AcquireMode::Once => "once",
        AcquireMode::Wait => "wait",
        AcquireMode::Retry => "retry",
    }
}

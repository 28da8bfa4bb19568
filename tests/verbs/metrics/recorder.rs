//! A recorder of the facade `metrics` that a test can read.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, LocalRecorderGuard, Metadata, Recorder,
    SharedString, Unit,
};

/// The time series of a test, by their names and labels, such as `mongoseal.lease.lost{cause=expired}`.
#[derive(Default)]
pub(super) struct Recorded {
    series: Mutex<BTreeMap<String, Arc<Series>>>,
    /// The kind and the unit of each metric that was described, by its name.
    pub(super) described: Mutex<BTreeMap<String, (&'static str, Unit)>>,
}

/// The updates of one time series.
#[derive(Default)]
struct Series(Mutex<Vec<f64>>);

impl Recorded {
    /// Records what this thread does from now on.
    pub(super) fn install() -> (&'static Self, LocalRecorderGuard<'static>) {
        let recorded: &Self = Box::leak(Box::default());
        (recorded, metrics::set_default_local_recorder(recorded))
    }

    /// The sum of a counter, a gauge or a histogram. `None`: nothing was recorded.
    pub(super) fn sum(&self, series: &str) -> Option<f64> {
        self.series.lock().unwrap().get(series).map(|series| series.0.lock().unwrap().iter().sum())
    }

    #[track_caller]
    pub(super) fn assert_sums<const N: usize>(&self, expected: [(&str, f64); N]) {
        for (series, sum) in expected {
            let found = self.sum(series);
            let is_equal = found.is_some_and(|found| (found - sum).abs() < 0.01);
            assert!(is_equal, "{series} is {found:?} instead of {sum}: {:#?}", self.with(""));
        }
    }

    /// How often a time series was updated.
    pub(super) fn updates(&self, series: &str) -> usize {
        self.series.lock().unwrap().get(series).map_or(0, |series| series.0.lock().unwrap().len())
    }

    /// The time series whose names and labels contain a text.
    pub(super) fn with(&self, text: &str) -> Vec<String> {
        self.series.lock().unwrap().keys().filter(|series| series.contains(text)).cloned().collect()
    }

    fn series(&self, key: &Key) -> Arc<Series> {
        let mut labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        Arc::clone(self.series.lock().unwrap().entry(key.name().to_owned() + &labels).or_default())
    }

    fn describe(&self, kind: &'static str, key: &KeyName, unit: Option<Unit>, text: &str) {
        assert!(!text.is_empty());
        let unit = unit.expect("each metric has a unit");
        self.described.lock().unwrap().insert(key.as_str().to_owned(), (kind, unit));
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("counter", &key, unit, &text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("gauge", &key, unit, &text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe("histogram", &key, unit, &text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

impl Series {
    fn note(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.note(u32::try_from(value).unwrap().into());
    }

    fn absolute(&self, _: u64) {
        panic!("several handles may count in one counter");
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.note(value);
    }

    fn decrement(&self, value: f64) {
        self.note(-value);
    }

    fn set(&self, _: f64) {
        panic!("several handles may count in one gauge");
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.note(value);
    }
}

//! How long things took, and what is told of it.

use std::time::Duration;

use serde_json::Value;

/// The samples of one peer, by round, and what went wrong.
#[derive(Default)]
pub(crate) struct Samples {
    rounds: Vec<Vec<Duration>>,
    errors: usize,
    first: Option<String>,
}

impl Samples {
    pub(crate) fn next_round(&mut self) {
        self.rounds.push(Vec::new());
    }

    pub(crate) fn push(&mut self, took: Duration) {
        if let Some(round) = self.rounds.last_mut() {
            round.push(took);
        }
    }

    pub(crate) fn extend(&mut self, took: impl IntoIterator<Item = Duration>) {
        if let Some(round) = self.rounds.last_mut() {
            round.extend(took);
        }
    }

    pub(crate) fn failed(&mut self, error: &dyn std::fmt::Display) {
        self.errors += 1;
        self.first.get_or_insert_with(|| error.to_string());
    }

    /// In milliseconds.
    pub(crate) fn quantile(&self, percent: usize) -> Value {
        quantile(self.rounds.iter().flatten().copied(), percent).map_or(Value::Null, |took| millis(took).into())
    }

    /// The median over the rounds of the ratio of a round's two medians: what a machine does to both in the
    /// same round cancels out.
    pub(crate) fn ratio(&self, floor: &Self) -> Value {
        let medians = |samples: &Self| -> Vec<_> {
            samples.rounds.iter().map(|round| quantile(round.iter().copied(), 50)).collect()
        };
        let ratios = medians(self).into_iter().zip(medians(floor)).filter_map(|(own, floor)| {
            let (own, floor) = (own?, floor?);
            (!floor.is_zero()).then(|| own.as_secs_f64() / floor.as_secs_f64())
        });
        median(ratios).map_or(Value::Null, Into::into)
    }

    /// What went wrong, if anything did.
    pub(crate) fn note(&self) -> Option<String> {
        let taken: usize = self.rounds.iter().map(Vec::len).sum();
        self.first.as_ref().map(|first| format!("{} errors beside {taken} samples; the first: {first}", self.errors))
    }
}

pub(crate) fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

pub(crate) fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

fn quantile(samples: impl Iterator<Item = Duration>, percent: usize) -> Option<Duration> {
    let mut samples: Vec<Duration> = samples.collect();
    samples.sort();
    samples.get(samples.len() * percent / 100).copied()
}

/// So many for each of so many.
pub(crate) fn each(count: usize, of: usize) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are small")]
    let each = count as f64 / of as f64;
    if of == 0 { Value::Null } else { each.into() }
}

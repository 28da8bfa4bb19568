//! Samples, and the statistics that are printed.

use std::time::Duration;

use serde_json::{Value, json};

/// One round of a case.
pub(crate) struct Round {
    /// How long each of ours took.
    pub(crate) ours: Vec<Duration>,
    /// How long each of the floor took, in the same round.
    pub(crate) floor: Vec<Duration>,
}

/// What was measured of a case.
pub(crate) struct Figures {
    pub(crate) case: &'static str,
    /// What one sample is, in a few words.
    pub(crate) what: &'static str,
    pub(crate) rounds: Vec<Round>,
    /// Commands the server ran for each of ours.
    pub(crate) commands: f64,
    /// What else is worth telling.
    pub(crate) notes: Vec<String>,
}

impl Figures {
    fn ours(&self) -> Vec<Duration> {
        sorted(self.rounds.iter().flat_map(|round| round.ours.iter().copied()))
    }

    fn floor(&self) -> Vec<Duration> {
        sorted(self.rounds.iter().flat_map(|round| round.floor.iter().copied()))
    }

    /// The median over the rounds of the ratio of a round's medians: what a machine does to both in
    /// the same round cancels out.
    fn ratio(&self) -> Option<f64> {
        let mut ratios: Vec<f64> = self.rounds.iter().filter_map(Round::ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }

    pub(crate) fn json(&self) -> Value {
        let rounds: Vec<Value> = self
            .rounds
            .iter()
            .map(|round| json!({ "ours_us": micros(median(&sorted(round.ours.iter().copied()))), "floor_us": floor_us(&round.floor) }))
            .collect();
        json!({
            "case": self.case,
            "ours_us": micros(median(&self.ours())),
            "ours_p99_us": micros(quantile(&self.ours(), 99)),
            "floor_us": floor_us(&self.floor()),
            "ratio": self.ratio(),
            "commands": self.commands,
            "rounds": rounds,
            "notes": self.notes,
        })
    }

    /// Prints a table of all cases.
    pub(crate) fn print(all: &[Self]) {
        println!(
            "{:24} {:>11} {:>11} {:>11} {:>7} {:>9}   one sample",
            "case", "median µs", "p99 µs", "floor µs", "ratio", "commands"
        );
        for figures in all {
            let ours = figures.ours();
            let floor = figures.floor();
            println!(
                "{:24} {:>11} {:>11} {:>11} {:>7} {:>9.2}   {}",
                figures.case,
                format!("{:.0}", micros(median(&ours))),
                format!("{:.0}", micros(quantile(&ours, 99))),
                if floor.is_empty() { "-".into() } else { format!("{:.0}", micros(median(&floor))) },
                figures.ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
                figures.commands,
                figures.what,
            );
            for note in &figures.notes {
                println!("{:24} {note}", "");
            }
        }
    }
}

impl Round {
    fn ratio(&self) -> Option<f64> {
        let floor = median(&sorted(self.floor.iter().copied()));
        let ours = median(&sorted(self.ours.iter().copied()));
        (!floor.is_zero()).then(|| ours.as_secs_f64() / floor.as_secs_f64())
    }
}

fn sorted(samples: impl Iterator<Item = Duration>) -> Vec<Duration> {
    let mut samples: Vec<Duration> = samples.collect();
    samples.sort();
    samples
}

fn median(sorted: &[Duration]) -> Duration {
    quantile(sorted, 50)
}

fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn floor_us(samples: &[Duration]) -> Value {
    if samples.is_empty() { Value::Null } else { micros(median(&sorted(samples.iter().copied()))).into() }
}

//! Samples, and the statistics that are printed.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::cpu::{Clocks, ServerTime};

/// What was measured of a case, or of its floor, in one round.
#[derive(Clone, Default)]
pub(crate) struct Samples {
    /// How long each sample took.
    pub(crate) took: Vec<Duration>,
    /// The processor time of the servers for all commands.
    pub(crate) servers: ServerTime,
    /// The number of these commands. 0: the processor time of a command makes no sense.
    pub(crate) commands: u64,
}

/// One round of a case.
pub(crate) struct Round {
    pub(crate) ours: Samples,
    pub(crate) floor: Samples,
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

/// The processor time of the servers for one command, in microseconds.
struct PerCommand {
    primary: f64,
    all: f64,
}

/// Medians over the rounds of the processor time of the servers for one command, in microseconds. `None`: it was not
/// measured.
struct Processor {
    primary: Option<f64>,
    primary_of_floor: Option<f64>,
    ratio: Option<f64>,
    all: Option<f64>,
    all_of_floor: Option<f64>,
}

impl From<Vec<Duration>> for Samples {
    fn from(took: Vec<Duration>) -> Self {
        Self { took, ..Self::default() }
    }
}

impl Samples {
    /// Adds a block of samples, with what the servers spend meanwhile.
    pub(crate) async fn add(&mut self, clocks: &Clocks, block: impl Future<Output = Vec<Duration>>) {
        let (took, servers) = clocks.spent(block).await;
        self.took.extend(took);
        self.servers += servers;
    }

    fn median(&self) -> Duration {
        median(&sorted(self.took.iter().copied()))
    }

    fn per_command(&self) -> Option<PerCommand> {
        let is_measured = self.commands > 0 && !self.servers.all.is_zero();
        let each = |time: Duration| micros(time) / float(self.commands);
        is_measured.then(|| PerCommand { primary: each(self.servers.primary), all: each(self.servers.all) })
    }
}

impl Figures {
    fn ours(&self) -> Vec<Duration> {
        sorted(self.rounds.iter().flat_map(|round| round.ours.took.iter().copied()))
    }

    fn floor(&self) -> Vec<Duration> {
        sorted(self.rounds.iter().flat_map(|round| round.floor.took.iter().copied()))
    }

    /// The median over the rounds of the ratio of a round's medians: what a machine does to both in
    /// the same round cancels out.
    fn ratio(&self) -> Option<f64> {
        self.median_over_rounds(Round::ratio)
    }

    fn processor(&self) -> Processor {
        let ours = |of: fn(PerCommand) -> f64| self.median_over_rounds(|round| round.ours.per_command().map(of));
        let floor = |of: fn(PerCommand) -> f64| self.median_over_rounds(|round| round.floor.per_command().map(of));
        Processor {
            primary: ours(|time| time.primary),
            primary_of_floor: floor(|time| time.primary),
            ratio: self.median_over_rounds(Round::processor_ratio),
            all: ours(|time| time.all),
            all_of_floor: floor(|time| time.all),
        }
    }

    fn median_over_rounds(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let mut values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    pub(crate) fn json(&self) -> Value {
        let processor = self.processor();
        let rounds: Vec<Value> = self.rounds.iter().map(Round::json).collect();
        json!({
            "case": self.case,
            "ours_us": micros(median(&self.ours())),
            "ours_p99_us": micros(quantile(&self.ours(), 99)),
            "floor_us": median_us(&self.floor()),
            "ratio": self.ratio(),
            "commands": self.commands,
            "processor": {
                "primary_us": processor.primary,
                "floor_primary_us": processor.primary_of_floor,
                "ratio": processor.ratio,
                "all_us": processor.all,
                "floor_all_us": processor.all_of_floor,
            },
            "rounds": rounds,
            "notes": self.notes,
        })
    }

    /// Prints the tables of all cases.
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
                or_dash(figures.ratio(), 2),
                figures.commands,
                figures.what,
            );
            for note in &figures.notes {
                println!("{:24} {note}", "");
            }
        }
        println!();
        println!("processor time of the servers per command, µs");
        println!(
            "{:24} {:>11} {:>11} {:>7} {:>11} {:>11}",
            "case", "primary", "floor", "ratio", "all members", "floor"
        );
        for figures in all {
            let processor = figures.processor();
            println!(
                "{:24} {:>11} {:>11} {:>7} {:>11} {:>11}",
                figures.case,
                or_dash(processor.primary, 0),
                or_dash(processor.primary_of_floor, 0),
                or_dash(processor.ratio, 2),
                or_dash(processor.all, 0),
                or_dash(processor.all_of_floor, 0),
            );
        }
    }
}

impl Round {
    fn ratio(&self) -> Option<f64> {
        let (floor, ours) = (self.floor.median(), self.ours.median());
        (!floor.is_zero()).then(|| ours.as_secs_f64() / floor.as_secs_f64())
    }

    fn processor_ratio(&self) -> Option<f64> {
        Some(self.ours.per_command()?.primary / self.floor.per_command()?.primary)
    }

    fn json(&self) -> Value {
        let (ours, floor) = (self.ours.per_command(), self.floor.per_command());
        json!({
            "ours_us": micros(self.ours.median()),
            "floor_us": median_us(&self.floor.took),
            "primary_us": ours.as_ref().map(|time| time.primary),
            "floor_primary_us": floor.as_ref().map(|time| time.primary),
            "all_us": ours.map(|time| time.all),
            "floor_all_us": floor.map(|time| time.all),
        })
    }
}

/// Runs it once with each of these numbers, and returns how long each took.
pub(crate) async fn timed<F: Future<Output = ()>>(numbers: Range<u64>, sample: impl Fn(u64) -> F) -> Vec<Duration> {
    let mut took = Vec::new();
    for number in numbers {
        let began = Instant::now();
        sample(number).await;
        took.push(began.elapsed());
    }
    took
}

/// The commands for each sample of these rounds.
pub(crate) fn commands_per_sample(rounds: &[Round]) -> f64 {
    let samples: usize = rounds.iter().map(|round| round.ours.took.len()).sum();
    let commands: u64 = rounds.iter().map(|round| round.ours.commands).sum();
    float(commands) / float(samples as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a count of commands is small")]
fn float(count: u64) -> f64 {
    count as f64
}

fn or_dash(value: Option<f64>, places: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.places$}"))
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

fn median_us(samples: &[Duration]) -> Value {
    if samples.is_empty() { Value::Null } else { micros(median(&sorted(samples.iter().copied()))).into() }
}

//! Programs: what processes do with leases, step by step. They are drawn by seed, and printed as the test that runs them.

use std::fmt;

use fastrand::Rng;

use crate::choices::{AXES, Axis, Choice, Choices};

/// The keys that programs compete for. Two, so that most steps meet another holder or waiter.
pub(crate) const KEYS: [&str; 2] = ["one", "two"];

/// Something that a process does once.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// How long it waits before, in milliseconds.
    pub(crate) pause: u64,
    pub(crate) key: &'static str,
    pub(crate) choices: Choices,
}

impl Step {
    pub(crate) fn of(pause: u64, key: &'static str, named: &[Choice]) -> Self {
        Self { pause, key, choices: Choices::of(named) }
    }

    pub(crate) fn has(&self, choice: Choice) -> bool {
        self.choices.has(choice)
    }
}

/// Steps of a process, one after another. A process has several tracks at once.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Track {
    pub(crate) process: u64,
    pub(crate) steps: Vec<Step>,
}

/// What all processes do, each track at the same time as the others.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Program(pub(crate) Vec<Track>);

impl Program {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let processes = rng.u64(1..=3);
        let tracks = (0..rng.u64(2..=5)).map(|track| {
            let process = if track < processes { track + 1 } else { rng.u64(1..=processes) };
            Track { process, steps: (0..rng.u64(1..=4)).map(|_| draw_step(rng)).collect() }
        });
        Self(tracks.collect())
    }
}

fn draw_step(rng: &mut Rng) -> Step {
    let named: Vec<_> = AXES
        .iter()
        .filter_map(|(axis, choices)| {
            let is_named = match axis {
                // Most wait, so that there is a queue.
                Axis::OnHeld => rng.u8(..10) < 7,
                Axis::Patience => rng.u8(..10) < 1,
                Axis::Verb | Axis::Work | Axis::End | Axis::During | Axis::Time => rng.u8(..10) < 5,
                _ => rng.u8(..10) < 3,
            };
            is_named.then(|| choices[rng.usize(1..choices.len())])
        })
        .collect();
    let pause = match rng.u8(..20) {
        // Longer than the store keeps an idle record.
        0..2 => rng.u64(..20_000),
        2..10 => rng.u64(..3_000),
        _ => rng.u64(..50),
    };
    Step::of(pause, KEYS[usize::from(rng.u8(..4) == 0)], &named)
}

/// The text of a test that runs it.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Program(vec![")?;
        for Track { process, steps } in &self.0 {
            writeln!(f, "    Track {{ process: {process}, steps: vec![")?;
            for Step { pause, key, choices } in steps {
                writeln!(f, "        Step::of({pause}, {key:?}, &{choices:?}),")?;
            }
            writeln!(f, "    ] }},")?;
        }
        f.write_str("])")
    }
}

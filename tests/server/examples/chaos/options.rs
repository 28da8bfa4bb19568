//! The options of the runner.

use std::path::PathBuf;

use crate::{faults::Kind, sabotage::Sabotage};

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) minutes: f64,
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    pub(crate) only: Vec<Kind>,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) judge: Option<PathBuf>,
    /// How long an outage lasts, in seconds; a few seconds unless said otherwise.
    pub(crate) outage: Option<f64>,
    /// Whether the wall clocks of the members differ.
    pub(crate) clock_offsets: bool,
}

pub(crate) const USAGE: &str = "chaos [--minutes N] [--seed S] [--json FILE] [--only FAULT,…] [--outage SECONDS]
      [--sabotage NAME] [--clock-offsets]
chaos --judge FILE";

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let seed = fastrand::u64(1..1_000_000);
        let mut options = Self {
            minutes: 1.0,
            seed,
            json: None,
            only: Vec::new(),
            sabotage: None,
            judge: None,
            outage: None,
            clock_offsets: false,
        };
        while let Some(name) = arguments.next() {
            if name == "--clock-offsets" {
                options.clock_offsets = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let bad = |said: String| format!("{name} {value}: {said}");
            match name.as_str() {
                "--minutes" => options.minutes = value.parse().map_err(|error| bad(format!("{error}")))?,
                "--seed" => options.seed = value.parse().map_err(|error| bad(format!("{error}")))?,
                "--json" => options.json = Some(value.into()),
                "--only" => options.only = value.split(',').map(Kind::parse).collect::<Result<_, _>>().map_err(bad)?,
                "--sabotage" => options.sabotage = Some(Sabotage::parse(&value).map_err(bad)?),
                "--outage" => options.outage = Some(value.parse().map_err(|error| bad(format!("{error}")))?),
                "--judge" => options.judge = Some(value.into()),
                _ => return Err(format!("there is no {name}")),
            }
        }
        Ok(options)
    }
}

//! The options of the runner.

use std::path::PathBuf;

use crate::{
    faults::Kind,
    sabotage::Sabotage,
    words::{name, named},
};

#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
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
    /// Whether the wall clocks of the servers differ.
    pub(crate) clock_offsets: bool,
    /// By how much they differ, in seconds; less than the smallest grace unless said otherwise.
    pub(crate) clock_offset: Option<f64>,
    /// Whether the clients sit out that ask for many keys at once, beside slow servers.
    pub(crate) few_clients: bool,
    /// Whether the servers are of Redis.
    pub(crate) redis: bool,
    /// Whether no invariant about seconds is judged, so that a slow machine breaks none.
    pub(crate) without_times: bool,
    /// The invariants by which the sabotage is caught: the run ends when it has broken one of them.
    pub(crate) caught_by: Vec<String>,
    /// How many replicas of Redis must acknowledge each write.
    pub(crate) replicas: u32,
}

pub(crate) const USAGE: &str = "chaos [--minutes N] [--seed S] [--json FILE] [--only FAULT,…] [--outage SECONDS]
      [--sabotage NAME] [--caught-by I,…] [--clock-offsets] [--clock-offset SECONDS]
      [--few-clients] [--without-times] [--redis] [--replicas N]
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
            clock_offset: None,
            few_clients: false,
            redis: false,
            without_times: false,
            caught_by: Vec::new(),
            replicas: 1,
        };
        while let Some(option) = arguments.next() {
            let switch = match option.as_str() {
                "--clock-offsets" => Some(&mut options.clock_offsets),
                "--few-clients" => Some(&mut options.few_clients),
                "--redis" => Some(&mut options.redis),
                "--without-times" => Some(&mut options.without_times),
                _ => None,
            };
            if let Some(switch) = switch {
                *switch = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
            let bad = |said: String| format!("{option} {value}: {said}");
            let number = || value.parse().map_err(|error| bad(format!("{error}")));
            match option.as_str() {
                "--minutes" => options.minutes = number()?,
                "--seed" => options.seed = value.parse().map_err(|error| bad(format!("{error}")))?,
                "--json" => options.json = Some(value.into()),
                "--only" => options.only = value.split(',').map(named).collect::<Result<_, _>>().map_err(bad)?,
                "--sabotage" => options.sabotage = Some(named(&value).map_err(bad)?),
                "--caught-by" => options.caught_by = value.split(',').map(str::to_owned).collect(),
                "--outage" => options.outage = Some(number()?),
                "--clock-offset" => options.clock_offset = Some(number()?),
                "--replicas" => options.replicas = value.parse().map_err(|error| bad(format!("{error}")))?,
                "--judge" => options.judge = Some(value.into()),
                _ => return Err(format!("there is no {option}")),
            }
        }
        options.check()?;
        Ok(options)
    }

    /// Checks that the servers know these faults, and the workers this sabotage.
    fn check(&self) -> Result<(), String> {
        let kinds = Kind::all(self.redis);
        if let Some(other) = self.only.iter().find(|kind| !kinds.contains(kind)) {
            return Err(format!("these servers have no {}", name(other)));
        }
        match self.sabotage {
            Some(sabotage) if !sabotage.is_of(self.redis) => Err(format!("these servers have no {}", name(sabotage))),
            _ => Ok(()),
        }
    }
}

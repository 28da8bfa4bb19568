//! The options of the runner.

use std::{fmt::Display, path::PathBuf, str::FromStr};

use crate::{faults::Kind, sabotage::Sabotage, words::named};

#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) minutes: f64,
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    pub(crate) only: Vec<Kind>,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) judge: Option<PathBuf>,
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

pub(crate) const USAGE: &str = "chaos [--minutes N] [--seed S] [--json FILE] [--only FAULT,…] [--sabotage NAME]
      [--caught-by I,…] [--clock-offsets] [--clock-offset SECONDS] [--few-clients]
      [--without-times] [--redis] [--replicas N]
chaos --judge FILE";

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { minutes: 1.0, seed: fastrand::u64(1..1_000_000), replicas: 1, ..Self::default() };
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
            let mut value = || arguments.next().ok_or_else(|| String::from("it needs a value"));
            let done = match option.as_str() {
                "--minutes" => value().and_then(number).map(|minutes| options.minutes = minutes),
                "--seed" => value().and_then(number).map(|seed| options.seed = seed),
                "--json" => value().map(|file| options.json = Some(file.into())),
                "--only" => {
                    value().and_then(|kinds| kinds.split(',').map(named).collect()).map(|kinds| options.only = kinds)
                }
                "--sabotage" => value().and_then(|name| named(&name)).map(|sabotage| options.sabotage = Some(sabotage)),
                "--caught-by" => value().map(|by| options.caught_by = by.split(',').map(str::to_owned).collect()),
                "--clock-offset" => value().and_then(number).map(|offset| options.clock_offset = Some(offset)),
                "--replicas" => value().and_then(number).map(|replicas| options.replicas = replicas),
                "--judge" => value().map(|file| options.judge = Some(file.into())),
                _ => Err("there is no such option".into()),
            };
            done.map_err(|what| format!("{option}: {what}"))?;
        }
        Ok(options)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is the step after a value")]
fn number<T: FromStr<Err: Display>>(value: String) -> Result<T, String> {
    value.parse().map_err(|error| format!("{value}: {error}"))
}

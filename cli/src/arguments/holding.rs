//! The arguments of the commands that hold leases.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};

use crate::{
    exit_status::{Failure, Status},
    tick::NamedTick,
    time,
};

/// The place in the help of options that are seldom needed.
pub(super) const LAST: usize = 900;

/// The options of a lease that a command runs under.
#[derive(Args, Debug)]
pub(crate) struct LeaseOptions {
    /// Time to live of the lease
    ///
    /// The lease expires if no refresh reaches the server for this long. For example 5m.
    #[arg(long, default_value = "30s", value_parser = time::parse, value_name = "TIME")]
    pub(crate) ttl: Duration,
    /// Owner that other programs see, for example web-1
    ///
    /// Environment: `MONGOSEAL_OWNER`. Default: host, process id and a random part.
    #[arg(long, env = "MONGOSEAL_OWNER", hide_env = true, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// SIGTERM this long before the end; default: ttl/6
    ///
    /// The command has this time, less --kill-before, to stop before its lease ends. At most half of the ttl.
    #[arg(long, value_parser = time::parse, value_name = "TIME", display_order = LAST)]
    pub(crate) term_before: Option<Duration>,
    /// SIGKILL this long before the end of the lease
    ///
    /// Default: a fifth of --term-before.
    #[arg(long, value_parser = time::parse, value_name = "TIME", display_order = LAST + 1)]
    pub(crate) kill_before: Option<Duration>,
}

/// The options of the wait for a key.
#[derive(Args, Debug)]
pub(crate) struct WaitOptions {
    /// Longest wait; default: no limit
    ///
    /// For example 5m. A number without a unit is in seconds.
    #[arg(short, long, value_parser = time::parse, value_name = "TIME", conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit with 121 if the key is held
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// Status instead of 121 if the key is held
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) held_status: Option<u8>,
    /// Report the wait and the grant on stderr
    ///
    /// A message is printed when the position in the queue or the holder changes.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

impl WaitOptions {
    /// Returns the longest wait.
    pub(crate) fn limit(&self) -> Duration {
        if self.no_wait { Duration::ZERO } else { self.wait.unwrap_or(Duration::MAX) }
    }

    /// Returns a failure to acquire with the status for it.
    pub(crate) fn status_of(&self, failure: Failure) -> Failure {
        match self.held_status {
            Some(code) if failure.status() == Status::HELD => failure.with_status(Status::of_command(code)),
            _ => failure,
        }
    }
}

/// What a lease allows, and what others see of it.
#[derive(Args, Debug)]
pub(crate) struct Terms {
    /// Share the key among N holders; default: exclusive
    #[arg(long, value_name = "N")]
    pub(crate) shared: Option<u32>,
    #[command(flatten)]
    pub(crate) labels: Labels,
}

/// What others see of a lease.
#[derive(Args, Debug)]
pub(crate) struct Labels {
    /// Group of the lease
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Metadata that others see; can be repeated
    ///
    /// For example build=1.4.2.
    #[arg(long, value_parser = parse_metadata, value_name = "NAME=TEXT")]
    pub(crate) metadata: Vec<(String, String)>,
}

/// The limits of a hold.
#[derive(Args, Debug)]
pub(crate) struct HoldOptions {
    /// Minimum hold: keep the key for this long
    ///
    /// If the command ends sooner, the key stays unavailable for the rest of this time, counted from the grant.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) min_hold: Option<Duration>,
    /// Maximum hold: end the command after this
    ///
    /// No refresh extends the lease past this time, counted from the grant. SIGTERM comes --term-before before its end.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) max_hold: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Key to hold, for example reports/nightly
    ///
    /// With several keys, the command runs while this program holds all of them. The names of the variables then end
    /// with a number, in the order of the keys: `MONGOSEAL_KEY_1`, `MONGOSEAL_TOKEN_1`.
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    #[command(flatten)]
    pub(crate) wait: WaitOptions,
    #[command(flatten)]
    pub(crate) lease: LeaseOptions,
    #[command(flatten)]
    pub(crate) hold: HoldOptions,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// File for how the run ended, as JSON
    ///
    /// It has the tokens, how the command ended, and the statuses of the command and of this program. The file is created
    /// before the key is acquired.
    #[arg(long, value_name = "FILE")]
    pub(crate) status_file: Option<PathBuf>,
    /// Keep the key until a release or a revocation
    ///
    /// If this program or its machine fails, the key is held until an operator revokes the lease.
    #[arg(long, conflicts_with_all = ["ttl", "max_hold"])]
    pub(crate) without_expiry: bool,
    /// Command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("ticks").args(["tick", "every", "reset"]).required(true).multiple(true))]
pub(crate) struct Once {
    /// Key of the schedule, for example reports/hourly
    pub(crate) key: String,
    /// Tick: 2026-11-05, 2026-11-05T02:00Z, or a number
    ///
    /// A date is the whole day in the time zone of the caller, as in --tick "$(date +%F)". A later tick is a later time or a
    /// larger number. With --reset: the first tick that can run again; default: the last
    /// completed one.
    #[arg(long, value_name = "TICK", conflicts_with = "every")]
    pub(crate) tick: Option<NamedTick>,
    /// Tick: time of MongoDB, cut to this period
    ///
    /// With 1h, the ticks are the full hours in UTC. Periods are counted from 1970-01-01 00:00 UTC, a Thursday: days begin
    /// at midnight UTC, and weeks on Thursday. The clock of this machine does not matter.
    #[arg(long, value_parser = time::parse, value_name = "TIME", conflicts_with = "reset")]
    pub(crate) every: Option<Duration>,
    /// Period of a schedule with --tick
    ///
    /// Default: 1 minute, or 1 day for a date. A tick that is further ahead of the time of MongoDB is refused.
    #[arg(long, value_parser = time::parse, value_name = "TIME", requires = "tick")]
    pub(crate) period: Option<Duration>,
    #[command(flatten)]
    pub(crate) wait: WaitOptions,
    #[command(flatten)]
    pub(crate) lease: LeaseOptions,
    #[command(flatten)]
    pub(crate) hold: HoldOptions,
    /// Also complete the tick of a failed command
    #[arg(long)]
    pub(crate) complete_on_error: bool,
    /// Note for the history, such as a version
    ///
    /// A longer note is cut to 200 bytes. Default: none, or the exit status of a failed command.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Status instead of 120 and 119
    ///
    /// These mean that the tick, or a later one, is already done.
    #[arg(long, value_name = "N")]
    pub(crate) done_status: Option<u8>,
    /// Lower the last completed tick; run nothing
    ///
    /// By default, so that the last completed tick can run again.
    #[arg(long)]
    pub(crate) reset: bool,
    /// Operator of a reset; default: user@host
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), requires = "reset")]
    pub(crate) by: Option<String>,
    /// Metadata that others see; can be repeated
    ///
    /// For example build=1.4.2.
    #[arg(long, value_parser = parse_metadata, value_name = "NAME=TEXT")]
    pub(crate) metadata: Vec<(String, String)>,
    /// Command and its arguments, after `--`
    #[arg(last = true, required_unless_present = "reset", conflicts_with = "reset", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Elect {
    /// Name of the election, which is a key, for example scheduler
    pub(crate) name: String,
    /// Value to publish, for example the address 10.0.0.7:4000
    pub(crate) value: String,
    #[command(flatten)]
    pub(crate) wait: WaitOptions,
    #[command(flatten)]
    pub(crate) lease: LeaseOptions,
    #[command(flatten)]
    pub(crate) labels: Labels,
    /// Command, after `--`; default: lead until a signal
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Hold {
    /// Owner that other programs see, for example web-1
    ///
    /// Environment: `MONGOSEAL_OWNER`. Default: host, process id and a random part.
    #[arg(long, env = "MONGOSEAL_OWNER", hide_env = true, value_name = "NAME")]
    pub(crate) owner: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Acquire {
    /// Key to acquire, for example deploy
    pub(crate) key: String,
    /// File that keeps the lease, such as deploy.lease
    ///
    /// It must not exist before, and only this user can read it. It contains a secret: a program that knows it can release
    /// the lease.
    #[arg(long, value_name = "PATH")]
    pub(crate) lease_file: PathBuf,
    /// Time for which the key is held
    ///
    /// Nothing refreshes the lease, so it must last until `mongoseal refresh` or `mongoseal release`. If the script fails
    /// before, the key stays held for this time. For example 15m.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) wait: WaitOptions,
    /// Owner that other programs see, for example web-1
    ///
    /// Environment: `MONGOSEAL_OWNER`. Default: host, process id and a random part.
    #[arg(long, env = "MONGOSEAL_OWNER", hide_env = true, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    #[command(flatten)]
    pub(crate) terms: Terms,
    /// Print one JSON object instead of the token
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Refresh {
    /// File that `mongoseal acquire` has written
    #[arg(long, value_name = "PATH")]
    pub(crate) lease_file: PathBuf,
    /// New time to live; default: as before
    ///
    /// The lease never ends sooner than before. For example 1h.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) ttl: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Release {
    /// File that `mongoseal acquire` has written
    #[arg(long, value_name = "PATH")]
    pub(crate) lease_file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_metadata(text: &str) -> Result<(String, String), String> {
    let (name, text) = text.split_once('=').ok_or("no `=`: pass a name and a text, for example build=1.4.2")?;
    Ok((name.to_owned(), text.to_owned()))
}

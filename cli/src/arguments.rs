//! The commands and options of the program, with their help texts.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use mongoseal::FencingToken;

use crate::{connection::Connection, examples, time};

/// Leases with fencing tokens on MongoDB: run commands under a lease, elect leaders, inspect leases.
#[derive(Debug, Parser)]
#[command(name = "mongoseal", version, propagate_version = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lease, and end the command before the lease ends
    #[command(after_help = examples::RUN)]
    Run(Run),
    /// Campaign for leadership, and lead while a command runs or until a signal
    #[command(after_help = examples::ELECT)]
    Elect(Elect),
    /// Hold a key for a program in any language: prints events, and takes requests on the standard input
    #[command(after_help = examples::HOLD)]
    Hold(Hold),
    /// Print the current leader
    #[command(after_help = examples::LEADER)]
    Leader(Leader),
    /// List leases
    #[command(after_help = examples::LS)]
    Ls(Ls),
    /// Show one key: its holders, its waiters, its latest revocations
    #[command(after_help = examples::SHOW)]
    Show(Show),
    /// Print grants, releases, expiries and revocations as they happen
    #[command(after_help = examples::WATCH)]
    Watch(Watch),
    /// Take a key away from its holders
    #[command(after_help = examples::REVOKE)]
    Revoke(Revoke),
    /// Compare the tokens in a fenced collection with the replica set's clock
    #[command(after_help = examples::FENCES)]
    Fences(Fences),
    /// Raise the version of keys, so that their next tokens are larger than a given one
    #[command(after_help = examples::RAISE)]
    Raise(Raise),
    /// Delete expired leases and idle records now (never needed)
    #[command(after_help = examples::PURGE)]
    Purge(Purge),
    /// Check whether the MongoDB deployment is fit for leases, and print what to change
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// Check whether a token is still the newest of its key
    #[command(after_help = examples::VERIFY)]
    Verify(Verify),
    /// Show what a fence is for, in about 5 s and without a database
    #[command(after_help = examples::DEMO)]
    Demo,
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Shell, for example bash
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = examples::MAN)]
    Man,
}

/// The options of a lease that a command runs under.
#[derive(Args, Debug)]
pub(crate) struct LeaseOptions {
    /// Time until an unrefreshed lease expires, for example 5m
    #[arg(long, default_value = "30s", value_parser = time::parse, value_name = "TIME")]
    pub(crate) ttl: Duration,
    /// Owner name that others see; default: host, process id, random part
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// SIGTERM this long before the lease ends, at most ttl/2; default: ttl/6
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) term_before: Option<Duration>,
    /// SIGKILL this long before the lease ends; default: --term-before/5
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) kill_before: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Key to hold, for example reports/nightly
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) lease: LeaseOptions,
    /// Wait at most this long for the key, for example 5m; default: no limit
    #[arg(long, value_parser = time::parse, value_name = "TIME", conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit with status 121 if the key is held
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Share the key among at most N holders, for example 4; default: exclusive
    #[arg(long, value_name = "N")]
    pub(crate) shared: Option<u32>,
    /// Command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Elect {
    /// Name of the election, which is a key, for example scheduler
    pub(crate) name: String,
    /// Value to publish about this leader, for example its address 10.0.0.7:4000
    pub(crate) value: String,
    #[command(flatten)]
    pub(crate) lease: LeaseOptions,
    /// Command to run while leading, after `--`; default: lead until SIGINT or SIGTERM
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The options of a lease that a script or another program keeps.
#[derive(Args, Debug)]
pub(crate) struct WantedLease {
    /// Time until an unrefreshed lease expires, for example 5m
    #[arg(long, default_value = "30s", value_parser = time::parse, value_name = "TIME")]
    pub(crate) ttl: Duration,
    /// Owner name that others see; default: host, process id, random part
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Wait at most this long for the key, for example 5m; default: no limit
    #[arg(long, value_parser = time::parse, value_name = "TIME", conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit with status 121 if the key is held
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Share the key among at most N holders, for example 4; default: exclusive
    #[arg(long, value_name = "N")]
    pub(crate) shared: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct Hold {
    /// Key to hold, for example reports/nightly
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) lease: WantedLease,
    /// Do not read requests, and do not release at the end of the standard input
    #[arg(long)]
    pub(crate) no_stdin: bool,
    /// Print one JSON object per event
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Leader {
    /// Name of the election, for example scheduler
    pub(crate) name: String,
    /// Continue, and print each new leader
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(crate) struct Ls {
    /// Only keys with this prefix, for example reports/
    pub(crate) prefix: Option<String>,
    /// Only leases of this owner, for example alice@web-1
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Only leases of this group
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Only exclusive leases
    #[arg(long, conflicts_with = "shared")]
    pub(crate) exclusive: bool,
    /// Only shared leases
    #[arg(long)]
    pub(crate) shared: bool,
    /// Only leases held for at least this long, for example 1h
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) older: Option<Duration>,
    /// Only leases with less than this time remaining, for example 10s
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) expiring: Option<Duration>,
    /// Also list expired leases that are still in their records
    #[arg(long)]
    pub(crate) expired: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Key to show, for example reports/nightly
    pub(crate) key: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Key to watch, or a prefix of keys with --prefix; default: all keys
    pub(crate) key: Option<String>,
    /// Watch all keys that begin with KEY
    #[arg(long, requires = "key")]
    pub(crate) prefix: bool,
    /// Print one line per event on a terminal, too, instead of a table
    #[arg(long)]
    pub(crate) plain: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// Key to revoke, for example reports/nightly
    pub(crate) key: String,
    /// Reason, which the holder and the record get, for example 'its host is gone'
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Name of the revoker, for example olga; default: user@host
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object per revoked lease
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Fences {
    /// Fenced collection, in the database of the leases, for example orders
    #[arg(value_name = "COLLECTION")]
    pub(crate) fenced: String,
    /// Field with the tokens
    #[arg(long, default_value = "fence", value_name = "NAME")]
    pub(crate) field: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Raise {
    /// Largest token in the fenced documents, as `mongoseal fences` prints it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) to: FencingToken,
    /// Keys whose leases protect these documents, for example orders/4711
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// Print one JSON object per key
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Purge {
    /// Print one JSON object per deleted lease or record
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Smallest grace of the leases, for the clock check; default: 500ms
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) grace: Option<Duration>,
    /// Print one JSON object per check
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// Key of the lease, as in `MONGOSEAL_KEY`
    pub(crate) key: String,
    /// Token of the lease, as in `MONGOSEAL_TOKEN`
    pub(crate) token: FencingToken,
}

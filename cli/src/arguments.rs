//! What can be said on the command line.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use mongoseal::FencingToken;

use crate::{connection::Connection, examples, time};

/// Leases with fencing tokens on MongoDB: run anything under a lease, and see who holds what.
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
    /// Run a command while a lease is held, and end it before the lease ends
    #[command(after_help = examples::RUN)]
    Run(Run),
    /// Stand for election, and lead while a command runs or until told to stop
    #[command(after_help = examples::ELECT)]
    Elect(Elect),
    /// Say who leads
    #[command(after_help = examples::LEADER)]
    Leader(Leader),
    /// List the leases there are
    #[command(after_help = examples::LS)]
    Ls(Ls),
    /// Look at one key: who holds it, who waits for it, who took it away
    #[command(after_help = examples::SHOW)]
    Show(Show),
    /// Follow what becomes of keys
    #[command(after_help = examples::WATCH)]
    Watch(Watch),
    /// Take a key away from whoever holds it
    #[command(after_help = examples::REVOKE)]
    Revoke(Revoke),
    /// Show whether documents of a fenced collection carry tokens ahead of the replica set's clock
    #[command(after_help = examples::FENCES)]
    Fences(Fences),
    /// Raise the version of keys, so that their next leases have larger tokens than fenced documents carry
    #[command(after_help = examples::RAISE)]
    Raise(Raise),
    /// Clear away now what is over and would go by itself
    #[command(after_help = examples::PURGE)]
    Purge(Purge),
    /// Check whether MongoDB is fit for leases, and say what to do where it is not
    #[command(after_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// Ask whether a token is still the newest of its key
    #[command(after_help = examples::VERIFY)]
    Verify(Verify),
    /// See in a minute what fencing is for, without a database
    #[command(after_help = examples::DEMO)]
    Demo,
    /// Print what a shell needs to complete these commands
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = examples::MAN)]
    Man,
}

/// How a key is asked for.
#[derive(Args, Debug)]
pub(crate) struct Asking {
    /// How long the lease lasts when nothing is heard of its holder
    #[arg(long, default_value = "30s", value_parser = time::parse, value_name = "TIME")]
    pub(crate) ttl: Duration,
    /// Who holds it, for people; host, process id and a random part unless it is said
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// How long before the end of a lease that cannot be refreshed the command is told to end (SIGTERM): up to half
    /// the ttl; a sixth of it unless it is said
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) term_before: Option<Duration>,
    /// How long before that end the command is ended where it goes on (SIGKILL); a fifth of --term-before unless it
    /// is said
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) kill_before: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The key to hold
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) asking: Asking,
    /// Wait at most so long for the key; for as long as it takes unless this or --no-wait is said
    #[arg(long, value_parser = time::parse, value_name = "TIME", conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Give up at once where somebody else holds the key
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Share the key with up to so many holders
    #[arg(long, value_name = "N")]
    pub(crate) shared: Option<u32>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Elect {
    /// What is led
    pub(crate) name: String,
    /// What others are to know of the leader, such as its address
    pub(crate) value: String,
    #[command(flatten)]
    pub(crate) asking: Asking,
    /// What to run while leading; without one it leads until it is told to stop
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Leader {
    /// What is led
    pub(crate) name: String,
    /// Go on, and say each new leader
    #[arg(long)]
    pub(crate) follow: bool,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(crate) struct Ls {
    /// Only keys that begin with this
    pub(crate) prefix: Option<String>,
    /// Only of this owner
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Only of this group
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Only keys held alone
    #[arg(long, conflicts_with = "shared")]
    pub(crate) exclusive: bool,
    /// Only keys that may be shared
    #[arg(long)]
    pub(crate) shared: bool,
    /// Only held for longer than this
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) older: Option<Duration>,
    /// Only with less than this left
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) expiring: Option<Duration>,
    /// Also leases that are over and not cleared away
    #[arg(long)]
    pub(crate) expired: bool,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The key to look at
    pub(crate) key: String,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The key; all keys that begin with it, with --prefix; all there are unless it is said
    pub(crate) key: Option<String>,
    /// Take it for the beginning of keys
    #[arg(long, requires = "key")]
    pub(crate) prefix: bool,
    /// One line for each event on a terminal, too, and no table
    #[arg(long)]
    pub(crate) plain: bool,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// The key to take away
    pub(crate) key: String,
    /// Why, for the holder and for people
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Who revokes; this user and host unless it is said
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// One JSON object for each lease that was revoked
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Fences {
    /// The fenced collection, in the same database
    #[arg(value_name = "COLLECTION")]
    pub(crate) fenced: String,
    /// Field of the documents that carries the tokens
    #[arg(long, default_value = "fence", value_name = "NAME")]
    pub(crate) field: String,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Raise {
    /// The largest token that the fenced documents carry, as `mongoseal fences` prints it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) to: FencingToken,
    /// The keys whose leases protect these documents
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// One JSON object for each key
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Purge {
    /// One JSON object for each lease and record that went
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Smallest grace of the leases, which the members' clocks are measured against; default: 500ms, that of a lease
    /// with a ttl of 5s or more
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) grace: Option<Duration>,
    /// One JSON object for each check
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// The key
    pub(crate) key: String,
    /// The token, as `MONGOSEAL_TOKEN` has it
    pub(crate) token: FencingToken,
}

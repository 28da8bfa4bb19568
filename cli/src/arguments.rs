//! The commands and options of the program, with their help texts.

mod help;
mod holding;

use std::{
    env,
    ffi::{OsStr, OsString},
    path::PathBuf,
    time::Duration,
};

use clap::{
    Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint,
    builder::{NonEmptyStringValueParser, Resettable},
    error::{ContextKind, ContextValue, ErrorKind},
};
use clap_complete::Shell;
pub(crate) use holding::{Acquire, Elect, Hold, Labels, LeaseOptions, Once, Refresh, Release, Run, Terms, WaitOptions};
use mongoseal::FencingToken;

use crate::{
    arguments::holding::LAST,
    connection::{Connection, URI_VARIABLES},
    examples,
    exit_status::{Failure, Status},
    time,
    ui::output,
};

/// Leases with fencing tokens on MongoDB or Redis: run commands under a lease, elect leaders, inspect leases.
#[derive(Debug, Parser)]
#[command(name = "mongoseal", version, propagate_version = true)]
pub(crate) struct Arguments {
    /// Print no notes on stderr, only errors and warnings
    ///
    /// Notes are the progress of a wait, what a retry waits for, and why the status is 1, 119, 120 or 121.
    #[arg(short, long, global = true, display_order = LAST + 2)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands that need no connection.
const OFFLINE: [&str; 3] = ["demo", "completions", "man"];

impl Arguments {
    /// Describes the program to the parser, for help, manual and completions.
    pub(crate) fn program() -> clap::Command {
        let program = Self::command();
        let options_of_all: Vec<Arg> =
            program.get_arguments().filter(|arg| arg.is_global_set()).map(|arg| arg.clone().hide(true)).collect();
        let mut program = program.mut_subcommands(|command| {
            if OFFLINE.contains(&command.get_name()) { command.args(&options_of_all) } else { command }
        });
        program.build();
        // Otherwise the usage in an error lists the options that the environment sets as if they were required.
        help::add(program.mut_subcommands(|mut command| {
            let usage = command.render_usage().to_string();
            command.override_usage(usage.trim_start_matches("Usage: ").to_owned())
        }))
    }

    /// Parses the arguments of this process, and the environment variables that stand for missing ones. An empty
    /// variable counts as unset. Prints the requested help, or what is wrong with the arguments.
    pub(crate) fn read() -> Result<Self, Failure> {
        let has_arguments = env::args_os().len() > 1;
        let mut variables = Vec::new();
        let mut choose_variable = |arg: Arg| {
            let Some(own) = arg.get_env().map(OsStr::to_owned) else { return arg };
            let [first, fallback] = URI_VARIABLES;
            // Without arguments the parser prints the help, unless a variable stands for an option.
            let is_set = |name: &OsStr| has_arguments && env::var_os(name).is_some_and(|value| !value.is_empty());
            let arg = match is_set(&own) {
                true => arg,
                false if own == first && is_set(fallback.as_ref()) => arg.env(fallback),
                false => return arg.env(Resettable::<clap::builder::OsStr>::Reset),
            };
            let name = arg.get_env().map(OsStr::to_owned);
            variables.extend(name.and_then(|name| Some((env::var_os(&name)?, name))));
            arg
        };
        let mut program = Self::program()
            .mut_args(&mut choose_variable)
            .mut_subcommands(|command| command.mut_args(&mut choose_variable));
        let parsed = program.try_get_matches_from_mut(env::args_os());
        let parsed = parsed.and_then(|mut matches| Self::from_arg_matches_mut(&mut matches));
        parsed.map_err(|error| {
            let is_not_utf8 = |(value, _): &&(OsString, OsString)| value.to_str().is_none();
            match variables.iter().find(is_not_utf8) {
                Some((_, name)) if error.kind() == ErrorKind::InvalidUtf8 => not_utf8(&name.to_string_lossy()),
                _ => print_usage(&with_hint(error.format(&mut program), &program)),
            }
        })
    }
}

/// The value of this environment variable is not UTF-8.
fn not_utf8(variable: &str) -> Failure {
    let is_uri = URI_VARIABLES.contains(&variable);
    let remedy = if is_uri { "percent-encode the other bytes, such as %ff" } else { "set it to a text in UTF-8" };
    Failure::invalid(format!("the environment variable {variable} is not UTF-8: {remedy}, or unset the variable"))
}

/// Prints the requested help, or what is wrong with the arguments. Returns the status of the program.
fn print_usage(error: &clap::Error) -> Failure {
    match output::help(error) {
        _ if error.use_stderr() => Failure::new(Status::INVALID, ""),
        Ok(()) => Failure::new(Status::DONE, ""),
        Err(error) => error.into(),
    }
}

/// Adds that the command comes after `--`, if the arguments of `run`, `once` or `elect` have several words and no `--`.
fn with_hint(mut error: clap::Error, program: &clap::Command) -> clap::Error {
    let may_lack_dashes = match error.kind() {
        ErrorKind::UnknownArgument => error.get(ContextKind::SuggestedArg).is_none(),
        kind => kind == ErrorKind::MissingRequiredArgument,
    };
    let mut arguments = env::args_os();
    let command = arguments
        .by_ref()
        .find_map(|argument| program.find_subcommand(argument))
        .filter(|command| command.get_positionals().any(Arg::is_last_set));
    let rest: Vec<OsString> = arguments.collect();
    let words = rest.iter().filter(|argument| !argument.to_string_lossy().starts_with('-')).count();
    if may_lack_dashes
        && let Some(command) = command
        && words > 1
        && !rest.iter().any(|argument| argument == "--")
    {
        let operands = command.get_positionals().filter(|operand| operand.is_required_set() && !operand.is_last_set());
        let names = operands.filter_map(|operand| operand.get_value_names()?.first()).map(|name| format!("{name} "));
        let options = if command.get_name() == "once" { "--every 1h " } else { "" };
        let usage = format!("{} {}{options}-- COMMAND", command.get_name(), names.collect::<String>());
        let hint = format!("put `--` before the command, for example: mongoseal {usage}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lease, and end it before the lease ends
    #[command(after_long_help = examples::RUN)]
    Run(Run),
    /// Run a command once for each tick of a schedule
    #[command(after_long_help = examples::ONCE)]
    Once(Once),
    /// Campaign, and lead while a command runs or until a signal
    #[command(after_long_help = examples::ELECT)]
    Elect(Elect),
    /// Hold keys for a program in any language
    #[command(after_long_help = examples::HOLD)]
    Hold(Hold),
    /// Acquire a key and end, for a script that `run` cannot wrap
    #[command(after_long_help = examples::ACQUIRE)]
    Acquire(Acquire),
    /// Refresh the lease of `acquire`
    #[command(after_long_help = examples::REFRESH)]
    Refresh(Refresh),
    /// Release the lease of `acquire`
    #[command(after_long_help = examples::RELEASE)]
    Release(Release),
    /// Print the current leader
    #[command(after_long_help = examples::LEADER)]
    Leader(Leader),
    /// List leases
    #[command(after_long_help = examples::LS)]
    Ls(Ls),
    /// Show one key: its holders, its waiters, its latest revocations
    #[command(after_long_help = examples::SHOW)]
    Show(Show),
    /// Show the last completed runs of a schedule
    #[command(after_long_help = examples::HISTORY)]
    History(History),
    /// Print the value of a key, or store it under a lease
    #[command(after_long_help = examples::VALUE)]
    Value(ValueOptions),
    /// Print grants, releases, expiries and revocations as they happen
    #[command(after_long_help = examples::WATCH)]
    Watch(Watch),
    /// Take a key away from its holders, or from one of them
    #[command(after_long_help = examples::REVOKE)]
    Revoke(Revoke),
    /// Prove from the oplog what happened to keys and fenced documents
    #[command(after_long_help = examples::AUDIT)]
    Audit(Audit),
    /// Compare the tokens of a fenced collection with the set's clock
    #[command(after_long_help = examples::FENCES)]
    Fences(Fences),
    /// Raise keys, so that their next tokens are larger than a given one
    #[command(after_long_help = examples::RAISE)]
    Raise(Raise),
    /// Delete expired leases now (never needed)
    #[command(after_long_help = examples::PURGE)]
    Purge(Purge),
    /// Check whether the deployment is fit for leases
    #[command(after_long_help = examples::DOCTOR)]
    Doctor(Doctor),
    /// Check whether a token is still the newest of its key
    #[command(after_long_help = examples::VERIFY, override_usage = "mongoseal verify [OPTIONS] [KEY] [TOKEN]")]
    Verify(Verify),
    /// Show what a fence is for, in about 5 s and without a database
    #[command(after_long_help = examples::DEMO)]
    Demo,
    /// Print a completion script for a shell
    #[command(after_long_help = examples::COMPLETIONS)]
    Completions {
        /// Shell: bash, elvish, fish, powershell or zsh
        #[arg(hide_possible_values = true)]
        shell: Shell,
    },
    /// Print the manual page, or write one for each command
    #[command(after_long_help = examples::MAN)]
    Man {
        /// Folder for the pages of all commands
        ///
        /// It is created if it does not exist. Without this option, the main page is printed.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
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
    /// Only keys that are free in less time, for example 10s
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) expiring: Option<Duration>,
    /// Also expired leases that are still in their records
    #[arg(long)]
    pub(crate) expired: bool,
    /// Sort by key, owner, token, held, free-in or waiters
    ///
    /// The order is ascending. The program reads all leases before it prints the first. Without this option and --reverse
    /// it prints them as it reads them.
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub(crate) sort_by: Option<SortColumn>,
    /// Reverse the order
    ///
    /// The program reads all leases before it prints the first.
    #[arg(short, long)]
    pub(crate) reverse: bool,
    /// Output: wide, json or prometheus
    #[arg(short, long, value_name = "FORM", hide_possible_values = true)]
    pub(crate) output: Option<LsOutput>,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// The columns by which `ls` sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortColumn {
    Key,
    Owner,
    Token,
    Held,
    FreeIn,
    Waiters,
}

/// The forms of the output of `ls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LsOutput {
    Wide,
    Json,
    /// Of each key: its leases, its waiters, the longest hold and the shortest time until it is free.
    Prometheus,
}

/// The forms of the output of `doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoctorOutput {
    Json,
    Prometheus,
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
pub(crate) struct History {
    /// Key of the schedule, for example reports/hourly
    pub(crate) key: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ValueOptions {
    /// Key of the value; default: `MONGOSEAL_KEY`
    #[arg(env = "MONGOSEAL_KEY", hide_env = true)]
    pub(crate) key: String,
    /// Store the JSON in FILE as the value; - is stdin
    ///
    /// Only in a command of run, once or elect, under the lease that it has of KEY.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) set: Option<PathBuf>,
    /// Print one JSON object: the value, its token and its time
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
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// Key to revoke, for example reports/nightly
    pub(crate) key: String,
    /// Reason, for example 'its host is gone'
    ///
    /// The holder receives it, and the record keeps it.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) reason: String,
    /// Revoker, for example olga; default: user@host
    ///
    /// Under sudo, the user is the one that called it.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) by: Option<String>,
    /// Only the lease with this token; default: all leases
    #[arg(long, value_name = "TOKEN", conflicts_with = "owner")]
    pub(crate) token: Option<FencingToken>,
    /// Only the leases of this owner, for example alice@web-1
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object per revoked lease
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Audit {
    /// Fenced collections, for example orders:token
    ///
    /// They are in the database of the leases. After the colon is the field with the tokens. Without it that is `fence`.
    #[arg(value_name = "COLLECTION")]
    pub(crate) fenced: Vec<String>,
    /// Only what was written within this time, for example 1d
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) since: Option<Duration>,
    /// Go on with new writes until a signal
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print one JSON object per finding, and one for the summary
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Fences {
    /// Fenced collection, for example orders
    ///
    /// It is in the database of the leases.
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
    /// Largest token, as `mongoseal fences` prints it
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
    /// Print one JSON object per deleted lease
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Also run the library's conformance suite, for about 10 s
    ///
    /// It uses a scratch collection, or on Redis keys with a scratch prefix, and removes them at the end.
    #[arg(long)]
    pub(crate) deep: bool,
    /// Name of the scratch collection; default: a random one
    ///
    /// The collection must not exist. On Redis, NAME is the prefix of the scratch keys.
    #[arg(long, value_name = "NAME", requires = "deep")]
    pub(crate) scratch: Option<String>,
    /// Print each requirement, also if it passes
    #[arg(short, long, requires = "deep", conflicts_with_all = ["json", "output"])]
    pub(crate) verbose: bool,
    /// Smallest grace of the leases; default: 500ms
    ///
    /// The clock check compares it with the differences between the clocks of the members, or of a Redis server and this
    /// machine.
    #[arg(long, value_parser = time::parse, value_name = "TIME")]
    pub(crate) grace: Option<Duration>,
    /// Output: json, an object per check; or prometheus
    #[arg(short, long, value_name = "FORM", hide_possible_values = true)]
    pub(crate) output: Option<DoctorOutput>,
    /// Print one JSON object per check
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// Key of the lease; default: `MONGOSEAL_KEY`
    #[arg(env = "MONGOSEAL_KEY", hide_env = true)]
    pub(crate) key: String,
    /// Token of the lease; default: `MONGOSEAL_TOKEN`
    #[arg(env = "MONGOSEAL_TOKEN", hide_env = true)]
    pub(crate) token: FencingToken,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(all(test, not(feature = "redis")))]
mod tests {
    use clap::Parser;

    use super::Arguments;

    #[test]
    fn a_program_without_redis_names_the_feature_that_is_off() {
        for scheme in ["redis", "rediss", "valkey"] {
            let uri = format!("{scheme}://:hunter2@redis0");
            let arguments = Arguments::try_parse_from(["mongoseal", "--uri", &uri, "ls"]).unwrap();
            let failure = arguments.connection.target().err().expect("it is refused");
            assert!(failure.message().contains("install mongoseal-cli with its feature `redis-rustls`"));
            assert!(!failure.message().contains("hunter2"));
        }
    }
}

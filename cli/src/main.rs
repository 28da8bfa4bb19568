//! The program `mongoseal`: runs commands under leases, elects leaders, inspects leases.
//!
//! Each command is a file of `command/`. `run`, `once` and `elect` share `acquire`, `job` and
//! `guard`. The program uses the
//! library's public API only.
#![allow(clippy::print_stdout, reason = "this is a program")]

#[cfg(not(unix))]
compile_error!("mongoseal-cli needs Unix: it runs commands in process groups");

mod acquire;
mod arguments;
mod command;
mod connection;
mod escape;
mod examples;
mod exit_status;
mod guard;
mod job;
mod json;
mod leases;
mod output;
mod signals;
mod table;
mod terminal;
mod tick;
mod time;

use std::{
    env,
    ffi::{CString, OsString},
    io::{self, Write},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
    process::ExitCode,
};

use arguments::{Arguments, Command, Unparsed};
use exit_status::{Failure, Status};

fn main() -> ExitCode {
    if let Some(status) = guard::run_stage() {
        return status;
    }
    let status = connection::hide_uri().map_err(Failure::internal).and_then(|()| match Arguments::read() {
        Ok(arguments) => perform(arguments),
        Err(Unparsed::Usage(error)) => print_usage(&error),
        Err(Unparsed::NotUtf8(variable)) => {
            let is_uri = connection::URI_VARIABLES.contains(&variable.as_str());
            let remedy =
                if is_uri { "percent-encode the other bytes, such as %ff" } else { "set it to a text in UTF-8" };
            Err(Failure::invalid(format!(
                "the environment variable {variable} is not UTF-8: {remedy}, or unset the variable"
            )))
        }
    });
    status.unwrap_or_else(Failure::report).end()
}

/// Prints the requested help, or what is wrong with the arguments.
fn print_usage(error: &clap::Error) -> Result<Status, Failure> {
    let printed = output::help(error);
    if error.use_stderr() {
        return Ok(Status::INVALID);
    }
    printed?;
    Ok(Status::DONE)
}

/// Prints a line to the standard error, with characters that act on a terminal escaped. Ignores a closed pipe.
fn print_message(line: &str) {
    drop(writeln!(io::stderr(), "mongoseal: {}", escape::visible(line)));
}

/// Returns the path of this program, to start it again. If its file was replaced or deleted, this is the running image.
fn this_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    Ok(if cfg!(target_os = "linux") && !path.exists() { "/proc/self/exe".into() } else { path })
}

/// Returns the strings in the form of the system. Fails if one has a NUL character.
fn to_c_strings(strings: impl Iterator<Item = OsString>) -> io::Result<Vec<CString>> {
    strings.map(|string| Ok(CString::new(string.into_vec())?)).collect()
}

fn perform(arguments: Arguments) -> Result<Status, Failure> {
    let Arguments { connection, command } = arguments;
    // One thread is enough: a command mostly waits.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    let status = runtime.block_on(perform_on(&connection, command));
    // Does not wait for a name lookup that still runs.
    runtime.shutdown_background();
    status
}

async fn perform_on(connection: &connection::Connection, command: Command) -> Result<Status, Failure> {
    match command {
        Command::Run(options) => command::run::perform(connection, options).await,
        Command::Once(options) => Box::pin(command::once::perform(connection, options)).await,
        Command::Elect(options) => command::elect::perform(connection, options).await,
        Command::Hold(options) => command::hold::perform(connection, options).await,
        Command::Acquire(options) => command::acquire::perform(connection, options).await,
        Command::Refresh(options) => command::refresh::perform(connection, options).await,
        Command::Release(options) => command::release::perform(connection, options).await,
        Command::Leader(options) => command::leader::perform(connection, options).await,
        Command::Ls(options) => command::ls::perform(connection, options).await,
        Command::Show(options) => command::show::perform(connection, options).await,
        Command::Watch(options) => command::watch::perform(connection, options).await,
        Command::Revoke(options) => command::revoke::perform(connection, options).await,
        Command::Fences(options) => command::fences::perform(connection, options).await,
        Command::Raise(options) => command::raise::perform(connection, options).await,
        Command::Purge(options) => command::purge::perform(connection, options).await,
        Command::Doctor(options) => command::doctor::perform(connection, options).await,
        Command::Conform(options) => Box::pin(command::conform::perform(connection, options)).await,
        Command::Verify(options) => command::verify::perform(connection, options).await,
        Command::Demo => command::demo::perform().await,
        Command::Completions { shell } => command::completions::perform(shell),
        Command::Man => command::man::perform(),
    }
}

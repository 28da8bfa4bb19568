//! The command line: run anything under a lease, and see who holds what.
//!
//! Built on what the library makes public, as any program would be.
#![allow(clippy::print_stdout, reason = "this is a program")]

#[cfg(not(unix))]
compile_error!("the command line is for Unix: it runs commands in process groups of their own");

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
mod output;
mod signals;
mod table;
mod terminal;
mod time;

use std::{
    env,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use arguments::{Arguments, Command};
use clap::Parser;
use exit_status::{Failure, Status};

fn main() -> ExitCode {
    if let Some(ended) = guard::stage() {
        return ended;
    }
    let status = connection::conceal().map_err(Failure::internal).and_then(|()| match Arguments::try_parse() {
        Ok(arguments) => perform(arguments),
        Err(said) => Ok(answer(&said)),
    });
    status.unwrap_or_else(Failure::report).into()
}

/// Gives the help that was asked for, or says what is wrong with the arguments.
fn answer(said: &clap::Error) -> Status {
    // Where nobody reads it, nothing is left to say.
    drop(said.print());
    if said.use_stderr() { Status::INVALID } else { Status::DONE }
}

/// Says a line on the standard error, to whoever reads that; and to a terminal nothing that it would obey.
fn say(line: &str) {
    drop(writeln!(io::stderr(), "mongoseal: {}", escape::visible(line)));
}

/// Where this program is, to begin it once more. What was put in its place meanwhile is another one.
fn this_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    Ok(if cfg!(target_os = "linux") && !path.exists() { "/proc/self/exe".into() } else { path })
}

fn perform(arguments: Arguments) -> Result<Status, Failure> {
    let Arguments { connection, command } = arguments;
    // One thread does: a command waits, and does little else.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    let status = runtime.block_on(perform_on(&connection, command));
    // A name that is being looked up would hold up the end.
    runtime.shutdown_background();
    status
}

async fn perform_on(connection: &connection::Connection, command: Command) -> Result<Status, Failure> {
    match command {
        Command::Run(options) => command::run::perform(connection, options).await,
        Command::Elect(options) => command::elect::perform(connection, options).await,
        Command::Leader(options) => command::leader::perform(connection, options).await,
        Command::Ls(options) => command::ls::perform(connection, options).await,
        Command::Show(options) => command::show::perform(connection, options).await,
        Command::Watch(options) => command::watch::perform(connection, options).await,
        Command::Revoke(options) => command::revoke::perform(connection, options).await,
        Command::Fences(options) => command::fences::perform(connection, options).await,
        Command::Raise(options) => command::raise::perform(connection, options).await,
        Command::Purge(options) => command::purge::perform(connection, options).await,
        Command::Doctor(options) => command::doctor::perform(connection, options).await,
        Command::Verify(options) => command::verify::perform(connection, options).await,
        Command::Demo => command::demo::perform().await,
        Command::Completions { shell } => command::completions::perform(shell),
        Command::Man => command::man::perform(),
    }
}

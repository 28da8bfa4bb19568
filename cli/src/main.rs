//! The program `mongoseal`: runs commands under leases, elects leaders, inspects leases.
//!
//! Each command is a file of `command/`. `run`, `once` and `elect` share `acquire` and `job`. The program uses the
//! library's public API only.
#![allow(clippy::print_stdout, reason = "this is a program")]

#[cfg(not(unix))]
compile_error!("mongoseal-cli needs Unix: it runs commands in process groups");

mod acquire;
mod arguments;
mod command;
mod connection;
mod examples;
mod exit_status;
mod job;
mod leases;
mod process;
mod tick;
mod time;
mod ui;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use exit_status::{Failure, Status, catch_panics};
use job::guard;
use ui::message;

fn main() -> ExitCode {
    if let Some(status) = guard::run_stage() {
        return status;
    }
    let status = catch_panics(|| {
        let status = connection::hide_uri().map_err(Failure::from).and_then(|()| perform(Arguments::read()?));
        status.unwrap_or_else(|failure| failure.report())
    });
    status.end()
}

fn perform(arguments: Arguments) -> Result<Status, Failure> {
    let Arguments { quiet, connection, command } = arguments;
    if quiet {
        message::suppress_notes();
    }
    // One thread is enough: a command mostly waits.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
        Command::History(options) => command::history::perform(connection, options).await,
        Command::Value(options) => command::value::perform(connection, options).await,
        Command::Watch(options) => command::watch::perform(connection, options).await,
        Command::Revoke(options) => command::revoke::perform(connection, options).await,
        Command::Audit(options) => Box::pin(command::audit::perform(connection, options)).await,
        Command::Fences(options) => command::fences::perform(connection, options).await,
        Command::Raise(options) => command::raise::perform(connection, options).await,
        Command::Purge(options) => command::purge::perform(connection, options).await,
        Command::Doctor(options) => Box::pin(command::doctor::perform(connection, options)).await,
        Command::Verify(options) => command::verify::perform(connection, options).await,
        Command::Demo => command::demo::perform().await,
        Command::Completions { shell } => command::completions::perform(shell),
        Command::Man { dir } => command::man::perform(dir.as_deref()),
    }
}

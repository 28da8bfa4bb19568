//! The command line: run anything under a lease, and see who holds what.
//!
//! Built on what the library makes public, as any program would be.
#![allow(clippy::print_stdout, reason = "this is a program")]

mod arguments;
mod command;
mod connection;
mod examples;
mod output;
mod status;
mod table;
mod text;
mod time;
mod view;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
use status::{Failure, Status};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match perform(arguments) {
        Ok(status) => status.into(),
        Err(failure) => failure.report().into(),
    }
}

fn perform(arguments: Arguments) -> Result<Status, Failure> {
    let Arguments { connection, command } = arguments;
    // One thread does: a command waits, and does little else.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    let connection = &connection;
    runtime.block_on(async {
        match command {
            Command::Run(options) => command::run::perform(connection, options).await,
            Command::Elect(options) => command::elect::perform(connection, options).await,
            Command::Leader(options) => command::leader::perform(connection, options).await,
            Command::Ls(options) => command::ls::perform(connection, options).await,
            Command::Show(options) => command::show::perform(connection, options).await,
            Command::Watch(options) => command::watch::perform(connection, options).await,
            Command::Revoke(options) => command::revoke::perform(connection, options).await,
            Command::Purge(options) => command::purge::perform(connection, options).await,
            Command::Doctor(options) => command::doctor::perform(connection, options).await,
            Command::Verify(options) => command::verify::perform(connection, options).await,
            Command::Demo => command::demo::perform().await,
            Command::Completions { shell } => command::completions::perform(shell),
            Command::Man => command::man::perform(),
        }
    })
}

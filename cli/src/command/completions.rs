//! `mongoseal completions`: the script of the parser's generator.

use clap_complete::{Shell, generate};

use crate::{
    arguments::Arguments,
    exit_status::{Failure, Status},
    ui::output,
};

pub(crate) fn perform(shell: Shell) -> Result<Status, Failure> {
    // The generator panics if a write fails, as after `| head` has exited.
    let mut script = Vec::new();
    generate(shell, &mut Arguments::program(), "mongoseal", &mut script);
    output::bytes(&script)?;
    Ok(Status::DONE)
}

//! `mongoseal man`: the manual pages, one for the program and one for each command.

use std::{fs, io, path::Path};

use clap_mangen::Man;

use crate::{
    arguments::Arguments,
    examples,
    exit_status::{Failure, Status},
    ui::output,
};

pub(crate) fn perform(dir: Option<&Path>) -> Result<Status, Failure> {
    let program =
        Arguments::program().after_long_help(examples::PROGRAM).mut_subcommand("help", |help| help.hide(true));
    let Some(dir) = dir else {
        output::bytes(&page(program)?.1)?;
        return Ok(Status::DONE);
    };
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    for command in commands.chain([program.clone()]) {
        let (name, page) = page(command)?;
        let path = dir.join(name);
        let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, page));
        written.map_err(|error| Failure::invalid(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(Status::DONE)
}

/// Returns the name of the file of a page, and the page.
fn page(command: clap::Command) -> io::Result<(String, Vec<u8>)> {
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render(&mut page)?;
    // The section has the examples, then the notes.
    let page = String::from_utf8_lossy(&page).replacen(".SH EXTRA\n", ".SH NOTES\n", 1);
    Ok((man.get_filename(), page.into_bytes()))
}

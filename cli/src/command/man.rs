//! `mongoseal man`: one manual page for all commands.

use std::io;

use clap_mangen::{Man, roff::Roff};

use crate::{
    arguments::Arguments,
    examples,
    exit_status::{Failure, Status},
    ui::output,
};

pub(crate) fn perform() -> Result<Status, Failure> {
    output::bytes(&page()?)?;
    Ok(Status::DONE)
}

fn page() -> io::Result<Vec<u8>> {
    let program = Arguments::program();
    let man = Man::new(program.clone().after_long_help(examples::PROGRAM));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    man.render_extra_section(&mut page)?;
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        // The options of all commands are in the first section.
        let mut command = command.clone().mut_args(|arg| {
            let is_hidden =
                arg.is_hide_set() || arg.is_global_set() || ["help", "version"].contains(&arg.get_id().as_str());
            arg.hide(is_hidden)
        });
        let usage = command.render_usage().to_string();
        let mut section = Vec::new();
        Roff::new().control("SH", [usage.trim_start_matches("Usage: ")]).to_writer(&mut page)?;
        let man = Man::new(command);
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        man.render_extra_section(&mut section)?;
        page.extend(String::from_utf8_lossy(&section).replace(".SH ", ".SS ").bytes());
    }
    Ok(page)
}

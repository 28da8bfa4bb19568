//! `mongoseal man`: one manual page for all commands.

use std::{collections::BTreeSet, io};

use clap::{Arg, Command};
use clap_mangen::{
    Man,
    roff::{Roff, bold, italic, roman},
};

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
    let man = Man::new(program.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        write_command(&mut roff, command);
    }
    roff.control("SH", ["OPTIONS OF ALL COMMANDS"]);
    for argument in program.get_arguments() {
        write_argument(&mut roff, argument);
    }
    write_environment(&mut roff, &program);
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(
        "run, once and elect exit with the status of their command, or with 128 plus the number of the signal that ended it.",
    )]);
    for (status, meaning) in Status::MEANINGS {
        roff.control("TP", []);
        roff.text([bold(status)]);
        roff.text([roman(meaning)]);
    }
    roff.control("SH", ["EXAMPLES"]);
    for example in examples::ALL {
        roff.control("PP", []);
        roff.control("EX", []);
        for line in example.lines().filter(|line| line.starts_with("  ")) {
            roff.text([roman(line.trim_start())]);
        }
        roff.control("EE", []);
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// Writes a command with its own options.
fn write_command(roff: &mut Roff, command: &Command) {
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    roff.control("SS", [usage.trim_start_matches("Usage: ")]);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    roff.text([roman(format!("{about}."))]);
    for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
        write_argument(roff, argument);
    }
}

fn write_argument(roff: &mut Roff, argument: &Arg) {
    if argument.is_hide_set() || ["help", "version"].contains(&argument.get_id().as_str()) {
        return;
    }
    let value = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let takes_value = argument.get_action().takes_values();
    roff.control("TP", []);
    let mut term = Vec::new();
    match argument.get_long() {
        Some(long) => term.push(bold(format!("--{long}"))),
        None => term.push(italic(value.clone().unwrap_or_default())),
    }
    if let (Some(_), Some(value), true) = (argument.get_long(), value, takes_value) {
        term.extend([roman(" "), italic(value)]);
    }
    roff.text(term);
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let default = argument.get_default_values().first().and_then(|value| value.to_str()).filter(|_| takes_value);
    let default = default.map(|value| format!(" Default: {value}.")).unwrap_or_default();
    roff.text([roman(format!("{help}.{default}"))]);
}

fn write_environment(roff: &mut Roff, program: &Command) {
    roff.control("SH", ["ENVIRONMENT"]);
    let mut named = BTreeSet::new();
    let of_commands = program.get_subcommands().flat_map(Command::get_arguments);
    for argument in program.get_arguments().chain(of_commands) {
        let (Some(name), Some(long)) = (argument.get_env().and_then(|name| name.to_str()), argument.get_long()) else {
            continue;
        };
        if !named.insert(name) {
            continue;
        }
        roff.control("TP", []);
        roff.text([bold(name)]);
        roff.text([roman(format!("Same as --{long}, which takes precedence. If empty, it counts as unset."))]);
    }
    for (names, meaning) in [
        (
            "MONGOSEAL_KEY, MONGOSEAL_TOKEN, MONGOSEAL_LEASE_ID, MONGOSEAL_DEADLINE",
            "Set for the command of run, once and elect: its key, token, lease id (a secret) and first deadline. verify takes the first two as defaults.",
        ),
        ("MONGODB_URI", "Read if MONGOSEAL_URI is unset or empty."),
        ("MONGOSEAL_TICK", "Set for the command of once: the number of its tick."),
        ("NO_COLOR", "If set, no colours on a terminal."),
    ] {
        roff.control("TP", []);
        roff.text([bold(names)]);
        roff.text([roman(meaning)]);
    }
}

//! The help of the program, which has its commands in groups.

use clap::{
    Command,
    builder::{StyledStr, Styles},
};

/// The groups of commands in the help. [`SELDOM`] are only in the long help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run under a lease", &["run", "once", "elect", "hold", "acquire", "refresh", "release"]),
    ("Look", &["ls", "show", "watch", "history", "leader", "value"]),
    ("Intervene", &["revoke", "fences", "raise", "purge"]),
    ("Check", &["doctor", "verify", "audit", "demo"]),
    ("More", &["completions", "man", "help"]),
];

const SELDOM: [&str; 1] = ["purge"];

/// Adds the help to the program, which must be built.
pub(super) fn add(program: Command) -> Command {
    let (short, long) = (groups(&program, false), groups(&program, true));
    let header = Styles::styled().get_header().to_owned();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{{before-help}}{header}Options:{header:#}\n{{options}}"
    );
    program.before_help(short).before_long_help(long).help_template(StyledStr::from(template))
}

/// Formats the commands. The parser has one heading for all, so each group is the help of a program of its own.
fn groups(program: &Command, is_long: bool) -> StyledStr {
    let groups = GROUPS.iter().map(|(title, names)| {
        let names = names.iter().filter(|name| is_long || !SELDOM.contains(name));
        let commands = names.map(|name| {
            let about = program.find_subcommand(name).and_then(Command::get_about);
            Command::new(*name).about(about.cloned().unwrap_or_default())
        });
        let group = Command::new("group").disable_help_flag(true).disable_help_subcommand(true).subcommands(commands);
        group.subcommand_help_heading(*title).help_template("{all-args}").render_help().ansi().to_string()
    });
    StyledStr::from(groups.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn each_command_is_in_one_group_of_the_help() {
        let program = Arguments::program();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut all: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }
}

//! `mongoseal completions`: the script of the parser's generator, with two additions for bash, zsh and fish.
//!
//! - What follows `--` is completed as the shell completes that command.
//! - Keys are completed by `mongoseal completions SHELL --keys PREFIX`, see `keys.rs`. Not if the line has a connection
//!   option: the keys could be those of another collection.

mod keys;

use clap_complete::{Shell, generate};

use crate::{
    arguments::Arguments,
    connection::Connection,
    exit_status::{Failure, Status},
    ui::output,
};

pub(crate) async fn perform(connection: &Connection, shell: Shell, prefix: Option<String>) -> Result<Status, Failure> {
    if let Some(prefix) = prefix {
        keys::print(connection, &prefix).await?;
        return Ok(Status::DONE);
    }
    // The generator panics if a write fails, as after `| head` has exited.
    let mut script = Vec::new();
    let mut program = Arguments::program();
    generate(shell, &mut program, NAME, &mut script);
    let script = String::from_utf8_lossy(&script);
    output::bytes(with_additions(shell, &script, &commands_with_keys(&program)).as_bytes())?;
    Ok(Status::DONE)
}

const NAME: &str = "mongoseal";

/// The names of the arguments that are keys.
const KEYS: [&str; 4] = ["key", "keys", "name", "prefix"];

/// Returns the commands with keys among their arguments.
fn commands_with_keys(program: &clap::Command) -> Vec<&str> {
    let has_keys =
        |command: &&clap::Command| command.get_positionals().any(|arg| KEYS.contains(&arg.get_id().as_str()));
    program.get_subcommands().filter(has_keys).map(clap::Command::get_name).collect()
}

fn with_additions(shell: Shell, script: &str, commands: &[&str]) -> String {
    match shell {
        Shell::Bash => insert(script, "", &BASH.replace("COMMANDS", &commands.join("|"))),
        Shell::Zsh => {
            let lines = script.lines().map(|line| {
                // Such as ':key -- Key to show:_default'.
                let argument = line.trim_start_matches(['\'', ':', '*']).split(" -- ").next();
                let is_key = line.starts_with('\'') && argument.is_some_and(|name| KEYS.contains(&name));
                if is_key { line.replace(":_default'", ":_mongoseal_keys'") } else { line.to_owned() }
            });
            insert(&(lines.collect::<Vec<_>>().join("\n") + "\n"), ZSH_KEYS, ZSH)
        }
        Shell::Fish => script.to_owned() + &FISH.replace("COMMANDS", &commands.join(" ")),
        _ => script.to_owned(),
    }
}

/// Inserts texts before the function of the program, and at its beginning.
fn insert(script: &str, before: &str, within: &str) -> String {
    let function = format!("{NAME}() {{\n");
    script.replacen(&format!("_{function}"), &format!("{before}_{function}{within}"), 1)
}

const BASH: &str = r#"    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        # The package bash-completion has one of these functions.
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((at + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((COMP_CWORD == at + 1)); then
            COMPREPLY=($(compgen -c -- "$2"))
        else
            COMPREPLY=()
        fi
        return
    done
    # A colon begins a word, so a key with one is not completed after it.
    if [[ $2 != -* && $3 != -* && $2$3 != *:* && " ${COMP_WORDS[*]}" != *" --uri"* &&
        " ${COMP_WORDS[*]}" != *" --db"* && " ${COMP_WORDS[*]}" != *" --collection"* ]]; then
        case ${COMP_WORDS[1]} in
        COMMANDS)
            ((COMP_CWORD == 1)) || COMPREPLY=($("$1" completions bash --keys "$2" 2>/dev/null))
            [[ -z ${COMPREPLY[*]} ]] || return
            ;;
        esac
    fi
"#;

const ZSH_KEYS: &str = r#"_mongoseal_keys() {
    [[ $LBUFFER == *' --'(uri|db|collection)* ]] && return 1
    local -a keys
    keys=(${(f)"$(mongoseal completions zsh --keys "$PREFIX" 2>/dev/null)"})
    compadd -a keys
}

"#;

const ZSH: &str = r"    local at=${words[(i)--]}
    if (( at < CURRENT )); then
        shift $at words
        (( CURRENT -= at ))
        _normal
        return
    fi
";

const FISH: &str = r"
function __fish_mongoseal_command
    set -l words (commandline -opc)
    set -e words[1..(contains -i -- -- $words)]
    __fish_complete_subcommand --commandline $words (commandline -ct)
end

function __fish_mongoseal_wants_key
    set -l words (commandline -opc)
    not contains -- -- $words
    and not string match -qr -- '^--(uri|uri-file|db|collection)(=|$)' $words
    and __fish_mongoseal_using_subcommand COMMANDS
end

complete -c mongoseal -n 'contains -- -- (commandline -opc)' -x -a '(__fish_mongoseal_command)'
complete -c mongoseal -n __fish_mongoseal_wants_key -f -a '(mongoseal completions fish --keys (commandline -ct) 2>/dev/null)'
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_the_additions() {
        let mut program = Arguments::program();
        for (shell, parts) in [
            (Shell::Bash, &["_command_offset", "run|once|elect|hold|acquire|leader|ls|show|"][..]),
            (Shell::Zsh, &["_normal", "':key -- Key to show, for example reports/nightly:_mongoseal_keys'"]),
            (Shell::Fish, &["__fish_complete_subcommand", "__fish_mongoseal_using_subcommand run once "]),
        ] {
            let mut script = Vec::new();
            generate(shell, &mut program, NAME, &mut script);
            let script = with_additions(shell, &String::from_utf8(script).unwrap(), &commands_with_keys(&program));
            for part in parts {
                assert!(script.contains(part), "{shell}: {part}");
            }
        }
    }
}

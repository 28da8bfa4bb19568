//! What needs no database: help, manual, completions, demo.

use crate::{Said, program, secs, shell};

async fn said(arguments: &[&str]) -> Said {
    let mut program = program();
    program.args(arguments);
    Said::by(program).await
}

#[tokio::test]
async fn the_demo_loses_an_update_without_a_fence_and_none_with_one() {
    let told = tokio::time::timeout(secs(15), said(&["demo"])).await.expect("it takes less than 15 s");
    assert_eq!((told.status, told.err.as_str()), (0, ""));
    let (without, with) = told.out.split_once("2. With a fence").unwrap();
    assert!(without.contains("is not refused: the balance is 110"), "{without}");
    assert!(with.contains("is refused: ") && with.contains("reads 150 and writes 160"), "{with}");
    let tokens = |story: &str| -> Vec<u64> {
        story
            .split("with token ")
            .skip(1)
            .map(|rest| rest.split_whitespace().next().unwrap().parse().unwrap())
            .collect()
    };
    for story in [without, with] {
        assert!(tokens(story).len() > 1 && tokens(story).is_sorted_by(|one, next| one < next), "{story}");
    }
    assert!(told.out.lines().all(|line| line.chars().count() <= 80), "{}", told.out);
}

const COMMANDS: [&str; 19] = [
    "run",
    "elect",
    "hold",
    "leader",
    "ls",
    "show",
    "history",
    "value",
    "watch",
    "revoke",
    "fences",
    "raise",
    "purge",
    "doctor",
    "conform",
    "verify",
    "demo",
    "completions",
    "man",
];

#[tokio::test]
async fn each_command_has_help_with_an_example_that_its_parser_takes() {
    for command in COMMANDS {
        let help = said(&[command, "--help"]).await;
        assert_eq!(help.status, 0);
        let (_, examples) = help.out.split_once("Examples:\n").unwrap_or_else(|| panic!("{command}: {}", help.out));
        let examples: Vec<&str> = examples.lines().take_while(|line| line.starts_with("  mongoseal")).collect();
        assert!(!examples.is_empty(), "{command}");
        for example in examples {
            // What comes behind it in a pipe is not ours.
            let ours = example.split([';', '|', '>']).next().unwrap().split(" && ").next().unwrap();
            let parsed =
                shell("", &format!("export MONGOSEAL_KEY=k MONGOSEAL_TOKEN=7; set -- {ours} --help; \"$@\"")).await;
            // Behind `--` it is the command's.
            assert!(parsed.status == 0 || ours.contains(" -- "), "{ours}: {}", parsed.err);
            assert!(!parsed.err.contains("unexpected argument"), "{ours}: {}", parsed.err);
        }
    }
}

#[tokio::test]
async fn the_short_help_has_a_line_for_each_option_and_no_connection_where_there_is_none() {
    let narrow = async |arguments: &[&str]| {
        let mut program = program();
        program.args(arguments).env("COLUMNS", "80");
        let said = Said::by(program).await;
        assert_eq!((said.status, said.err.as_str()), (0, ""));
        said.out
    };
    for command in COMMANDS.map(Some).into_iter().chain([None]) {
        let arguments: Vec<&str> = command.into_iter().chain(["-h"]).collect();
        let help = narrow(&arguments).await;
        let (_, listed) = help.split_once("\n\n").unwrap().1.split_once("\n\n").unwrap();
        for line in listed.lines().filter(|line| line.starts_with(' ')) {
            let text = line.trim_start();
            let begins = text.starts_with(['-', '<', '[']) || !line.starts_with("   ");
            assert!(begins, "{command:?} continues a line: {line}\n{help}");
        }
        assert!(!help.contains("Examples:") && !help.contains("[env"), "{help}");
        let is_offline = ["demo", "completions", "man"].map(Some).contains(&command);
        assert_eq!(help.contains("--collection"), !is_offline, "{help}");
    }
    let long = narrow(&["run", "--help"]).await.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["Examples:", "Environment: `MONGODB_URI`", "[default: 10s]", "Default: a fifth of --term-before"] {
        assert!(long.contains(part), "{part}: {long}");
    }
}

#[tokio::test]
async fn the_usage_in_an_error_does_not_require_what_the_environment_sets() {
    let mut show = program();
    show.arg("show").env("MONGODB_URI", "mongodb://x").env("MONGOSEAL_DB", "app");
    let said = Said::by(show).await;
    assert_eq!(said.status, 125);
    assert!(said.err.contains("\nUsage: mongoseal show [OPTIONS] <KEY>\n"), "{}", said.err);
}

#[tokio::test]
async fn a_command_without_the_dashes_before_it_is_told_of_them() {
    for (arguments, usage) in [
        (&["run", "k", "sh", "-c", "true"][..], "run KEY -- COMMAND"),
        (&["--db", "app", "elect", "k", "v", "sh"], "elect NAME VALUE -- COMMAND"),
        (&["once", "k", "--tick", "7", "true"], "once KEY --every 1h -- COMMAND"),
    ] {
        let said = said(arguments).await;
        assert_eq!(said.status, 125);
        let hint = format!("put `--` before the command, for example: mongoseal {usage}\n");
        assert!(said.err.contains(&hint), "{}", said.err);
    }
    let said_once = said(&["once", "k", "--", "true"]).await;
    assert!(said_once.err.contains("--tick <TICK>|--every <TIME>|--reset"), "{}", said_once.err);
    for arguments in [&["ls", "a", "b"][..], &["run", "k", "--bad"], &["run", "k", "b", "--", "true"]] {
        let said = said(arguments).await;
        assert!(said.status == 125 && !said.err.contains("before the command"), "{}", said.err);
    }
}

#[tokio::test]
async fn what_cannot_be_printed_is_a_failure_and_a_closed_pipe_is_none() {
    for command in ["--help", "run -h", "--version", "help", "man", "completions bash"] {
        let full = shell("", &format!("mongoseal {command} > /dev/full")).await;
        assert_eq!(full.status, 125, "{command}");
        assert!(full.err.contains("No space left") && full.err.lines().count() == 1, "{command}: {}", full.err);
        let closed = shell("", &format!("mongoseal {command} | true")).await;
        assert_eq!((closed.status, closed.err.as_str()), (0, ""), "{command}");
    }
}

#[tokio::test]
async fn the_manual_names_each_command_option_status_and_variable() {
    let mut man = program();
    man.arg("man").env("MONGODB_URI", "mongodb://user:hunter2@h").env("MONGOSEAL_URI", "mongodb://user:hunter2@h");
    let page = Said::by(man).await;
    assert_eq!(page.status, 0);
    let page = page.out.replace("\\-", "-");
    for command in COMMANDS {
        assert!(page.contains(&format!(".SH \"mongoseal {command}")), "{command}:\n{page}");
    }
    for part in [
        "--expiring",
        "--reason",
        "--retention",
        "MONGODB_URI",
        "MONGOSEAL_OWNER",
        "NO_COLOR",
        "Exit status",
        "121",
        "Examples:",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("hunter2"), "the connection string is not in it");
}

#[tokio::test]
async fn what_is_printed_for_a_shell_completes_each_command_and_bash_can_read_its_own() {
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&["completions", shell]).await;
        assert_eq!((script.status, script.err.as_str()), (0, ""));
        for word in COMMANDS.into_iter().chain(["reason", "expiring", "no-wait"]) {
            assert!(script.out.contains(word), "{shell}: {word}");
        }
    }
    let asked = "set -e; mongoseal completions bash | bash -n; eval \"$(mongoseal completions bash)\"; complete -p mongoseal; \
                 COMP_WORDS=(mongoseal rev); COMP_CWORD=1; _mongoseal mongoseal rev mongoseal; echo \"${COMPREPLY[@]}\"";
    let completed = shell("", asked).await;
    assert_eq!((completed.status, completed.err.as_str()), (0, ""), "{}", completed.out);
    assert!(completed.out.lines().last() == Some("revoke"), "{}", completed.out);
}

#[tokio::test]
async fn without_a_connection_string_it_is_said_how_to_give_one() {
    for command in [vec!["ls"], vec!["doctor"], vec!["conform"], vec!["purge"], vec!["watch"]] {
        let told = said(&command).await;
        assert_eq!((told.status, told.out.as_str()), (125, ""));
        assert!(told.err.contains("MONGODB_URI"), "{}", told.err);
    }
}

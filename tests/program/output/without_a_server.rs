//! What needs no database: help, manual, completions, demo.

use std::{fs, path::Path};

use crate::{Ended, bash, done, mongoseal};

async fn said(arguments: &[&str]) -> Ended {
    done(mongoseal(arguments)).await
}

#[tokio::test]
async fn the_demo_loses_an_update_without_a_fence_and_none_with_one() {
    let told = said(&["demo"]).await.printed();
    let (without, with) = told.split_once("2. With a fence").unwrap();
    assert!(without.contains("is not refused: the balance is 110"), "{without}");
    assert!(with.contains("is refused: ") && with.contains("reads 150 and writes 160"), "{with}");
    for story in [without, with] {
        let tokens = story.split("with token ").skip(1).map(|rest| rest.split_whitespace().next().unwrap());
        let tokens: Vec<u64> = tokens.map(|token| token.parse().unwrap()).collect();
        assert!(tokens.len() > 1 && tokens.is_sorted_by(|one, next| one < next), "{story}");
    }
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
}

/// The names of the commands.
fn commands() -> Vec<&'static str> {
    let names = "run once elect hold acquire refresh release leader ls show history value watch revoke audit fences raise purge \
                 doctor verify demo completions man";
    names.split(' ').collect()
}

#[tokio::test]
async fn each_command_has_help_with_an_example_that_its_parser_takes() {
    for command in commands() {
        let help = said(&[command, "--help"]).await;
        assert_eq!(help.code, 0);
        let (_, examples) =
            help.stdout.split_once("Examples:\n").unwrap_or_else(|| panic!("{command}: {}", help.stdout));
        let examples: Vec<&str> = examples.lines().take_while(|line| line.starts_with("  mongoseal")).collect();
        assert!(!examples.is_empty(), "{command}");
        for example in examples {
            // What comes behind it in a pipe is not ours.
            let ours = example.split([';', '|', '>']).next().unwrap();
            let ours = ours.split(" && ").next().unwrap();
            let parsed =
                done(bash(&format!("export MONGOSEAL_KEY=k MONGOSEAL_TOKEN=7; set -- {ours} --help; \"$@\""))).await;
            // Behind `--` it is the command's.
            assert!(parsed.code == 0 || ours.contains(" -- "), "{ours}: {}", parsed.stderr);
            assert!(!parsed.stderr.contains("unexpected argument"), "{ours}: {}", parsed.stderr);
        }
    }
}

#[tokio::test]
async fn the_short_help_has_a_line_for_each_common_option_and_the_long_help_has_all() {
    let narrow = async |arguments: &[&str]| {
        let mut program = mongoseal(arguments);
        program.env("COLUMNS", "80");
        done(program).await.printed()
    };
    for command in commands().into_iter().map(Some).chain([None]) {
        let arguments: Vec<&str> = command.into_iter().chain(["-h"]).collect();
        let help = narrow(&arguments).await;
        let mut listed = help.lines().filter(|line| line.starts_with("   ")).map(str::trim_start);
        assert!(listed.all(|text| text.starts_with(['-', '<', '['])), "a line is continued: {help}");
        assert!(!help.contains("Examples:") && !help.contains("[env"), "{help}");
        let is_offline = ["demo", "completions", "man"].map(Some).contains(&command);
        assert_eq!(help.contains("--collection"), !is_offline, "{help}");
        for seldom in ["--retention", "--allow-sharded", "--redis-replicas"] {
            assert!(!help.contains(seldom), "{command:?}: {seldom}");
        }
    }
    let long = narrow(&["run", "--help"]).await.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "Examples:",
        "--retention",
        "--allow-sharded",
        "--redis-replicas",
        "Environment: `MONGODB_URI`",
        "[default: 10s]",
        "Default: a fifth of --term-before",
    ] {
        assert!(long.contains(part), "{part}: {long}");
    }
}

#[tokio::test]
async fn the_usage_in_an_error_does_not_require_what_the_environment_sets() {
    let mut show = mongoseal(&["show"]);
    show.env("MONGODB_URI", "mongodb://x").env("MONGOSEAL_DB", "app");
    done(show).await.fails(125, "\nUsage: mongoseal show [OPTIONS] <KEY>\n");
}

#[tokio::test]
async fn a_command_without_the_dashes_before_it_is_told_of_them() {
    for (arguments, usage) in [
        (&["run", "k", "sh", "-c", "true"][..], "run KEY -- COMMAND"),
        (&["--db", "app", "elect", "k", "v", "sh"], "elect NAME VALUE -- COMMAND"),
        (&["once", "k", "--tick", "7", "true"], "once KEY --every 1h -- COMMAND"),
    ] {
        let hint = format!("put `--` before the command, for example: mongoseal {usage}\n");
        said(arguments).await.fails(125, &hint);
    }
    said(&["once", "k", "--", "true"]).await.fails(125, "--tick <TICK>|--every <TIME>|--reset");
    for arguments in [&["ls", "a", "b"][..], &["run", "k", "--bad"], &["run", "k", "b", "--", "true"]] {
        let said = said(arguments).await;
        assert!(said.code == 125 && !said.stderr.contains("before the command"), "{}", said.stderr);
    }
}

#[tokio::test]
async fn what_cannot_be_printed_is_a_failure() {
    for command in ["--help", "run -h", "--version", "help", "man", "completions bash"] {
        let full = done(bash(&format!("mongoseal {command} > /dev/full"))).await;
        full.says(125, "No space left");
    }
}

#[tokio::test]
async fn the_help_has_the_commands_in_four_groups_and_is_printed_if_there_are_no_arguments() {
    let (short, long) = (said(&["-h"]).await.stdout, said(&["--help"]).await.stdout);
    for help in [&short, &long] {
        let groups = ["Run under a lease:\n  run ", "\nLook:\n  ls ", "\nIntervene:\n  revoke ", "\nCheck:\n  doctor "];
        let places: Vec<_> = groups.iter().map(|group| help.find(group)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{help}");
    }
    for command in commands() {
        let line = format!("\n  {command} ");
        assert!(long.contains(&line) && short.contains(&line) == (command != "purge"), "{command}\n{short}");
    }
    for uri in ["", "mongodb://h"] {
        let mut bare = mongoseal(&[]);
        bare.env("MONGODB_URI", uri);
        let bare = done(bare).await;
        assert_eq!((bare.code, bare.stdout.as_str(), bare.stderr.as_str()), (125, "", short.as_str()));
    }
}

/// The long options of a help.
fn options(help: &str) -> Vec<&str> {
    let listed = help.lines().filter(|line| line.trim_start().starts_with('-'));
    listed.flat_map(|line| line.split([' ', ','])).filter(|word| word.starts_with("--") && word.len() > 2).collect()
}

#[tokio::test]
async fn each_command_has_a_manual_page_with_all_options_of_its_help_and_the_main_page_has_statuses_and_variables() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{}", std::process::id()));
    let mut man = mongoseal(&["man", "--dir"]);
    man.arg(folder.join("man1"));
    man.env("MONGODB_URI", "mongodb://user:hunter2@h").env("MONGOSEAL_URI", "mongodb://user:hunter2@h");
    let written = done(man).await;
    assert_eq!((written.code, written.stdout.as_str(), written.stderr.as_str()), (0, "", ""));
    let page = |name: &str| {
        let page = fs::read_to_string(folder.join(format!("man1/{name}.1"))).unwrap().replace("\\-", "-");
        assert!(!page.contains("hunter2"), "the connection string is not in {name}");
        page
    };
    for command in commands() {
        let (help, page) = (said(&[command, "--help"]).await.stdout, page(&format!("mongoseal-{command}")));
        let options = options(&help);
        assert!(options.len() > 1, "{help}");
        for option in options {
            assert!(page.contains(option), "{command}: {option}\n{page}");
        }
        assert!(page.contains("Examples:") && page.contains(&format!("mongoseal {command}")), "{page}");
    }
    assert_eq!(fs::read_dir(folder.join("man1")).unwrap().count(), commands().len() + 1);
    let overview = page("mongoseal");
    assert_eq!(said(&["man"]).await.stdout.replace("\\-", "-"), overview);
    let pages = commands().into_iter().map(|command| format!("mongoseal-{command}"));
    let parts = ["--retention", "MONGODB_URI", "MONGOSEAL_OWNER", "NO_COLOR", "Exit status", "121"].map(str::to_owned);
    for part in pages.chain(parts) {
        assert!(overview.contains(&part), "{part}\n{overview}");
    }
    fs::write(folder.join("file"), "").unwrap();
    said(&["man", "--dir", folder.join("file").to_str().unwrap()]).await.fails(125, "cannot write ");
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn the_scripts_complete_each_command_and_its_options() {
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&["completions", shell]).await.printed();
        for word in commands().into_iter().chain(["reason", "expiring", "no-wait"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let taken = done(bash(r#"eval "$(mongoseal completions bash)" && complete -p mongoseal"#)).await.printed();
    assert!(taken.ends_with(" mongoseal\n"), "{taken}");
}

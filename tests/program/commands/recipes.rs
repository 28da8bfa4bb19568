//! The recipes of `docs/schedules.md`: each runs its command once for a tick, whichever machine starts it first.

use std::{fs, path::Path};

use tokio::process::Command;

use crate::sandbox::{Ended, Sandbox, done, install_script};

/// The commands of the page in the form of a shell, each with the recipe that it is from.
fn commands(page: &str) -> Vec<(&'static str, String)> {
    let mut commands = Vec::new();
    let (mut language, mut in_code) = (String::new(), false);
    for line in page.lines() {
        if let Some(tag) = line.strip_prefix("```") {
            in_code = !in_code;
            tag.clone_into(&mut language);
            continue;
        }
        if !in_code || !line.contains("mongoseal") {
            continue;
        }
        match language.as_str() {
            "sh" => commands.push(("sh", line.to_owned())),
            "text" => {
                if let Some((_, command)) = line.split_once("* * * * ") {
                    commands.push(("cron", command.to_owned()));
                }
            }
            "ini" => {
                if let Some(command) = line.strip_prefix("ExecStart=") {
                    commands.push(("systemd", command.to_owned()));
                }
            }
            "yaml" => {
                if let Some(words) = line.trim().strip_prefix("command: ") {
                    let words: Vec<String> = serde_json::from_str(words).unwrap();
                    commands.push(("kubernetes", words.join(" ")));
                }
            }
            _ => {}
        }
    }
    commands
}

#[tokio::test]
async fn each_recipe_for_a_schedule_runs_its_command_once_for_a_tick() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schedules.md");
    let page = fs::read_to_string(page).unwrap();
    let success = page.lines().find_map(|line| line.strip_prefix("SuccessExitStatus=")).unwrap();
    let sandbox = Sandbox::new("recipes").await;
    let bin = sandbox.file("bin");
    fs::create_dir_all(&bin).unwrap();
    install_script(&bin.join("mongoseal"), &format!("exec '{}' \"$@\"", env!("CARGO_BIN_EXE_mongoseal")));
    install_script(&bin.join("report.sh"), r#"echo "$MONGOSEAL_TICK" >>"$F/runs""#);
    install_script(&bin.join("logger"), r#"cat >>"$F/log""#);
    let run = async |command: &str| -> Ended {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command.replace("/usr/local/bin/", "")]);
        for (name, value) in sandbox.mongoseal(&[]).as_std().get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        shell.env("F", sandbox.file("")).env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        shell.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        shell.stderr(std::process::Stdio::piped()).kill_on_drop(true);
        done(shell).await
    };
    let runs = || fs::read_to_string(sandbox.file("runs")).unwrap_or_default().lines().count();
    let mut tested = Vec::new();
    for (recipe, command) in commands(&page) {
        if !command.contains("once") || command.contains("--reset") {
            run(&command).await.is_quiet(0);
            tested.push(recipe);
            continue;
        }
        // As if no machine had run it. It fails if there is nothing to reset.
        run("mongoseal once reports/hourly --reset --tick 1").await;
        loop {
            let before = (runs(), hour(&sandbox).await);
            let (first, second) = (run(&command).await, run(&command).await);
            // In a new hour there is a new tick.
            if hour(&sandbox).await != before.1 {
                continue;
            }
            assert_eq!(runs(), before.0 + 1, "{command}: {} {}", first.stderr, second.stderr);
            assert_eq!(first.code, Some(0), "{command}: {}", first.stderr);
            match recipe {
                "cron" => assert!(fs::read_to_string(sandbox.file("log")).unwrap().contains("is already done")),
                "kubernetes" => assert_eq!(second.code, Some(0), "{}", second.stderr),
                "systemd" => assert!(success.split(' ').any(|status| status == "120") && second.code == Some(120)),
                _ => assert_eq!(second.code, Some(120), "{}", second.stderr),
            }
            break;
        }
        tested.push(recipe);
    }
    for recipe in ["sh", "cron", "systemd", "kubernetes"] {
        assert!(tested.contains(&recipe), "{recipe} is in {tested:?}");
    }
}

/// The hour of the server's clock.
async fn hour(sandbox: &Sandbox) -> i64 {
    sandbox.seal.now().await.unwrap().millis() / 3_600_000
}

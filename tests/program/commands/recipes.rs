//! The recipes of `docs/schedules.md`: each runs its command once for a tick, whichever machine starts it first.

use std::{fs, path::Path};

use crate::sandbox::{BINARY, Sandbox, done, install_script};

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
        let recipe = match language.as_str() {
            "sh" => Some(("sh", line.to_owned())),
            "text" => line.split_once("* * * * ").map(|(_, command)| ("cron", command.to_owned())),
            "ini" => line.strip_prefix("ExecStart=").map(|command| ("systemd", command.to_owned())),
            "yaml" => line.trim().strip_prefix("command: ").map(|words| {
                let words: Vec<String> = serde_json::from_str(words).unwrap();
                ("kubernetes", words.join(" "))
            }),
            _ => None,
        };
        commands.extend(recipe);
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
    install_script(&bin.join("mongoseal"), &format!("exec '{BINARY}' \"$@\""));
    install_script(&bin.join("report.sh"), r#"echo "$MONGOSEAL_TICK" >>"$F/runs""#);
    install_script(&bin.join("logger"), r#"cat >>"$F/log""#);
    let run = async |command: &str| {
        let mut shell = sandbox.command("sh", &["-c", &command.replace("/usr/local/bin/", "")]);
        shell.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        done(shell).await
    };
    let runs = || fs::read_to_string(sandbox.file("runs")).unwrap_or_default().lines().count();
    let mut tested = Vec::new();
    for (recipe, command) in commands(&page) {
        if !command.contains("once") || command.contains("--reset") {
            run(&command).await.is_quiet(0);
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
            assert_eq!(first.code, 0, "{command}: {}", first.stderr);
            match recipe {
                "cron" => assert!(fs::read_to_string(sandbox.file("log")).unwrap().contains("is already done")),
                "kubernetes" => assert_eq!(second.code, 0, "{}", second.stderr),
                "systemd" => assert!(success.split(' ').any(|status| status == "120") && second.code == 120),
                _ => assert_eq!(second.code, 120, "{}", second.stderr),
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

//! The completion scripts. Bash runs its own; those of zsh and fish are only read.

use mongoseal_test_support::eventually;

use crate::{Console, done, mongoseal, run, secs, shell, without_a_server::commands};

/// What bash completes on these lines, one line for each. A line ends where the cursor is.
async fn completed(uri: &str, before: &str, lines: &[&str]) -> Vec<String> {
    let asked = format!("try {}", lines.join("\n        try "));
    let words = format!(
        r#"set -e
        {before}
        eval "$(mongoseal completions bash)"; complete -p mongoseal >/dev/null
        try() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}; COMPREPLY=()
            _mongoseal "$1" "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}" || true
            echo "${{COMPREPLY[*]}}"
        }}
        {asked}"#
    );
    shell(uri, &words).await.printed().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn the_scripts_complete_each_command_and_bash_completes_commands_options_and_what_follows_the_dashes() {
    for shell in ["bash", "zsh", "fish"] {
        let script = done(mongoseal(&["completions", shell])).await.printed();
        for word in commands().into_iter().chain(["reason", "expiring", "no-wait"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let lines = [
        "mongoseal rev",
        "mongoseal run --no-",
        "mongoseal run k --wait 5m -- mongosea",
        "mongoseal run k -- ls --no-",
    ];
    let seen = completed("", "", &lines).await;
    assert_eq!(seen[..2], ["revoke", "--no-wait"]);
    assert!(seen[2].split(' ').any(|command| command == "mongoseal"), "{seen:?}");
    // Not the option of `run`.
    assert_eq!(seen[3], "");
    // The package bash-completion completes the arguments of the command.
    let function = r#"_command_offset() { COMPREPLY=("${COMP_WORDS[@]:$1}"); }"#;
    assert_eq!(completed("", function, &["mongoseal once k --tick 7 -- git comm"]).await, ["git comm"]);
}

#[tokio::test]
async fn bash_completes_keys_or_none_and_writes_nothing() {
    let console = Console::new("completed_keys").await;
    let lines =
        ["mongoseal show rep", "mongoseal run reports/d", "mongoseal revoke --reason rep", "mongoseal show --db x rep"];
    assert_eq!(completed(&console.uri, "", &lines).await, ["", "", "", ""]);
    let names = console.db.database.list_collection_names().await.unwrap();
    assert!(names.is_empty(), "a completion created {names:?}");

    let seal = console.seal("alice");
    for key in ["reports/daily", "reports/nightly", "other", "reports/with space", "reports/$(date)"] {
        seal.acquire(key).ttl(secs(600)).await.unwrap().orphan();
    }
    let keys = ["reports/daily reports/nightly", "reports/daily", "", ""];
    eventually(secs(60), "the server answers each within a third of a second", async || {
        let seen = completed(&console.uri, "", &lines).await;
        let is_keys_or_none = |(seen, keys): (&String, &str)| seen.is_empty() || seen == keys;
        assert!(seen.len() == keys.len() && seen.iter().zip(keys).all(is_keys_or_none), "{seen:?}");
        seen == keys
    })
    .await;
}

#[tokio::test]
#[ignore = "night: judges seconds"]
async fn bash_waits_a_third_of_a_second_for_keys() {
    let began = std::time::Instant::now();
    // No server answers at this address.
    let keys = run("mongodb://192.0.2.1", &["completions", "bash", "--keys", "rep"]).await;
    assert_eq!(keys.printed(), "");
    assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
}

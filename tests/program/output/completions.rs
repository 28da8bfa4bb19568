//! The completion scripts. Bash runs its own; those of zsh and fish are only read.

use crate::{done, mongoseal, shell, without_a_server::commands};

#[tokio::test]
async fn the_scripts_complete_each_command_and_bash_completes_commands_and_options() {
    for shell in ["bash", "zsh", "fish"] {
        let script = done(mongoseal(&["completions", shell])).await.printed();
        for word in commands().into_iter().chain(["reason", "expiring", "no-wait"]) {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let words = r#"set -e
        eval "$(mongoseal completions bash)"; complete -p mongoseal >/dev/null
        try() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _mongoseal "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" || true
            echo "${COMPREPLY[*]}"
        }
        try mongoseal rev
        try mongoseal run --no-"#;
    assert_eq!(shell("", words).await.printed(), "revoke\n--no-wait\n");
}

//! `run --value-file` and `value`.

use std::fs;

use mongoseal::Json;

use crate::sandbox::{KEY, Sandbox, done};

/// The value of the key, as text.
async fn stored(sandbox: &Sandbox) -> Option<String> {
    let record = sandbox.seal.inspect(KEY).await.unwrap();
    record.and_then(|record| record.value).map(|value| value.content.to_string())
}

#[tokio::test]
async fn a_command_finds_the_value_in_its_file_and_stores_it_if_it_succeeds() {
    let sandbox = Sandbox::new("value_file").await;
    let file = sandbox.file("page.json");
    let run = async |script: &str| {
        let mut command = sandbox.mongoseal(&["run", KEY, "--value-file", file.to_str().unwrap(), "--", "sh", "-c"]);
        done({
            command.arg(script).env("F", &file);
            command
        })
        .await
    };
    // A file of an earlier time is emptied.
    fs::write(&file, "stale").unwrap();
    run(r#"test ! -s "$F" && echo '{"page":1}' >"$F""#).await.is_quiet(0);
    assert_eq!(stored(&sandbox).await.as_deref(), Some(r#"{"page":1}"#));
    run(r#"test "$(cat "$F")" = '{"page":1}' && echo '{"page":2}' >"$F""#).await.is_quiet(0);
    assert_eq!(run(r#"echo '{"page":9}' >"$F"; exit 3"#).await.code, Some(3));
    assert_eq!(stored(&sandbox).await.as_deref(), Some(r#"{"page":2}"#), "a failed command stores nothing");
    run(r#"echo '{"page":' >"$F""#).await.says(125, "page.json cannot be stored as the value: the text is not JSON");
    assert_eq!(stored(&sandbox).await.as_deref(), Some(r#"{"page":2}"#));
    run(": nothing").await.is_quiet(0);
    assert_eq!(stored(&sandbox).await.as_deref(), Some(r#"{"page":2}"#));
    run(r#": >"$F""#).await.is_quiet(0);
    assert_eq!(stored(&sandbox).await, None, "an empty file clears the value");
}

#[tokio::test]
async fn a_command_stores_values_in_between_and_others_read_them() {
    let sandbox = Sandbox::new("value_set").await;
    let read = async |arguments: &[&str]| done(sandbox.mongoseal(&[&["value", KEY], arguments].concat())).await;
    read(&[]).await.says(1, "has no value");
    let script = r#"echo '{"page":1}' | "$M" value --set - && echo 2 >"$F/v" && "$M" value --set "$F/v" && "$M" value"#;
    let mut command = sandbox.run(script);
    command.env("M", env!("CARGO_BIN_EXE_mongoseal"));
    let ended = done(command).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "2\n"), "{}", ended.stderr);
    assert_eq!(read(&[]).await.stdout, "2\n");
    let json: serde_json::Value = serde_json::from_str(&read(&["--json"]).await.stdout).unwrap();
    assert_eq!((&json["key"], &json["value"]), (&KEY.into(), &2.into()));
    assert!(json["token"].as_u64().is_some() && json["at"].as_str().is_some(), "{json}");
    let shown = done(sandbox.mongoseal(&["show", KEY])).await.stdout;
    assert!(shown.contains("Value    2\n         written "), "{shown}");

    fs::write(sandbox.file("v"), "3").unwrap();
    let file = sandbox.file("v");
    read(&["--set", file.to_str().unwrap()]).await.says(125, "was not started under a lease");
    // The lease has ended since: its id and token store nothing.
    let lease = sandbox.hold().await;
    let mut command = sandbox.mongoseal(&["value", "--set", file.to_str().unwrap()]);
    let (id, token) = (lease.id().expose(), lease.token().to_string());
    command.env("MONGOSEAL_KEY", KEY).env("MONGOSEAL_LEASE_ID", id).env("MONGOSEAL_TOKEN", token);
    lease.release().await.unwrap();
    done(command).await.says(122, "lost");
    assert_eq!(stored(&sandbox).await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_list_has_the_value_and_a_file_is_for_one_exclusive_key() {
    let sandbox = Sandbox::new("value_list").await;
    let lease = sandbox.hold().await;
    lease.put_value(&Json::from_text(br#"{"page":7}"#).unwrap()).await.unwrap();
    let listed = done(sandbox.mongoseal(&["ls", "-o", "json"])).await.stdout;
    assert!(listed.contains(r#""value":{"#) && listed.contains(r#""content":{"page":7}"#), "{listed}");
    lease.release().await.unwrap();
    let two = done(sandbox.mongoseal(&["run", KEY, "other", "--value-file", "v", "--", "true"])).await;
    two.says(125, "--value-file is for one key");
    let shared = done(sandbox.mongoseal(&["run", KEY, "--shared", "2", "--value-file", "v", "--", "true"])).await;
    assert_eq!(shared.code, Some(125), "{}", shared.stderr);
}

#[tokio::test]
async fn a_long_value_is_cut_in_the_text_of_a_key() {
    let sandbox = Sandbox::new("value_long").await;
    sandbox.hold().await.release_with_value(&"é".repeat(1_000)).await.unwrap();
    let shown = done(sandbox.mongoseal(&["show", KEY])).await.stdout;
    let line = shown.lines().find(|line| line.starts_with("Value")).unwrap();
    assert!(line.ends_with("… (2002 bytes)") && line.chars().count() <= 80, "{line}");
    assert_eq!(done(sandbox.mongoseal(&["value", KEY])).await.stdout.trim().len(), 2_002);
}

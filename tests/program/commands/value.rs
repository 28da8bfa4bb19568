//! `value`.

use std::fs;

use mongoseal::Json;
use serde_json::Value;

use crate::sandbox::{KEY, Sandbox, done};

#[tokio::test]
async fn a_command_stores_values_in_between_and_others_read_them() {
    let sandbox = Sandbox::new("value_set").await;
    sandbox.done(&["value", KEY]).await.says(1, "has no value");
    let stored = async || sandbox.done(&["value", KEY]).await.printed();
    let script = r#"echo '{"page":1}' | "$M" value --set - && echo 2 >"$F/v" && "$M" value --set "$F/v" && "$M" value"#;
    assert_eq!(done(sandbox.run(script)).await.printed(), "2\n");
    assert_eq!(stored().await, "2\n");
    let json = &sandbox.done(&["value", KEY, "--json"]).await.json()[0];
    assert_eq!((&json["key"], &json["value"]), (&KEY.into(), &2.into()));
    assert!(json["token"].is_u64() && json["at"].is_string(), "{json}");
    let shown = sandbox.done(&["show", KEY]).await.stdout;
    assert!(shown.contains("Value    2\n         written "), "{shown}");

    // What is no JSON stores nothing, and `null` empties the value.
    let script = r#"echo '{"page":' | "$M" value --set -"#;
    done(sandbox.run(script)).await.says(125, "- cannot be stored as the value: the text is not JSON");
    assert_eq!(stored().await, "2\n");
    done(sandbox.run(r#"echo null | "$M" value --set -"#)).await.is_quiet(0);
    assert_eq!(stored().await, "null\n");
    done(sandbox.run(r#"echo 2 | "$M" value --set -"#)).await.is_quiet(0);

    let file = sandbox.file("v");
    let set = ["value", "--set", file.to_str().unwrap()];
    sandbox.done(&["value", KEY, "--set", set[2]]).await.says(125, "was not started under a lease");
    // The lease has ended since: its id and token store nothing.
    let lease = sandbox.hold().await;
    let mut command = sandbox.mongoseal(&set);
    let (id, token) = (lease.id().expose(), lease.token().to_string());
    command.env("MONGOSEAL_KEY", KEY).env("MONGOSEAL_LEASE_ID", id).env("MONGOSEAL_TOKEN", token);
    lease.release().await.unwrap();
    fs::write(&file, "3").unwrap();
    done(command).await.says(122, "lost");
    assert_eq!(stored().await, "2\n");
}

#[tokio::test]
async fn a_list_has_the_value_and_the_text_of_a_key_cuts_a_long_one() {
    let sandbox = Sandbox::new("value_list").await;
    let lease = sandbox.hold().await;
    lease.put_value(&Json::from_text(br#"{"page":7}"#).unwrap()).await.unwrap();
    let listed: Value = sandbox.done(&["ls", "-o", "json"]).await.json().remove(0);
    assert_eq!(listed["value"]["content"]["page"], 7, "{listed}");
    lease.release_with_value(&"é".repeat(1_000)).await.unwrap();
    let shown = sandbox.done(&["show", KEY]).await.stdout;
    let line = shown.lines().find(|line| line.starts_with("Value")).unwrap();
    assert!(line.ends_with("… (2002 bytes)") && line.chars().count() <= 80, "{line}");
    assert_eq!(sandbox.done(&["value", KEY]).await.stdout.trim().len(), 2_002);
}

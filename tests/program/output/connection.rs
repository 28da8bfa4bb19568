//! Where the connection string and other settings come from.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, os::unix::fs::PermissionsExt, path::PathBuf};

use crate::{Sandbox, bash, done, ended::SETTINGS, mongoseal, run, secs};

/// A file with this text, which only its owner can read.
fn file(name: &str, text: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[tokio::test]
async fn an_empty_variable_counts_as_unset() {
    let sandbox = Sandbox::new("empty").await;
    run("", &["ls"]).await.fails(125, "no connection string: set MONGODB_URI");
    let words = format!("{} mongoseal doctor --json", SETTINGS.map(|name| format!("export {name}=;")).concat());
    done(bash(&format!("{words} --uri '{}'", sandbox.uri()))).await.is_quiet(0);
}

#[tokio::test]
async fn a_variable_that_is_not_utf8_is_named() {
    for name in ["MONGODB_URI", "MONGOSEAL_URI", "MONGOSEAL_DB"] {
        let mut listing = mongoseal(&["ls"]);
        listing.env(name, OsStr::from_bytes(b"mongodb://user:\xff@host"));
        let said = done(listing).await;
        said.says(125, &format!("{name} is not UTF-8"));
        // Only a connection string has percent signs.
        assert_eq!(said.stderr.contains("percent-encode"), name.ends_with("_URI"), "{}", said.stderr);
    }
    let mut listing = mongoseal(&["ls"]);
    listing.arg(OsStr::from_bytes(b"\xff"));
    done(listing).await.fails(125, "arguments");
}

#[tokio::test]
async fn a_newline_or_quotes_around_a_setting_make_no_other_lock() {
    let sandbox = Sandbox::new("newline").await;
    let lease = sandbox.seal_of("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let with = async |name: &str, value: &str, arguments: &[&str]| {
        let mut program = mongoseal(arguments);
        program.env("MONGODB_URI", sandbox.uri()).env(name, value);
        done(program).await
    };
    // As `MONGODB_URI="$(cat secret; echo x)"` and many a store of secrets set it.
    let said = with("MONGODB_URI", &format!("\n{}\n", sandbox.uri()), &["ls", "--json"]).await;
    assert_eq!((said.code, said.json().len()), (0, 1), "{}", said.stderr);
    for (name, value, shown) in [
        ("MONGOSEAL_DB", "locks\n", "a database has a control character: remove it from \"locks\\n\""),
        ("MONGOSEAL_COLLECTION", "locks\n", "a collection has a control character: remove it from \"locks\\n\""),
        ("MONGOSEAL_COLLECTION", " locks", "a collection begins or ends with a space: remove it from \" locks\""),
        ("MONGOSEAL_COLLECTION", "\"locks\"", "a collection is in quotes: remove it from"),
    ] {
        for command in [&["ls"][..], &["doctor"], &["run", "k", "--", "true"]] {
            let said = with(name, value, command).await;
            let (status, output) = (said.code, said.stdout + &said.stderr);
            assert!(status != 0 && output.contains(shown), "{name} {command:?}: {status} {output}");
        }
    }
    sandbox.done(&["run", "k\n", "--", "true"]).await.fails(125, "a key has a control character");
    drop(lease);
}

#[tokio::test]
async fn a_connection_string_is_read_from_a_file_or_a_pipe_and_precedes_the_environment() {
    let sandbox = Sandbox::new("uri_file").await;
    let lease = sandbox.seal_of("alice").acquire("k").ttl(secs(600)).await.unwrap();
    let path = file("uri", format!("  {}\n", sandbox.uri()).as_bytes());
    let with = async |path: &str, arguments: &[&str]| {
        let mut program = mongoseal(arguments);
        program.args(["--uri-file", path]).env("MONGODB_URI", "mongodb://127.0.0.1:9");
        done(program).await
    };
    let name = path.to_str().unwrap();
    let said = with(name, &["ls", "--json"]).await;
    assert_eq!((said.code, said.stderr.as_str(), said.json().len()), (0, "", 1));
    // `doctor` connects twice.
    done(bash(&format!("mongoseal doctor --json --uri-file <(echo '{}')", sandbox.uri()))).await.is_quiet(0);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let said = with(name, &["ls", "--json"]).await;
    assert_eq!((said.code, said.json().len()), (0, 1));
    assert!(said.stderr.contains("all users can read") && said.stderr.contains("chmod o-r"), "{}", said.stderr);

    for (path, words) in [
        (path.with_extension("none"), "No such file"),
        (file("uri-empty", b" \n"), "is empty"),
        (file("uri-bytes", b"mongodb://\xff"), "is not UTF-8"),
    ] {
        with(path.to_str().unwrap(), &["ls"]).await.says(125, words);
    }
    with(name, &["ls", "--uri", sandbox.uri()]).await.fails(125, "two connection strings");
    lease.release().await.unwrap();
}

#[tokio::test]
async fn the_owner_of_a_lease_can_come_from_the_environment() {
    let sandbox = Sandbox::new("owner").await;
    for (options, owner) in [("", "olga"), ("--owner bob", "bob")] {
        let words = format!("MONGOSEAL_OWNER=olga mongoseal run k {options} -- mongoseal ls --json");
        let said = sandbox.shell(&words).await;
        assert_eq!((said.code, &said.json()[0]["owner"]), (0, &owner.into()), "{}", said.stderr);
    }
}

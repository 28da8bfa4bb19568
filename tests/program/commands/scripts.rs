//! `acquire`, `refresh` and `release`: a lease that no process keeps between the steps of a script.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use futures_util::future::join_all;
use mongoseal::Sharing;
use mongoseal_test_support::ReplicaSet;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    eventually, millis,
    sandbox::{Ended, KEY, Sandbox, done, ended, id, install_script, signal},
    secs,
};

impl Sandbox {
    /// A command of the program, with a lease file of the sandbox.
    fn with_file(&self, arguments: &[&str]) -> Command {
        let mut command = self.mongoseal(arguments);
        command.arg("--lease-file").arg(self.file("lease"));
        command
    }

    fn acquire(&self, options: &[&str]) -> Command {
        let mut command = self.with_file(&["acquire", KEY]);
        command.args(options);
        command
    }

    /// The key, acquired for so long. Returns the token.
    async fn acquired(&self, ttl: &str) -> u64 {
        done(self.acquire(&["--ttl", ttl, "--no-wait"])).await.printed().trim_end().parse().unwrap()
    }

    async fn refreshed(&self) -> Ended {
        done(self.with_file(&["refresh"])).await
    }

    async fn released(&self) -> Ended {
        done(self.with_file(&["release"])).await
    }

    fn has_file(&self) -> bool {
        self.file("lease").exists()
    }

    fn lease_file(&self) -> Value {
        serde_json::from_slice(&fs::read(self.file("lease")).unwrap()).unwrap()
    }
}

#[tokio::test]
async fn the_key_stays_held_between_the_steps_and_is_free_after_the_release() {
    let sandbox = Sandbox::new("steps").await;
    let token = sandbox.acquired("1h").await;
    let longer = &done(sandbox.with_file(&["refresh", "--ttl", "5h", "--json"])).await.json()[0];
    assert_eq!((&longer["key"], &longer["token"]), (&KEY.into(), &token.into()));
    assert!(longer["remaining_ms"].as_u64() > Some(4 * 3_600_000) && longer["deadline_ms"].is_u64(), "{longer}");
    // The next refresh keeps that ttl.
    assert!(sandbox.refreshed().await.stdout.starts_with("4 h 59 m"));

    assert_eq!(sandbox.released().await.printed(), format!("released \"{KEY}\" with token {token}\n"));
    sandbox.is_free().await;
    sandbox.released().await.says(125, "there is no lease file");
    sandbox.refreshed().await.says(125, "there is no lease file");
}

#[tokio::test]
async fn the_lease_file_is_for_this_user_only_and_has_the_form_of_the_document() {
    let sandbox = Sandbox::new("form").await;
    let options = ["--ttl=60s", "--owner=ci", "--group=g", "--metadata=build=7", "--shared=2", "--json"];
    let acquired = &done(sandbox.acquire(&options)).await.json()[0];
    let holder = sandbox.holder().await.unwrap();
    assert_eq!((holder.owner.as_str(), holder.sharing), ("ci", Sharing::UpTo(2)));
    assert_eq!(holder.group.as_ref().map(mongoseal::Group::as_str), Some("g"));
    assert_eq!(holder.metadata.iter().collect::<Vec<_>>(), [("build", "7")]);
    assert_eq!(
        (&acquired["key"], &acquired["owner"], &acquired["token"]),
        (&KEY.into(), &"ci".into(), &holder.token.get().into())
    );
    assert!(acquired["remaining_ms"].as_u64() > Some(0) && acquired.as_object().unwrap().len() == 5, "{acquired}");

    assert_eq!(fs::metadata(sandbox.file("lease")).unwrap().permissions().mode() & 0o777, 0o600);
    let file = sandbox.lease_file();
    let expected = json!({
        "version": 1, "store": "mongodb", "database": "cli_form", "collection": "mongoseal", "key": KEY,
        "lease_id": file["lease_id"].as_str(), "token": holder.token.get(),
    });
    assert_eq!(file, expected);
    sandbox.released().await.is_quiet(0);
}

#[tokio::test]
async fn a_lease_that_expired_or_was_taken_is_lost_and_never_acquired_again() {
    let sandbox = Sandbox::new("lost").await;
    sandbox.acquired("2s").await;
    eventually(secs(60), "it expires", async || sandbox.seal.acquire(KEY).await.is_ok()).await;
    sandbox.refreshed().await.says(122, "its time ran out before the store confirmed a refresh");
    assert!(sandbox.has_file());
    sandbox.is_free().await;
    sandbox.released().await.says(122, "its time ran out");
    assert!(!sandbox.has_file());

    sandbox.acquired("2s").await;
    let next = sandbox.seal.acquire(KEY).ttl(secs(60)).wait(secs(60)).await.unwrap();
    sandbox.refreshed().await.says(122, &format!("the key has a newer token, {}", next.token()));
    sandbox.released().await.says(122, "the key has a newer token");
    assert!(!sandbox.has_file());
    next.verify().await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_key_that_is_held_leaves_no_file_and_a_lease_file_that_exists_is_not_overwritten() {
    let sandbox = Sandbox::new("twice").await;
    let lease = sandbox.hold().await;
    done(sandbox.acquire(&["--ttl=60s", "--no-wait"])).await.says(121, "is held by");
    done(sandbox.acquire(&["--ttl=60s", "--wait=200ms", "--held-status=7"])).await.says(7, "is held by");
    assert!(!sandbox.has_file());
    lease.release().await.unwrap();

    let token = sandbox.acquired("60s").await;
    let second = sandbox.with_file(&["acquire", "other", "--ttl=60s"]);
    done(second).await.says(125, "exists: run `mongoseal release --lease-file");
    assert!(sandbox.seal.inspect("other").await.unwrap().is_none());
    assert_eq!(sandbox.lease_file()["token"], token);
    sandbox.released().await.is_quiet(0);
    // Without a ttl there is no default.
    done(sandbox.acquire(&[])).await.fails(125, "--ttl");
    sandbox.done(&["acquire", KEY, "--ttl=60s"]).await.fails(125, "--lease-file");
}

#[tokio::test]
async fn a_signal_ends_the_wait_and_leaves_neither_a_waiter_nor_a_file() {
    let sandbox = Sandbox::new("signal").await;
    let lease = sandbox.hold().await;
    let waiting = sandbox.acquire(&["--ttl=60s"]).spawn().unwrap();
    sandbox.queued(1).await;
    sandbox.released().await.says(125, "is empty: wait until the `mongoseal acquire` that writes it has ended");
    signal(id(&waiting), Signal::SIGINT);
    ended(waiting).await.is_quiet(-(Signal::SIGINT as i32));
    sandbox.queued(0).await;
    assert!(!sandbox.has_file());

    let waiting = sandbox.acquire(&["--ttl=1s"]).spawn().unwrap();
    sandbox.queued(1).await;
    signal(id(&waiting), Signal::SIGKILL);
    ended(waiting).await.is_quiet(-(Signal::SIGKILL as i32));
    assert!(sandbox.has_file());
    sandbox.refreshed().await.says(125, "if it was killed, remove the file");
    lease.release().await.unwrap();
    sandbox.freed(KEY).await;
}

#[tokio::test]
#[ignore = "night: judges milliseconds"]
async fn a_lease_that_was_handed_over_begins_with_its_whole_ttl() {
    let sandbox = Sandbox::new("handed").await;
    let lease = sandbox.hold().await;
    let waiting = sandbox.acquire(&["--ttl=6s", "--json"]).spawn().unwrap();
    sandbox.queued(1).await;
    // Less than a third of the ttl, after which the waiter renews its place.
    tokio::time::sleep(millis(1_300)).await;
    lease.release().await.unwrap();
    let view = &ended(waiting).await.json()[0];
    assert!(view["remaining_ms"].as_u64() > Some(5_500), "{view}");
    sandbox.released().await.is_quiet(0);
}

#[tokio::test]
async fn a_lease_that_cannot_be_written_or_whose_token_cannot_be_printed_is_not_held() {
    let sandbox = Sandbox::new("full").await;
    for (script, part) in [
        ("mongoseal acquire k --ttl 60s --lease-file lease >/dev/full", "cannot print the token"),
        ("mongoseal acquire k --ttl 60s --lease-file no/such/folder/lease", "there is no folder"),
    ] {
        sandbox.shell(script).await.says(125, part);
        assert!(!sandbox.has_file());
        sandbox.free(&["k"]).await;
    }
    // A reader that has gone finds the token in the file.
    sandbox.shell("mongoseal acquire k --ttl 60s --lease-file lease | true").await.is_quiet(0);
    sandbox.released().await.is_quiet(0);
}

#[tokio::test]
async fn a_file_that_is_no_lease_file_is_an_error_that_names_the_remedy_and_no_secret() {
    let sandbox = Sandbox::new("wrong").await;
    sandbox.acquired("60s").await;
    let path = sandbox.file("lease");
    let right = fs::read_to_string(&path).unwrap();
    let secret = sandbox.lease_file()["lease_id"].as_str().unwrap().to_owned();
    let newer = right.replace("\"version\":1", "\"version\":2");
    let wrong_type = right.replace(&format!("\"{secret}\""), &format!("[\"{secret}\"]"));
    let no_id = right.replace(&secret, &format!("{secret}0"));
    for (content, part) in [
        (right[..right.len() / 2].to_owned(), "is cut off: remove it; its lease ends with its ttl"),
        (String::new(), "is empty"),
        (newer, "has the format version 2, and this program reads 1: upgrade mongoseal"),
        (wrong_type, "has no lease: pass the file that `mongoseal acquire` has written"),
        (no_id, "has no lease"),
        (format!("not JSON {secret}"), "has no lease"),
        ("{}".to_owned(), "has no lease"),
        (format!("{right}{right}"), "has no lease"),
    ] {
        fs::write(&path, content).unwrap();
        for refused in [sandbox.refreshed().await, sandbox.released().await] {
            refused.says(125, part);
            assert!(!refused.stderr.contains(&secret[..13]), "{}", refused.stderr);
        }
        assert!(sandbox.has_file());
    }
    fs::write(&path, &right).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    sandbox.refreshed().await.says(125, "which has a secret: run chmod 600");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut other = sandbox.with_file(&["release"]);
    other.args(["--collection", "other"]);
    let part = "is in the collection \"mongoseal\" of the database \"cli_wrong\" on MongoDB, and the options name the collection \"other\" of the database \"cli_wrong\" on MongoDB: pass the connection options";
    done(other).await.says(125, part);
    let pipe = sandbox.shell("mkfifo -m 600 pipe; mongoseal release --lease-file pipe").await;
    pipe.says(125, "is no regular file: pass another path");
    sandbox.released().await.is_quiet(0);
    sandbox.is_free().await;
}

#[tokio::test]
async fn the_lease_id_is_in_the_lease_file_only() {
    let sandbox = Sandbox::new("hidden").await;
    let lease = sandbox.hold().await;
    let mut acquire = sandbox.acquire(&["--ttl=60s", "--verbose", "--json"]);
    let waiting = acquire.spawn().unwrap();
    sandbox.queued(1).await;
    lease.release().await.unwrap();
    let acquired = ended(waiting).await;
    let secret = sandbox.lease_file()["lease_id"].as_str().unwrap().to_owned();
    acquired.fails(0, "granted");
    let mut said = acquired.stdout + &acquired.stderr;
    for command in [&["refresh", "--json"][..], &["refresh", "--ttl=1ms"], &["release", "--json"], &["release"]] {
        let ended = done(sandbox.with_file(command)).await;
        said += &(ended.stdout + &ended.stderr);
    }
    // The first eight digits name a lease in messages of the library.
    assert!(!said.contains(&secret[..13]), "{said}");
    assert!(said.contains("\"released\":true"), "{said}");
}

/// An acquire with a chosen lease id and without an answer must be taken back, too.
#[tokio::test]
async fn an_acquire_without_an_answer_takes_back_what_it_was_granted() {
    let set = ReplicaSet::builder().proxied().start().await;
    let sandbox = Sandbox::on(&set, "doubt").await;
    // Each request is executed, the take-back too, and none is answered.
    let swallowed = set.proxy().swallow_reply("script", "findAndModify", 1_000);
    let ends = ["acquire", "run"].map(async |command| {
        let mut acquire = sandbox.mongoseal(&[command, command, "--ttl=10m", "--no-wait", "--timeout=10s"]);
        acquire.env("MONGODB_URI", set.uri_with("appName=script"));
        match command {
            "acquire" => acquire.arg("--lease-file").arg(sandbox.file("lease")),
            _ => acquire.args(["--", "echo", "never"]),
        };
        let ended = done(acquire).await;
        assert_eq!(ended.code, 123, "{command}: {}{}", ended.stdout, ended.stderr);
        // The server may still carry it out.
        drop(sandbox.seal.acquire(command).wait(secs(60)).await.unwrap());
    });
    join_all(ends).await;
    assert!(swallowed.count() > 5, "{}", swallowed.count());
    assert!(!sandbox.has_file());
}

/// The shell scripts below a heading of `docs/shell.md`.
fn scripts_of(heading: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/shell.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split_once(&format!("\n## {heading}\n")).unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0.to_owned()).collect()
}

#[tokio::test]
async fn the_pipeline_of_the_document_holds_the_key_from_its_first_step_to_its_last() {
    let sandbox = Sandbox::new("pipeline_of_a_script").await;
    let steps = scripts_of("Steps that no command contains");
    assert_eq!(steps.len(), 3);
    for name in ["build.sh", "deploy.sh"] {
        let script = format!("mongoseal ls --json deploy >>held; echo \"{name} $1\" >>work");
        install_script(&sandbox.file(name), &script);
    }
    for _ in 0..2 {
        for step in &steps {
            let step = sandbox.shell(step).await;
            assert_eq!(step.code, 0, "{}", step.stderr);
        }
        sandbox.free(&["deploy"]).await;
    }
    let token = fs::read_to_string(sandbox.file("token")).unwrap();
    let work = sandbox.lines("work", 4).await;
    assert_eq!(work[2..], [format!("build.sh {}", token.trim_end()), format!("deploy.sh {}", token.trim_end())]);
    assert_eq!(sandbox.lines("held", 4).await.len(), 4);

    // A revocation between the steps: the second step ends before its last command, and the third reports it.
    assert_eq!(sandbox.shell(&steps[0]).await.code, 0);
    sandbox.seal.revoke("deploy").by("olga").await.unwrap();
    let second = sandbox.shell(&steps[1]).await;
    assert_eq!((second.code, sandbox.lines("work", 5).await.len()), (122, 5), "{}", second.stderr);
    assert_eq!(sandbox.shell(&steps[2]).await.code, 122);
}

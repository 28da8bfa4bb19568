//! `cli/examples/hold.sh`: a program in another language that speaks the pipe protocol itself.

use std::{fs, path::Path};

use nix::{
    sys::signal::Signal::{SIGKILL, SIGTERM},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use crate::{
    eventually, millis,
    sandbox::{BINARY, KEY, Sandbox, children, done, ended, id, signal},
    secs,
};

/// As many steps as take much longer than a test.
const ENDLESS: &str = "1000000";

fn example(sandbox: &Sandbox, steps: &str) -> Command {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hold.sh");
    let mut command = sandbox.command("bash", &[file.to_str().unwrap(), KEY, steps]);
    command.stdout(fs::File::create(sandbox.file("log")).unwrap());
    command
}

/// One that works, and its process of `mongoseal hold`.
async fn working(sandbox: &Sandbox) -> (Child, Pid) {
    let child = example(sandbox, ENDLESS).spawn().unwrap();
    sandbox.lines("log", 1).await;
    let is_hold = |process: &Pid| {
        let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
        program == Path::new(BINARY)
    };
    let hold = children(id(&child)).into_iter().find(is_hold).expect("it has a child that holds");
    (child, hold)
}

#[tokio::test]
async fn it_works_with_the_token_and_releases() {
    let sandbox = Sandbox::new("hold_sh_works").await;
    for _ in 0..2 {
        done(example(&sandbox, "3")).await.is_quiet(0);
        let token = sandbox.seal.inspect(KEY).await.unwrap().unwrap().version;
        let steps: Vec<String> = (1..=3).map(|step| format!("step {step} with token {token}")).collect();
        assert_eq!(sandbox.lines("log", 3).await, steps);
        sandbox.is_free().await;
    }
}

#[tokio::test]
async fn it_stops_when_the_lease_is_lost_or_what_holds_is_killed_or_ended() {
    let sandbox = Sandbox::new("hold_sh_ends").await;
    for (sent, code) in [(None, 122), (Some(SIGTERM), 143), (Some(SIGKILL), 137)] {
        let (child, hold) = working(&sandbox).await;
        match sent {
            Some(sent) => signal(hold, sent),
            None => drop(sandbox.seal.revoke(KEY).by("ops").reason("moved").await.unwrap()),
        }
        let ended = ended(child).await;
        assert_eq!((ended.code, ended.stderr.contains("it was revoked")), (code, sent.is_none()), "{}", ended.stderr);
        let steps = fs::read_to_string(sandbox.file("log")).unwrap();
        tokio::time::sleep(millis(400)).await;
        assert_eq!(fs::read_to_string(sandbox.file("log")).unwrap(), steps, "a step after the end");
        if sent != Some(SIGKILL) {
            sandbox.is_free().await;
        }
    }
}

#[tokio::test]
async fn its_own_end_releases_the_key() {
    let sandbox = Sandbox::new("hold_sh_killed").await;
    let mut child = example(&sandbox, "30").spawn().unwrap();
    sandbox.lines("log", 1).await;
    child.kill().await.unwrap();
    // Less than the ttl of 30 s.
    eventually(secs(15), "the key is free", async || sandbox.seal.acquire(KEY).await.is_ok()).await;
}

/// The page shows the program that the other tests run.
#[test]
fn the_page_shows_the_example() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(folder.join("../protocol/pipe.md")).unwrap();
    let program = fs::read_to_string(folder.join("examples/hold.sh")).unwrap();
    assert!(
        page.contains(&format!("\n{program}```\n")),
        "protocol/pipe.md shows another hold.sh: copy it into the page"
    );
}

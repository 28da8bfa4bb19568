//! Processes of another user in the command's group: they outlive the command, or cannot be ended.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use nix::{
    sys::signal::Signal::{SIGKILL, SIGTERM},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use crate::sandbox::{BINARY, KEY, Sandbox, TTL, ended, guard, id, install, is_running, signal};

/// The id of the user `nobody`, who may not signal processes of root.
const NOBODY: u32 = 65534;

/// The binary where everybody may run it.
struct Copied(String);

impl Copied {
    fn new() -> Self {
        let name = format!("mongoseal-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        install(Path::new(BINARY), &path);
        Self(path.to_str().unwrap().to_owned())
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// Runs this script as the user `nobody`, with a process of root in its process group, as with sudo(8).
async fn with_one_of_root(sandbox: &Sandbox, binary: &str, script: &str) -> (Child, Pid, Child) {
    assert_eq!(fs::metadata("/proc/self").unwrap().uid(), 0, "two users are needed for this, so it is for root");
    fs::set_permissions(sandbox.file(""), fs::Permissions::from_mode(0o777)).unwrap();
    let ttl = format!("{}ms", TTL.as_millis());
    let mut run = sandbox.command(binary, &["run", KEY, "--ttl", &ttl, "--", "sh", "-c", script]);
    let run = run.uid(NOBODY).gid(NOBODY).current_dir("/").spawn().unwrap();
    let command = sandbox.processes(1).await[0];
    let mut other = Command::new("sleep");
    let other = other.arg("100").process_group(command.as_raw()).kill_on_drop(true).spawn().unwrap();
    sandbox.touch("go");
    (run, command, other)
}

/// Ends when the file `go` exists.
const BRIEF: &str = r#"echo $$ >"$F/ids"; until [ -e "$F/go" ]; do sleep 0.02; done; exit 3"#;

/// The command ends by itself, or its guard is killed.
#[tokio::test]
async fn a_process_of_another_user_in_the_group_keeps_the_lease_until_it_ends() {
    let binary = Copied::new();
    for (name, is_killed) in [("another_user", false), ("another_unguarded", true)] {
        let sandbox = Sandbox::new(name).await;
        let script = if is_killed { r#"echo $$ >"$F/ids"; exec sleep 100"# } else { BRIEF };
        let (run, command, mut other) = with_one_of_root(&sandbox, &binary.0, script).await;
        if is_killed {
            signal(guard(&run), SIGKILL);
        }
        sandbox.is_refreshed().await;
        assert!(!is_running(command) && is_running(id(&run)), "{name}");
        assert!(sandbox.seal.acquire(KEY).await.is_err(), "{name}: the key is held");
        signal(id(&other), SIGTERM);
        other.wait().await.unwrap();
        let run = ended(run).await;
        if is_killed {
            run.says(137, "the guard of the command was killed");
        } else {
            run.is_quiet(3);
        }
        sandbox.is_free().await;
    }
}

#[tokio::test]
async fn a_lease_that_ends_under_what_could_not_be_ended_is_not_released_and_that_is_said() {
    let (sandbox, binary) = (Sandbox::new("never").await, Copied::new());
    let (run, _, mut other) = with_one_of_root(&sandbox, &binary.0, BRIEF).await;
    sandbox.seal.revoke(KEY).by("test").reason("moved").await.unwrap();
    ended(run).await.says(122, "a process of the command could not be killed");
    assert!(is_running(id(&other)));
    other.kill().await.unwrap();
}

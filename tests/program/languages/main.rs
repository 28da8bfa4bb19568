//! The programs of `cli/examples`, with the interpreters that are installed. If one is missing, its tests are reported
//! as ignored.

#![allow(clippy::disallowed_methods, reason = "a test measures time, and spawns as users do")]

#[path = "../ended.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod ended;
#[allow(dead_code, reason = "the tests of the other commands use the rest")]
#[path = "../commands/sandbox.rs"]
mod sandbox;

use std::{fs, path::Path, process::ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mongoseal_test_support::{eventually, millis, secs};
use nix::{
    sys::signal::Signal::{SIGKILL, SIGTERM},
    unistd::Pid,
};
use sandbox::{BINARY, Ended, KEY, Sandbox, children, done, ended, id, signal};
use tokio::process::{Child, Command};

/// A program of the folder `examples`.
#[derive(Clone, Copy)]
struct Example {
    interpreter: &'static str,
    file: &'static str,
}

const EXAMPLES: [Example; 3] = [
    Example { interpreter: "python3", file: "hold.py" },
    Example { interpreter: "node", file: "hold.mjs" },
    Example { interpreter: "bash", file: "hold.sh" },
];

/// As many steps as take much longer than a test.
const ENDLESS: &str = "1000000";

impl Example {
    fn is_installed(self) -> bool {
        let run = std::process::Command::new(self.interpreter).arg("--version").output();
        run.is_ok_and(|output| output.status.success())
    }

    fn run(self, sandbox: &Sandbox, steps: &str) -> Command {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(self.file);
        let mut command = sandbox.command(self.interpreter, &[file.to_str().unwrap(), KEY, steps]);
        command.stdout(fs::File::create(sandbox.file("log")).unwrap());
        command
    }

    fn name(self) -> String {
        self.file.replace('.', "_")
    }
}

/// One that works, and its process of `mongoseal hold`.
async fn working(example: Example, sandbox: &Sandbox) -> (Child, Pid) {
    let child = example.run(sandbox, ENDLESS).spawn().unwrap();
    sandbox.lines("log", 1).await;
    let is_hold = |process: &Pid| {
        let program = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
        program == Path::new(BINARY)
    };
    let hold = children(id(&child)).into_iter().find(is_hold).expect("it has a child that holds");
    (child, hold)
}

/// That it has ended with this status, and does no step any more.
async fn stopped(sandbox: &Sandbox, child: Child, code: i32) -> Ended {
    let ended = ended(child).await;
    assert_eq!(ended.code, code, "{}", ended.stderr);
    let steps = fs::read_to_string(sandbox.file("log")).unwrap();
    tokio::time::sleep(millis(400)).await;
    assert_eq!(fs::read_to_string(sandbox.file("log")).unwrap(), steps, "a step after the end");
    ended
}

async fn it_works_with_the_token_and_releases(example: Example) {
    let sandbox = Sandbox::new(&format!("{}_works", example.name())).await;
    for _ in 0..2 {
        done(example.run(&sandbox, "3")).await.is_quiet(0);
        let token = sandbox.seal.inspect(KEY).await.unwrap().unwrap().version;
        let steps: Vec<String> = (1..=3).map(|step| format!("step {step} with token {token}")).collect();
        assert_eq!(sandbox.lines("log", 3).await, steps);
        sandbox.is_free().await;
    }
}

async fn it_waits_for_the_key(example: Example) {
    let sandbox = Sandbox::new(&format!("{}_waits", example.name())).await;
    let lease = sandbox.hold().await;
    let child = example.run(&sandbox, "1").spawn().unwrap();
    sandbox.queued(1).await;
    lease.release().await.unwrap();
    ended(child).await.is_quiet(0);
    assert_eq!(sandbox.lines("log", 1).await.len(), 1);
}

async fn it_stops_when_the_lease_is_lost(example: Example) {
    let sandbox = Sandbox::new(&format!("{}_lost", example.name())).await;
    let (child, _) = working(example, &sandbox).await;
    sandbox.seal.revoke(KEY).by("ops").reason("moved").await.unwrap();
    let ended = stopped(&sandbox, child, 122).await;
    assert!(ended.stderr.contains("was lost: it was revoked"), "{}", ended.stderr);
}

async fn it_stops_when_what_holds_is_killed_or_ended(example: Example) {
    let sandbox = Sandbox::new(&format!("{}_unheld", example.name())).await;
    for (sent, is_free) in [(SIGTERM, true), (SIGKILL, false)] {
        let (child, hold) = working(example, &sandbox).await;
        signal(hold, sent);
        let ended = ended(child).await;
        assert_ne!(ended.code, 0, "{}", ended.stderr);
        assert_eq!(ended.code == 137, sent == SIGKILL, "{:?} {}", ended.code, ended.stderr);
        if is_free {
            sandbox.is_free().await;
        }
    }
}

async fn its_own_end_releases_the_key(example: Example) {
    let sandbox = Sandbox::new(&format!("{}_killed", example.name())).await;
    let mut child = example.run(&sandbox, "30").spawn().unwrap();
    sandbox.lines("log", 1).await;
    child.start_kill().unwrap();
    child.wait().await.unwrap();
    // Less than the ttl of 30 s.
    eventually(secs(15), "the key is free", async || sandbox.seal.acquire(KEY).await.is_ok()).await;
}

/// The page shows the programs that the other trials run.
fn the_page_shows_each_example() -> Result<(), Failed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(folder.join("../docs/languages.md"))?;
    for Example { file, .. } in EXAMPLES {
        let program = fs::read_to_string(folder.join("examples").join(file))?;
        if !page.contains(&format!("\n{program}```\n")) {
            return Err(format!("docs/languages.md shows another {file}: copy the program into the page").into());
        }
    }
    Ok(())
}

/// A trial of an example on a runtime of its own.
fn trial<F: Future<Output = ()>>(
    name: &str,
    example: Example,
    test: impl FnOnce(Example) -> F + Send + 'static,
) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", example.name()), move || {
        if !example.is_installed() {
            return Ok(Completion::ignored_with(format!("{} is not installed", example.interpreter)));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.map_err(Failed::from)?.block_on(test(example));
        Ok(Completion::Completed)
    })
}

macro_rules! trials {
    ($example:expr, $($test:ident),* $(,)?) => { vec![$(trial(stringify!($test), $example, $test)),*] };
}

fn main() -> ExitCode {
    let trials = EXAMPLES.into_iter().flat_map(|example| {
        trials!(
            example,
            it_works_with_the_token_and_releases,
            it_waits_for_the_key,
            it_stops_when_the_lease_is_lost,
            it_stops_when_what_holds_is_killed_or_ended,
            its_own_end_releases_the_key,
        )
    });
    let page = Trial::test("the_page_shows_each_example", the_page_shows_each_example);
    libtest_mimic::run(&Arguments::from_args(), trials.chain([page]).collect()).exit_code()
}

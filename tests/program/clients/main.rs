//! The tests of the clients in `clients/`, with the program and a replica set. Python and Node.js, and what their packages
//! need, come from their registries. If an interpreter is missing, its tests are reported as ignored.

#![allow(clippy::disallowed_methods, reason = "a test starts the tools that a developer of a client starts")]

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::LazyLock,
};

use libtest_mimic::{Completion, Trial};
use mongoseal_test_support::{run_trials, shared};

/// The connection string of the set that all tests share.
static URI: LazyLock<String> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { shared(1).await.uri() })
});

/// The folder of a client.
fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients").join(name).canonicalize().expect("the folder is there")
}

/// Runs a command in a folder, with the program on its path. Returns what it printed, if it succeeds.
fn run(folder: &Path, program: impl AsRef<OsStr>, arguments: &[&str]) -> String {
    let mongoseal = Path::new(env!("CARGO_BIN_EXE_mongoseal"));
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(&program)
        .args(arguments)
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", mongoseal.parent().expect("it is in a folder").display()))
        .env("MONGOSEAL_TEST_URI", &*URI)
        .env("MONGOSEAL_PROGRAM", mongoseal)
        .env("MONGOSEAL_TEST_PROGRAM", mongoseal)
        .env_remove("MONGODB_URI")
        .env_remove("MONGOSEAL_URI")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.as_ref().display()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{} {}\n{said}", program.as_ref().display(), arguments.join(" "));
    assert!(output.status.success(), "{}: {said}", output.status);
    said
}

/// Runs `install` if the stamp does not say that it was run for these packages: it asks a registry.
fn installed(stamp: &Path, packages: &str, install: impl FnOnce()) {
    if fs::read_to_string(stamp).is_ok_and(|last| last == packages) {
        return;
    }
    install();
    fs::write(stamp, packages).unwrap();
}

/// A virtual environment with the packages that the tests of the Python client need.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-python");
    let python = folder.join("bin/python");
    fs::create_dir_all(&folder).unwrap();
    let packages = [
        "apscheduler>=3.11,<4",
        "celery[gevent,redis]>=5.7,<6",
        "celery-types>=0.26",
        "mcp>=2.3,<3",
        "mypy>=1.15",
        "pymongo>=4.9",
        "pytest>=8",
    ];
    // In a folder beside version 3, which has the same name.
    let apart = ["--target", "apscheduler4", "apscheduler==4.0.0a6"];
    installed(&folder.join("installed"), &[&packages[..], &apart[..]].concat().join(" "), || {
        run(&folder, "python3", &["-m", "venv", "."]);
        let pip = |packages: &[&str]| run(&folder, &python, &[&["-m", "pip", "install", "--quiet"], packages].concat());
        pip(&packages);
        pip(&[&["--upgrade"], &apart[..]].concat());
    });
    python
});

/// Runs tests of the Python client, and checks the summary, which names tests that were left out before ` in`.
fn pytest(arguments: &[&str], summary: &str) {
    let arguments = [&["-m", "pytest", "-q", "-p", "no:cacheprovider"], arguments].concat();
    let said = run(&client("python"), &*PYTHON, &arguments);
    // Skipped tests would be green.
    let is_whole = said.contains(summary) && !said.contains("skipped");
    assert!(is_whole, "a test was skipped, or has another name now: not {summary:?}");
}

fn the_python_client_keeps_its_promises_without_a_server() {
    let files = ["sync", "aio", "program", "interrupted"].map(|name| format!("tests/test_{name}.py"));
    pytest(&[&["-m", "not night"], &files.each_ref().map(String::as_str)[..]].concat(), " passed, ");
}

fn the_python_client_holds_leases_on_a_server_and_learns_of_a_revocation() {
    let tests = "revocation_is_reported or owner_and_the_options or values_ticks_and_leaders";
    pytest(&["tests/test_server.py", "-k", tests], "3 passed, ");
}

/// The files of tests of adapters, whose tests of the night are a part of their own.
const ADAPTERS: [&str; 2] = ["tests/test_celery.py", "tests/test_apscheduler.py"];

fn jobs_of_celery_and_apscheduler_run_once_for_a_tick_under_a_lease() {
    pytest(&[&["-m", "not night"], &ADAPTERS[..]].concat(), "6 passed, ");
}

fn each_test_of_celery_and_apscheduler_passes() {
    pytest(&ADAPTERS, "29 passed in ");
}

fn late_writes_of_the_agents_in_examples_are_refused() {
    pytest(&["tests/test_agents.py"], "3 passed in ");
}

/// Also the cases of the protocol, for both faces of the client.
fn each_test_of_the_python_client_passes() {
    let others = ADAPTERS.map(|file| format!("--ignore={file}"));
    pytest(&others.each_ref().map(String::as_str), " passed in ");
}

fn the_python_client_is_typed() {
    run(&client("python"), &*PYTHON, &["-m", "mypy", "--strict"]);
}

/// The Node.js client with what its tests need, built. `tsc --strict` is a part of that.
static NODE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = client("node");
    let package = fs::read_to_string(folder.join("package.json")).unwrap();
    installed(&folder.join("node_modules/.installed"), &package, || {
        run(&folder, "npm", &["install", "--no-audit", "--no-fund", "--no-save"]);
    });
    run(&folder, "npm", &["run", "build"]);
    folder
});

/// Runs tests of the Node.js client, and checks the summary.
fn node(arguments: &[&str], summary: &[&str]) {
    let said = run(&NODE, "node", &[&["--test", "--test-concurrency=2"], arguments].concat());
    assert!(summary.iter().all(|part| said.contains(part)), "a test was skipped");
}

/// Each test ran.
const WHOLE: [&str; 3] = ["skipped 0", "cancelled 0", "todo 0"];

fn the_node_client_keeps_its_promises_without_a_server() {
    node(&["dist/test/client.test.js", "dist/test/fake.test.js"], &WHOLE);
}

fn the_node_client_holds_leases_on_a_server_and_learns_of_a_revocation() {
    let tests = ["--test-name-pattern=a lease excludes another", "--test-name-pattern=a revocation ends a lease"];
    node(&[&tests[..], &["dist/test/server.test.js"]].concat(), &["pass 2"]);
}

fn node_cron_runs_each_tick_once_over_several_processes() {
    node(&["dist/test/node_cron.test.js"], &WHOLE);
}

fn each_test_of_the_node_client_passes() {
    let folder = NODE.join("dist/test");
    let is_test = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(".test.js"));
    let files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).filter(is_test).collect();
    node(&files.iter().filter_map(|path| path.to_str()).collect::<Vec<_>>(), &WHOLE);
}

fn trial(name: &str, interpreter: &'static str, test: fn()) -> Trial {
    Trial::ignorable_test(name, move || {
        if Command::new(interpreter).arg("--version").output().is_err() {
            return Ok(Completion::ignored_with(format!("{interpreter} is not installed")));
        }
        test();
        Ok(Completion::Completed)
    })
}

macro_rules! trials {
    ($interpreter:expr => $($test:ident),* $(,)?) => { vec![$(trial(stringify!($test), $interpreter, $test)),*] };
}

fn main() -> ExitCode {
    let mut trials = trials!["npm" =>
        the_node_client_keeps_its_promises_without_a_server,
        the_node_client_holds_leases_on_a_server_and_learns_of_a_revocation,
        node_cron_runs_each_tick_once_over_several_processes,
    ];
    trials.extend(trials!["python3" =>
        the_python_client_is_typed,
        the_python_client_keeps_its_promises_without_a_server,
        the_python_client_holds_leases_on_a_server_and_learns_of_a_revocation,
        jobs_of_celery_and_apscheduler_run_once_for_a_tick_under_a_lease,
        late_writes_of_the_agents_in_examples_are_refused,
    ]);
    // Of the night: they take minutes, and some judge seconds.
    let long = trials!["npm" => each_test_of_the_node_client_passes].into_iter().chain(trials!["python3" =>
        each_test_of_the_python_client_passes,
        each_test_of_celery_and_apscheduler_passes,
    ]);
    trials.extend(long.map(|trial| trial.with_ignored_flag(true)));
    run_trials(trials)
}

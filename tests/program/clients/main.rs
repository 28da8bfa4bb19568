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

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use mongoseal_test_support::shared;

/// The connection string of the set that all tests share.
static URI: LazyLock<String> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { shared(1).await.uri() })
});

/// The folder of a client.
fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients").join(name).canonicalize().expect("the folder is there")
}

/// Runs a command in a folder, with the program on its path. Returns what it printed.
fn run(folder: &Path, program: impl AsRef<OsStr>, arguments: &[&str]) -> Result<String, Failed> {
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
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{} {}\n{said}", program.as_ref().display(), arguments.join(" "));
    if output.status.success() { Ok(said) } else { Err(format!("{}: {said}", output.status).into()) }
}

/// Runs `install` if the stamp does not say that it was run for these packages: it asks a registry.
fn installed(stamp: &Path, packages: &str, install: impl FnOnce() -> Result<(), Failed>) -> Result<(), String> {
    if fs::read_to_string(stamp).is_ok_and(|last| last == packages) {
        return Ok(());
    }
    install().map_err(|failed| failed.message().unwrap_or("it failed").to_owned())?;
    fs::write(stamp, packages).map_err(|error| error.to_string())
}

/// A virtual environment with the packages that the tests of the Python client need.
static PYTHON: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-python");
    let python = folder.join("bin/python");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
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
        run(&folder, "python3", &["-m", "venv", "."])?;
        let pip = |packages: &[&str]| run(&folder, &python, &[&["-m", "pip", "install", "--quiet"], packages].concat());
        pip(&packages)?;
        pip(&[&["--upgrade"], &apart[..]].concat()).map(drop)
    })?;
    Ok(python)
});

/// Runs tests of the Python client, and checks the summary, which names tests that were left out before ` in`.
fn pytest(arguments: &[&str], summary: &str) -> Result<(), Failed> {
    let arguments = [&["-m", "pytest", "-q", "-p", "no:cacheprovider"], arguments].concat();
    let said = run(&client("python"), PYTHON.as_ref()?, &arguments)?;
    // Skipped tests would be green.
    let is_whole = said.contains(summary) && !said.contains("skipped");
    if is_whole { Ok(()) } else { Err(format!("a test was skipped, or has another name now: not {summary:?}").into()) }
}

fn the_python_client_keeps_its_promises_without_a_server() -> Result<(), Failed> {
    let files = ["sync", "aio", "program", "interrupted"].map(|name| format!("tests/test_{name}.py"));
    pytest(&[&["-m", "not night"], &files.each_ref().map(String::as_str)[..]].concat(), " passed, ")
}

fn the_python_client_holds_leases_on_a_server_and_learns_of_a_revocation() -> Result<(), Failed> {
    let tests = "revocation_is_reported or owner_and_the_options or values_ticks_and_leaders";
    pytest(&["tests/test_server.py", "-k", tests], "3 passed, ")
}

/// The files of tests of adapters, whose tests of the night are a part of their own.
const ADAPTERS: [&str; 2] = ["tests/test_celery.py", "tests/test_apscheduler.py"];

fn jobs_of_celery_and_apscheduler_run_once_for_a_tick_under_a_lease() -> Result<(), Failed> {
    pytest(&[&["-m", "not night"], &ADAPTERS[..]].concat(), "6 passed, ")
}

fn each_test_of_celery_and_apscheduler_passes() -> Result<(), Failed> {
    pytest(&ADAPTERS, "29 passed in ")
}

fn late_writes_of_the_agents_in_examples_are_refused() -> Result<(), Failed> {
    pytest(&["tests/test_agents.py"], "3 passed in ")
}

/// Also the cases of the protocol, for both faces of the client.
fn each_test_of_the_python_client_passes() -> Result<(), Failed> {
    let others = ADAPTERS.map(|file| format!("--ignore={file}"));
    pytest(&others.each_ref().map(String::as_str), " passed in ")
}

fn the_python_client_is_typed() -> Result<(), Failed> {
    run(&client("python"), PYTHON.as_ref()?, &["-m", "mypy", "--strict"]).map(drop)
}

/// The Node.js client with what its tests need, built. `tsc --strict` is a part of that.
static NODE: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let folder = client("node");
    let package = fs::read_to_string(folder.join("package.json")).map_err(|error| error.to_string())?;
    installed(&folder.join("node_modules/.installed"), &package, || {
        run(&folder, "npm", &["install", "--no-audit", "--no-fund", "--no-save"]).map(drop)
    })?;
    run(&folder, "npm", &["run", "build"]).map_err(|failed| failed.message().unwrap_or("it failed").to_owned())?;
    Ok(folder)
});

/// Runs tests of the Node.js client, and checks the summary.
fn node(arguments: &[&str], summary: &[&str]) -> Result<(), Failed> {
    let said = run(NODE.as_ref()?, "node", &[&["--test", "--test-concurrency=2"], arguments].concat())?;
    let is_whole = summary.iter().all(|part| said.contains(part));
    if is_whole { Ok(()) } else { Err("a test was skipped".into()) }
}

/// Each test ran.
const WHOLE: [&str; 3] = ["skipped 0", "cancelled 0", "todo 0"];

fn the_node_client_keeps_its_promises_without_a_server() -> Result<(), Failed> {
    node(&["dist/test/client.test.js", "dist/test/fake.test.js"], &WHOLE)
}

fn the_node_client_holds_leases_on_a_server_and_learns_of_a_revocation() -> Result<(), Failed> {
    let tests = ["--test-name-pattern=a lease excludes another", "--test-name-pattern=a revocation ends a lease"];
    node(&[&tests[..], &["dist/test/server.test.js"]].concat(), &["pass 2"])
}

fn node_cron_runs_each_tick_once_over_several_processes() -> Result<(), Failed> {
    node(&["dist/test/node_cron.test.js"], &WHOLE)
}

fn each_test_of_the_node_client_passes() -> Result<(), Failed> {
    let folder = NODE.as_ref()?.join("dist/test");
    let is_test = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(".test.js"));
    let files: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(is_test).collect();
    node(&files.iter().filter_map(|path| path.to_str()).collect::<Vec<_>>(), &WHOLE)
}

fn trial(name: &str, interpreter: &'static str, test: fn() -> Result<(), Failed>) -> Trial {
    Trial::ignorable_test(name, move || {
        if Command::new(interpreter).arg("--version").output().is_err() {
            return Ok(Completion::ignored_with(format!("{interpreter} is not installed")));
        }
        test().map(|()| Completion::Completed)
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
    let mut arguments = Arguments::from_args();
    // They wait for most of their time.
    arguments.test_threads.get_or_insert(trials.len());
    libtest_mimic::run(&arguments, trials).exit_code()
}

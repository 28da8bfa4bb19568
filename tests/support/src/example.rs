//! Building an example as a reader would.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The program of an example of the library, built now.
///
/// May take as long as building the library: not for the thread of a runtime.
pub fn built(name: &str) -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--example", name]);
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    // What cargo tells a test about its package would have build scripts of dependencies run again, and most of
    // the dependencies built anew: here, and by the next build outside of a test.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    let status = cargo.status().expect("cargo starts");
    assert!(status.success(), "the example {name} is not built: {status}");
    let test = env::current_exe().expect("a test knows its program");
    let target = test.parent().and_then(Path::parent).expect("a test is in deps of the directory of its profile");
    target.join("examples").join(name)
}

//! Running an example as a reader would.

use std::{env, path::Path, process::Command};

/// The command that builds and runs an example of the library, as README says.
pub fn example(name: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--quiet", "--example", name]);
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    // What cargo tells a test about its package would have build scripts of dependencies run again, and most of
    // the dependencies built anew: here, and by the next build outside of a test.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    cargo
}

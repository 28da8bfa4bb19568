//! Finding the examples, which `cargo test --workspace` builds.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The program of an example of the workspace.
///
/// # Panics
///
/// With the command that builds it, if it is not there or older than a source it was built from. It is not built
/// here: that would take the lock and the profile of the build that the test itself is of.
pub fn built(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test knows its program");
    let target = test.parent().and_then(Path::parent).expect("a test is in deps of the directory of its profile");
    let example = target.join("examples").join(name);
    if let Some(reason) = why_not(&example) {
        let heavy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes");
        let is_heavy = heavy.join(name).is_dir() || heavy.join(name).with_extension("rs").is_file();
        let package = if is_heavy { "mongoseal-tests" } else { "mongoseal" };
        let profile = if target.ends_with("release") { " --release" } else { "" };
        panic!("the example {name} {reason}: run `cargo build{profile} -p {package} --example {name}`");
    }
    example
}

/// Why an example cannot be run as it is: `None` if it can.
fn why_not(example: &Path) -> Option<String> {
    let Some(built) = changed(example) else { return Some("is not built".into()) };
    // A line of a makefile: what is made, a colon, and the sources, whose spaces are escaped.
    let rule = fs::read_to_string(example.with_extension("d")).unwrap_or_default();
    let sources = rule.split_once(": ").map_or("", |(_, sources)| sources).replace("\\ ", "\0");
    let newer = sources.split_whitespace().map(|source| source.replace('\0', " ")).find(|source| {
        // One that is gone was needed when it was built.
        changed(Path::new(source)).is_none_or(|changed| changed > built)
    });
    newer.map(|source| format!("is older than {source}"))
}

fn changed(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|data| data.modified()).ok()
}

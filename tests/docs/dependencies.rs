//! The packages that a program of a user compiles. Cargo lists them without a network, because those of each feature here
//! are dependencies of these tests.

use std::{collections::BTreeSet, process::Command};

/// What Cargo prints.
fn cargo(arguments: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(arguments).arg("--offline").current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_program_compiles_the_driver_of_a_store_only_if_it_uses_that_store() {
    for (package, features, mongodb, redis) in [
        ("mongoseal", &[][..], true, false),
        ("mongoseal", &["--features", "blocking,compare-and-swap,metrics,test-util"], true, false),
        ("mongoseal", &["--no-default-features"], false, false),
        ("mongoseal-conformance", &[], false, false),
        ("mongoseal-redis", &[], false, true),
        ("mongoseal-redis", &["--features", "rustls"], false, true),
    ] {
        let tree = ["tree", "--edges", "normal", "--prefix", "none", "--package", package];
        let listed = cargo(&[&tree, features].concat());
        let packages: BTreeSet<_> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(packages.contains("tokio"), "{package} {features:?}: {packages:?}");
        for (driver, is_needed) in [("mongodb", mongodb), ("redis", redis)] {
            assert_eq!(packages.contains(driver), is_needed, "{driver} in {package} {features:?}: {packages:?}");
        }
    }
}

/// Some features need packages that only a network has.
#[test]
fn no_feature_of_the_library_needs_redis() {
    let workspace: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])).unwrap();
    let library =
        workspace["packages"].as_array().unwrap().iter().find(|package| package["name"] == "mongoseal").unwrap();
    let dependencies =
        library["dependencies"].as_array().unwrap().iter().filter(|dependency| dependency["kind"] != "dev");
    let names: BTreeSet<&str> = dependencies.map(|dependency| dependency["name"].as_str().unwrap()).collect();
    assert!(names.contains("mongodb") && !names.iter().any(|name| name.contains("redis")), "{names:?}");
}

/// So `cargo test` and `cargo test --workspace` compile the driver once. `tests/support/basics/Cargo.toml` names what is missing.
#[test]
fn the_tests_of_the_library_need_no_dependency_with_other_features_than_those_of_the_workspace() {
    let listed = |of: &[&str]| -> BTreeSet<String> {
        let listed = cargo(&[&["tree", "--prefix", "none", "--format", "{p} [{f}]"], of].concat());
        listed.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let (library, workspace) = (listed(&["--package", "mongoseal"]), listed(&["--workspace"]));
    let other: Vec<_> = library.difference(&workspace).collect();
    assert!(library.len() > 100 && other.is_empty(), "{other:#?}");
}

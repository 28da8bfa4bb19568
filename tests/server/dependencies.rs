//! The packages that a program of a user compiles. Cargo lists them without a network, because those of each feature here
//! are dependencies of these tests.

use std::{collections::BTreeSet, process::Command};

/// The names and versions of the packages that the library needs with these features.
fn packages(features: &[&str]) -> BTreeSet<(String, String)> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--offline", "--package", "mongoseal", "--edges", "normal", "--prefix", "none"]);
    let output = tree.args(features).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let named = |line: &str| line.split_once(" v").map(|(name, version)| (name.to_owned(), version.to_owned()));
    listed.lines().filter_map(named).collect()
}

#[test]
fn a_program_compiles_the_driver_of_a_store_only_if_it_has_the_feature_of_that_store() {
    for (features, mongodb, redis) in [
        (&[][..], true, false),
        (&["--features", "redis"], true, true),
        (&["--no-default-features"], false, false),
        (&["--no-default-features", "--features", "redis"], false, true),
    ] {
        let packages = packages(features);
        let has = |wanted: &str| packages.iter().any(|(name, _)| name == wanted);
        assert!(has("tokio"), "{features:?}: {packages:?}");
        for (driver, is_needed) in [("mongodb", mongodb), ("redis", redis)] {
            assert_eq!(has(driver), is_needed, "{driver} with {features:?}: {packages:?}");
        }
    }
}

#[test]
fn a_program_compiles_one_version_of_bson_the_one_that_it_names() {
    for (features, version) in [(&[][..], "2."), (&["--no-default-features", "--features", "rustls,bson-3"], "3.")] {
        let packages = packages(features);
        let versions: Vec<_> = packages.iter().filter(|(name, _)| name == "bson").map(|(_, version)| version).collect();
        assert!(matches!(versions[..], [only] if only.starts_with(version)), "{features:?}: {versions:?}");
    }
}

//! The packages that a program of a user compiles. Cargo lists them without a network, because those of each feature here
//! are dependencies of these tests.

use std::{collections::BTreeSet, process::Command};

/// The names of the packages that the library needs with these features.
fn packages(features: &[&str]) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--offline", "--package", "mongoseal", "--edges", "normal", "--prefix", "none"]);
    let output = tree.args(features).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    listed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
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
        assert!(packages.contains("tokio"), "{features:?}: {packages:?}");
        for (driver, is_needed) in [("mongodb", mongodb), ("redis", redis)] {
            assert_eq!(packages.contains(driver), is_needed, "{driver} with {features:?}: {packages:?}");
        }
    }
}

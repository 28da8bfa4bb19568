//! Who may know whom: the rules of the house that a compiler does not hold.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The source files below `folder`, by their path from there.
fn files(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut found, mut todo) = (Vec::new(), vec![root.clone()]);
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name: PathBuf = path.strip_prefix(&root).unwrap().into();
            found.push((name.to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(!found.is_empty());
    found
}

/// The lines of code, without comments and documentation.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

/// Whether a line names something, and not only something whose name ends alike.
fn is_named(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric()))
}

fn name_none(names: &[String], forbidden: &[&str]) {
    for (name, text) in files("src").iter().filter(|(name, _)| names.contains(name)) {
        for word in forbidden {
            let line = code(text).find(|line| is_named(line, word));
            assert_eq!(line, None, "src/{name} knows {word}");
        }
    }
}

fn chosen(which: impl Fn(&str) -> bool) -> Vec<String> {
    let names: Vec<String> = files("src").into_iter().map(|(name, _)| name).filter(|name| which(name)).collect();
    assert!(!names.is_empty());
    names
}

#[test]
fn the_tests_that_documents_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for document in [
        "docs/guarantees.md",
        "docs/protocol.md",
        "docs/comparison.md",
        "docs/fencing.md",
        "docs/jobs.md",
        "docs/failure-modes.md",
        "docs/chaos.md",
        "docs/privileges.md",
        "docs/performance.md",
        "docs/cli.md",
        "README.md",
    ] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let parts: Vec<&str> = text.split('`').collect();
        // Other projects have sources, too.
        let ours = !document.ends_with("comparison.md");
        let folders: &[_] = if ours { &["tests/", "cli/", "src/"] } else { &["tests/", "cli/"] };
        let is_file = |part: &str| folders.iter().any(|folder| part.starts_with(folder)) && !part.ends_with('/');
        for (at, path) in parts.iter().enumerate().filter(|(_, part)| is_file(part)) {
            assert!(root.join(path).is_file(), "{document} names {path}");
            named += 1;
            // The file may be followed by the sentence of one test in it.
            if let [" ", test, ..] = &parts[at + 1..]
                && test.matches('_').count() > 2
            {
                assert!(
                    fs::read_to_string(root.join(path)).unwrap().contains(test),
                    "{document} names {test} in {path}"
                );
            }
        }
    }
    assert!(named > 10);
}

const ENGINE: [&str; 34] = [
    "contention.rs",
    "hold.rs",
    "wait.rs",
    "seal.rs",
    "seal/settings.rs",
    "acquire.rs",
    "ask.rs",
    "lease.rs",
    "lease/transfer.rs",
    "refresh.rs",
    "lease_task.rs",
    "lease_task/round.rs",
    "in_flight.rs",
    "schedule.rs",
    "schedule/batch.rs",
    "schedule/leases.rs",
    "schedule/round.rs",
    "schedule/slot.rs",
    "retry.rs",
    "releases.rs",
    "in_use.rs",
    "shared.rs",
    "shutdown_releases.rs",
    "dedicated.rs",
    "state_stream.rs",
    "clock.rs",
    "inspect.rs",
    "leases.rs",
    "purge.rs",
    "raise.rs",
    "groups.rs",
    "together.rs",
    "watch.rs",
    "watch/watcher.rs",
];

#[test]
fn the_engine_names_no_store() {
    assert_eq!(chosen(|name| ENGINE.contains(&name)).len(), ENGINE.len(), "each of them is there");
    name_none(&chosen(|name| ENGINE.contains(&name)), &["MemoryStore", "MongoStore", "mongodb::", "bson"]);
}

#[test]
fn a_store_knows_words_machine_and_contract_and_not_the_engine() {
    let stores = chosen(|name| name.starts_with("store"));
    name_none(
        &stores,
        &["seal::", "acquire::", "lease::", "refresh::", "retry::", "Mongoseal", "Lease,", "Lease;", "Builder"],
    );
}

#[test]
fn words_and_machine_know_neither_engine_nor_store_nor_runtime() {
    let words =
        ["key.rs", "owner.rs", "group.rs", "text.rs", "token.rs", "ttl.rs", "lease_id.rs", "metadata.rs", "error.rs"];
    let pure = chosen(|name| words.contains(&name) || name.starts_with("record"));
    name_none(&pure, &["store::", "tokio", "mongodb", "Mongoseal", "Clock", "tracing"]);
}

#[test]
fn a_fence_knows_words_and_only_that_of_mongodb_its_store() {
    let engine = ["seal::", "acquire::", "lease::", "refresh::", "retry::", "Mongoseal", "Lease,", "Lease;", "Builder"];
    name_none(&chosen(|name| name.starts_with("fence")), &engine);
    name_none(&chosen(|name| name == "fence.rs"), &["store::", "record::", "tokio", "mongodb::", "Clock"]);
    // Of a lease and a record it knows that they are there, not what is in them.
    name_none(&chosen(|name| name.starts_with("fence/")), &["record::", "holders", "MemoryStore", "dyn Store"]);
}

#[test]
fn recipes_do_not_know_each_other() {
    let recipes = ["inspect", "leases", "purge", "raise", "groups", "watch", "several", "revoke", "scope", "watchdog"];
    for recipe in recipes {
        let others: Vec<_> =
            recipes.iter().filter(|other| **other != recipe).map(|other| format!("{other}::")).collect();
        let others: Vec<_> = others.iter().map(String::as_str).collect();
        name_none(&chosen(|name| name == format!("{recipe}.rs")), &others);
    }
}

#[test]
fn only_the_mongodb_store_and_fence_name_their_driver() {
    let rooms = ["store/mongo", "fence/mongo", "open"];
    let others = chosen(|name| !rooms.iter().any(|room| name.starts_with(room)) && name != "lib.rs");
    name_none(&others, &["mongodb::"]);
    for (name, text) in files("cli/src").iter().filter(|(name, _)| name != "command/driver.rs") {
        assert!(code(text).all(|line| !is_named(line, "mongodb::")), "cli/src/{name} knows the driver");
    }
}

#[test]
fn no_wall_clock_and_no_driver_task_outside_of_its_room() {
    for folder in ["src", "cli/src"] {
        for (name, text) in files(folder) {
            for word in ["SystemTime", "DateTime::now"] {
                assert!(code(&text).all(|line| !line.contains(word)), "{folder}/{name}: {word}");
            }
            let spawns = code(&text).any(|line| line.contains("tokio::spawn"));
            let may = folder == "src" && (name == "store/mongo/task.rs" || name.starts_with("conformance/"));
            assert!(!spawns || may, "{folder}/{name} spawns a task without an owner");
        }
    }
}

#[test]
fn a_file_reads_in_one_sitting() {
    for folder in ["src", "cli", "tests", "examples"] {
        for (name, text) in files(folder) {
            let lines = text.lines().count();
            assert!(lines <= 400, "{folder}/{name} has {lines} lines: split it");
        }
    }
}

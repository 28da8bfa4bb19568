//! Who may know whom: the rules of the house that a compiler does not hold.

use std::{collections::BTreeSet, fs};

use crate::{links::pages, read, root};

/// The source files below `folder`, by their path from there.
fn files(folder: &str) -> Vec<(String, String)> {
    let root = root().join(folder);
    let (mut found, mut todo) = (Vec::new(), vec![root.clone()]);
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(), read(&path)));
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

/// The code of these files names none of these.
fn name_none(folder: &str, which: impl Fn(&str) -> bool, forbidden: &[&str]) {
    let chosen: Vec<_> = files(folder).into_iter().filter(|(name, _)| which(name)).collect();
    assert!(!chosen.is_empty());
    for (name, text) in chosen {
        for word in forbidden {
            let line = code(&text).find(|line| is_named(line, word));
            assert_eq!(line, None, "{folder}/{name} knows {word}");
        }
    }
}

#[test]
fn the_tests_that_documents_name_are_there() {
    let mut named = 0;
    for page in pages() {
        let document = page.path.display().to_string();
        let parts: Vec<&str> = page.prose.split('`').collect();
        // The reader of the tutorial has sources, too.
        let ours = !document.ends_with("tutorial.md");
        let folders: &[_] = if ours { &["tests/", "cli/", "stores/", "src/"] } else { &["tests/", "cli/", "stores/"] };
        let is_file = |part: &str| folders.iter().any(|folder| part.starts_with(folder)) && !part.ends_with('/');
        for (at, path) in parts.iter().enumerate().filter(|(_, part)| is_file(part)) {
            assert!(root().join(path).is_file(), "{document} names {path}");
            named += 1;
            // The file may be followed by the sentence of one test in it.
            if let [" ", test, ..] = &parts[at + 1..]
                && test.matches('_').count() > 2
            {
                assert!(read(path).contains(test), "{document} names {test} in {path}");
            }
        }
    }
    assert!(named > 10);
}

/// The messages of a macro that logs, as in the source: its first text.
fn messages(text: &str) -> Vec<String> {
    let code = code(text).collect::<Vec<_>>().join("\n");
    let logged = ["warn!(", "info!("].into_iter().flat_map(|name| code.split(name).skip(1));
    logged.filter_map(|rest| rest.split('"').nth(1)).map(str::to_owned).collect()
}

/// What has happened, by a message that may go on with what follows from it and what to do.
fn what_happened(message: &str) -> &str {
    message.split([':', ',', '{']).next().unwrap_or_default()
}

#[test]
fn the_runbook_has_each_message_that_is_logged_and_no_other() {
    let sources = files("src").into_iter().chain(files("stores"));
    let messages: Vec<String> = sources.flat_map(|(_, text)| messages(&text)).collect();
    let mut logged: Vec<&str> = messages.iter().map(|message| what_happened(message)).collect();
    let runbook = read("docs/runbook.md");
    let section = runbook.split("\n## Log messages\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "));
    let mut described = Vec::new();
    for (message, more) in rows {
        described.push(message);
        // Without advice on the page the message itself has it.
        let is_enough = messages.iter().any(|logged| what_happened(logged) == message && logged.contains(": "));
        assert!(more != "–" || is_enough, "docs/runbook.md does not say what to do about {message:?}");
    }
    logged.sort_unstable();
    described.sort_unstable();
    assert!(logged.len() > 10, "{logged:?}");
    assert_eq!(described, logged);
}

/// The source of a package.
struct House {
    folder: &'static str,
    root: &'static str,
    /// The folders, and the files beside them, from the lowest layer to the highest. A folder may depend on those of lower
    /// layers only, so also on no other folder of its own layer.
    layers: &'static [&'static [&'static str]],
}

const HOUSES: [House; 2] = [
    House { folder: "src", root: "lib.rs", layers: &LIBRARY },
    House { folder: "cli/src", root: "main.rs", layers: &PROGRAM },
];

const PROGRAM: [&[&str]; 9] = [
    &["time", "process", "leases", "examples"],
    &["tick", "ui"],
    &["exit_status"],
    &["connection"],
    &["arguments"],
    &["job"],
    &["acquire"],
    &["command"],
    &["main"],
];

const LIBRARY: [&[&str]; 12] = [
    &["types"],
    &["spans"],
    &["record"],
    &["store"],
    &["engine", "fence"],
    &["lease", "handle", "metrics"],
    &["action"],
    &["builder", "election"],
    &["connect"],
    &["guide", "testing"],
    &["blocking"],
    &["lib"],
];

/// A file, and the paths of its crate that its code names.
struct Module {
    file: String,
    /// Where it is in the tree of modules: `engine`, `schedule`, `kept`.
    path: Vec<String>,
    names: Vec<Vec<String>>,
}

/// All files of a house.
fn modules(house: &House) -> Vec<Module> {
    let sources = files(house.folder);
    let reexports = reexports(&sources.iter().find(|(name, _)| name == house.root).expect("there is a root").1);
    let read = |(file, text): &(String, String)| {
        let path: Vec<_> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        let mut names = Vec::new();
        // How deep in modules that have no file of their own.
        let mut inline = 0;
        for part in code(text).collect::<Vec<_>>().join("\n").split_inclusive("mod ") {
            for name in paths(part, "crate::") {
                // What the root gives on is of the layer from which it comes.
                let from = name.first().and_then(|first| reexports.iter().find(|path| path.last() == Some(first)));
                names.push(from.cloned().unwrap_or(name));
            }
            for name in paths(part, "super::") {
                let up = 1 + name.iter().take_while(|step| *step == "super").count();
                let base = path.len().saturating_sub(up.saturating_sub(inline));
                if inline < up && base > 0 {
                    names.push([&path[..base], &name[up - 1..]].concat());
                }
            }
            // The tests at the end of a file are its only module of that kind.
            inline = usize::from(inline > 0 || part.ends_with("#[cfg(test)]\nmod ") && text.contains("mod tests {"));
        }
        Module { file: file.clone(), path, names }
    };
    sources.iter().map(read).collect()
}

/// The paths that the root gives on under their last names.
fn reexports(root: &str) -> Vec<Vec<String>> {
    let uses = root.split("pub use ").skip(1);
    uses.flat_map(|text| paths(&format!("crate::{{{}}}", text.split(';').next().unwrap_or_default()), "crate::"))
        .collect()
}

/// The paths that follow `root` in a text: each branch of a group is one.
fn paths(text: &str, root: &str) -> Vec<Vec<String>> {
    text.match_indices(root)
        .filter(|(at, _)| {
            !text[..*at].ends_with(|before: char| before.is_alphanumeric() || before == ':' || before == '$')
        })
        .flat_map(|(at, _)| branches(&text[at + root.len()..]))
        .collect()
}

fn branches(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut from, mut all) = (1, 0, Vec::new());
        for (at, letter) in group.char_indices() {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            if depth == 0 || (depth == 1 && letter == ',') {
                all.extend(branches(&group[from..at]));
                from = at + 1;
            }
            if depth == 0 {
                break;
            }
        }
        return all;
    }
    let name: String = text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    if name.is_empty() {
        return Vec::new();
    }
    match text[name.len()..].strip_prefix("::") {
        Some(rest) => {
            let rest = branches(rest);
            let with = |mut tail: Vec<String>| {
                tail.insert(0, name.clone());
                tail
            };
            if rest.is_empty() { vec![vec![name]] } else { rest.into_iter().map(with).collect() }
        }
        None => vec![vec![name]],
    }
}

fn layer(house: &House, folder: &str) -> usize {
    let found = house.layers.iter().position(|folders| folders.contains(&folder));
    found.unwrap_or_else(|| panic!("{}/{folder} has no layer: give it one in LIBRARY or PROGRAM", house.folder))
}

#[test]
fn a_folder_depends_on_lower_layers_only() {
    for house in HOUSES {
        let (mut dependencies, mut upward) = (0, Vec::new());
        for Module { file, path, names } in modules(&house) {
            for name in &names {
                let (from, to) = (&path[0], &name[0]);
                if from == to {
                    continue;
                }
                dependencies += 1;
                if layer(&house, to) >= layer(&house, from) {
                    upward.push(format!("{}/{file} names {}", house.folder, name.join("::")));
                }
            }
        }
        assert!(dependencies > 150, "{dependencies}: they are not read");
        assert!(
            upward.is_empty(),
            "these dependencies go up, or to a folder of the same layer:\n{}",
            upward.join("\n")
        );
    }
}

/// A module may name what is within it, and that may name it back. The values of `types` and their error name each other.
/// Those are not counted.
#[test]
fn no_files_depend_on_each_other_in_a_circle() {
    HOUSES.iter().for_each(has_no_circle);
}

fn has_no_circle(house: &House) {
    let modules = modules(house);
    let file_of = |name: &[String]| {
        let within = |module: &&Module| name.starts_with(&module.path);
        modules.iter().filter(within).max_by_key(|module| module.path.len()).map(|module| &module.path)
    };
    let mut edges: Vec<(&Vec<String>, &Vec<String>)> = Vec::new();
    for Module { path, names, .. } in modules.iter().filter(|module| module.path[0] != "types") {
        let others = names.iter().filter_map(|name| file_of(name));
        edges.extend(
            others.filter(|other| !other.starts_with(path) && !path.starts_with(other)).map(|other| (path, other)),
        );
    }
    // What nothing depends on is in no circle; nor is what depends on nothing.
    loop {
        let before = edges.len();
        let all = edges.clone();
        edges.retain(|(from, to)| {
            all.iter().any(|(_, other)| other == from) && all.iter().any(|(other, _)| other == to)
        });
        if edges.len() == before {
            break;
        }
    }
    edges.sort();
    edges.dedup();
    let left: Vec<_> = edges.iter().map(|(from, to)| format!("{} -> {}", from.join("::"), to.join("::"))).collect();
    assert!(left.is_empty(), "there is a circle among these dependencies of {}:\n{}", house.folder, left.join("\n"));
}

#[test]
fn the_engine_names_no_store_and_the_lowest_layers_no_runtime() {
    let is_engine = |name: &str| name.starts_with("engine");
    name_none("src", is_engine, &["MemoryStore", "MongoStore", "mongodb::", "bson"]);
    let clocks = ["types/clock.rs", "types/deadline.rs"];
    let is_pure = |name: &str| name.starts_with("record") || name.starts_with("types") && !clocks.contains(&name);
    name_none("src", is_pure, &["tokio", "mongodb::", "Clock::", "tracing"]);
}

#[test]
fn a_fence_knows_no_record_and_only_that_of_mongodb_its_store() {
    name_none("src", |name| name == "fence.rs", &["store::", "record::", "tokio", "mongodb::", "Clock"]);
    // Of a lease and a record it knows that they are there, not what is in them.
    name_none("src", |name| name.starts_with("fence/"), &["record::", "holders", "MemoryStore", "dyn Store"]);
}

/// What several of them need is in the engine.
#[test]
fn only_compound_actions_know_another_action() {
    for Module { file, path, names } in modules(&HOUSES[0]).iter().filter(|module| module.path[0] == "action") {
        let [_, own, ..] = path.as_slice() else { continue };
        let others: Vec<_> = names
            .iter()
            .filter(|name| name[0] == "action" && name[1] != *own && name[1] != "acquire_options")
            .collect();
        let is_compound = ["acquire_all", "acquire_any", "with"].contains(&own.as_str());
        assert!(others.is_empty() || is_compound, "src/{file} names {others:?}");
    }
}

/// The names of the public methods of a `Mongoseal` in these files that take it by reference.
fn methods_of_a_handle(which: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, text) in files("src").iter().filter(|(name, _)| which(name)) {
        for part in text.split("\n}\n").filter_map(|item| item.split_once("impl Mongoseal {")) {
            let signatures = part.1.split("pub ").skip(1).filter_map(|rest| rest.split(['{', ';']).next());
            let methods = signatures.filter(|signature| signature.contains("&self")).filter_map(|signature| {
                let name = signature.trim_start_matches("async ").strip_prefix("fn ")?;
                name.split(['(', '<']).next().map(str::to_owned)
            });
            names.extend(methods);
        }
    }
    names
}

#[test]
fn each_verb_has_a_blocking_form() {
    let verbs =
        methods_of_a_handle(|name| name.starts_with("action") || name.starts_with("election") || name == "handle.rs");
    let blocking = methods_of_a_handle(|name| name.starts_with("blocking/"));
    assert!(verbs.len() > 15 && verbs.is_subset(&blocking), "{:?}", verbs.difference(&blocking));
}

#[test]
fn only_the_mongodb_store_and_fence_name_their_driver() {
    let rooms =
        ["store/mongo", "fence/mongo", "lease/transaction.rs", "action/acquire_all/transaction.rs", "connect/mongo.rs"];
    name_none("src", |name| !rooms.iter().any(|room| name.starts_with(room)) && name != "lib.rs", &["mongodb::"]);
    // `reach.rs` reads the addresses of a connection string.
    let is_room = |name: &str| name.starts_with("command/driver") || name == "connection/reach.rs";
    name_none("cli/src", |name| !is_room(name), &["mongodb::"]);
}

/// The form of `Debug` of a driver's value can have what is secret, such as the password of a connection string.
#[test]
fn no_event_and_no_message_prints_an_error_or_a_reply_with_debug() {
    let names = ["error", "end", "failed", "failure", "options", "client", "credential", "command", "reply"];
    for folder in ["src", "stores", "cli/src"] {
        for (name, text) in files(folder).iter().filter(|(name, _)| !name.ends_with("tests.rs")) {
            let without_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in code(without_tests) {
                let prints = |name: &&&str| {
                    let fields =
                        [format!("?{name},"), format!("= ?{name}"), format!("{{{name}:?}}"), format!("{{{name}:#?}}")];
                    fields.iter().any(|field| line.contains(field.as_str()))
                };
                assert_eq!(names.iter().find(prints), None, "{folder}/{name}: {line}");
            }
        }
    }
}

/// The package `mongoseal-redis` is a store as any other author writes it.
#[test]
fn the_library_knows_no_redis_but_in_the_error_of_a_connection_string_and_the_name_of_a_page() {
    let knowing = |folder: &str, word: &str| {
        let knows = |(_, text): &(String, String)| code(text).any(|line| line.to_lowercase().contains(word));
        files(folder).into_iter().filter(knows).map(|(name, _)| name).collect::<BTreeSet<_>>()
    };
    let these = |names: &str| names.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(knowing("src", "redis"), these("connect/mongo.rs guide.rs"));
    assert_eq!(knowing("cli/src", "use redis::"), these("command/redis.rs"));
    assert_eq!(knowing("tests/verbs", "redis"), these("on_servers.rs"));
    assert_eq!(knowing("examples", "redis"), these("recipes/fence_redis.rs"));
}

#[test]
fn nothing_reads_a_wall_clock() {
    for folder in ["src", "stores", "cli/src"] {
        name_none(folder, |_| true, &["SystemTime", "DateTime::now"]);
    }
}

#[test]
fn a_file_reads_in_one_sitting() {
    for folder in ["src", "stores", "cli", "tests", "examples"] {
        for (name, text) in files(folder) {
            let lines = text.lines().count();
            assert!(lines <= 700, "{folder}/{name} has {lines} lines: split it");
        }
    }
}

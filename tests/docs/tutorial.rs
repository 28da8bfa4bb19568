//! The tutorial can be typed in: each program of the page compiles, without a warning, and prints what the page shows.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use mongoseal_test_support::TestDatabase;

/// The line of the page's manifest that a reader without a copy of this repository has.
const PUBLISHED: &str = "mongoseal = \"0.1\"";
/// The program that the page makes.
const NAME: &str = "nightly";

/// The code blocks of a page, each with its language.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let mut block = String::new();
            for line in lines.by_ref().take_while(|line| *line != "```") {
                block.push_str(line);
                block.push('\n');
            }
            blocks.push((language.to_owned(), block));
        }
    }
    blocks
}

/// An empty package below the target directory, which the programs of the page are written to one after the other.
struct Package {
    folder: PathBuf,
    target: PathBuf,
}

impl Package {
    fn new(manifest: &str) -> Self {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
        let workspace = fs::read_to_string(repository.join("Cargo.toml")).unwrap();
        assert!(workspace.contains("\nversion = \"0.1."), "the page names the version of this repository");
        let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let (folder, target) = (scratch.join("tutorial"), scratch.parent().unwrap().to_owned());
        fs::create_dir_all(folder.join("src")).unwrap();
        assert_eq!(manifest.matches(PUBLISHED).count(), 1, "{manifest}");
        let here = format!("mongoseal = {{ path = \"{}\" }}", repository.display());
        // It is below the repository, and not of its workspace.
        let manifest = format!("{}\n[workspace]\n", manifest.replace(PUBLISHED, &here));
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        // The versions that are compiled and downloaded already.
        fs::copy(repository.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
        Self { folder, target }
    }

    /// Compiles a program and runs it. Returns what it printed.
    fn run(&self, program: &str) -> String {
        fs::write(self.folder.join("src/main.rs"), program).unwrap();
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--offline", "--color=never", "--target-dir"]).arg(&self.target).current_dir(&self.folder);
        // Those that describe this test, and that build scripts of dependencies look at.
        for (name, _) in env::vars_os().filter(|(name, _)| describes_a_package(&name.to_string_lossy())) {
            cargo.env_remove(name);
        }
        let built = cargo.output().unwrap();
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success() && !said.contains("warning"), "{program}\n{said}");
        let Output { status, stdout, stderr } =
            Command::new(self.target.join("debug").join(NAME)).current_dir(&self.folder).output().unwrap();
        let printed = String::from_utf8(stdout).unwrap();
        assert!(status.success(), "{program}\n{printed}\n{}", String::from_utf8_lossy(&stderr));
        printed
    }
}

fn describes_a_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "CARGO_TARGET_TMPDIR"]
        .iter()
        .any(|beginning| variable.starts_with(beginning))
}

/// The text of an output with the rank of each token in its place, and the tokens.
fn ranked(output: &str) -> (String, BTreeSet<u64>) {
    let mut parts = output.split("token ");
    let before = parts.next().unwrap_or_default();
    let behind: Vec<(u64, &str)> = parts
        .map(|part| {
            let rest = part.trim_start_matches(|letter: char| letter.is_ascii_digit());
            (part[..part.len() - rest.len()].parse().expect("the number of a token"), rest)
        })
        .collect();
    let tokens: BTreeSet<u64> = behind.iter().map(|(token, _)| *token).collect();
    let ranks = behind.iter().map(|(token, rest)| format!("token {}{rest}", tokens.range(..token).count()));
    (before.to_owned() + &ranks.collect::<String>(), tokens)
}

/// Compares an output with what the page shows. Where the page has the same token twice, so must the output, and where it
/// has a larger one. Returns the tokens.
fn shows(page: &str, output: &str) -> BTreeSet<u64> {
    let (text, tokens) = ranked(output);
    assert_eq!(text, ranked(page).0);
    assert!(!tokens.is_empty(), "{output}");
    tokens
}

/// The line that the page takes away, and the line that it puts there.
fn change(diff: &str) -> (&str, &str) {
    let line = |sign| diff.lines().find_map(|line| line.strip_prefix(sign)).expect("it takes a line away and adds one");
    assert_eq!(diff.lines().count(), 2, "{diff}");
    (line('-'), line('+'))
}

fn run_each_step(uri: &str) {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tutorial.md")).unwrap();
    let blocks = blocks(&page);
    let of =
        |language: &str| blocks.iter().filter(|(of, _)| of == language).map(|(_, block)| block).collect::<Vec<_>>();
    let outputs: Vec<&str> = of("console").iter().filter_map(|block| block.strip_prefix("$ cargo run\n")).collect();
    let (manifests, programs, diffs, on_server) = (of("toml"), of("rust"), of("diff"), of("rust,no_run"));
    let ([manifest], [diff], [fenced]) = (&manifests[..], &diffs[..], &on_server[..]) else {
        panic!("the page has one manifest, one change, and one program that needs a server");
    };
    let [in_memory @ .., output, fenced_output] = &outputs[..] else { panic!("each program prints something") };
    assert_eq!(programs.len(), in_memory.len(), "each program is run, one of them on a server, too");
    assert!(of("console")[0].contains(&format!("cargo new {NAME}\n")));
    let hidden = |program: &String| program.lines().any(|line| line.starts_with("# "));
    let mut all = programs.iter().chain([fenced]);
    assert!(!all.any(|program| hidden(program)), "a reader of the file sees each line as it is");

    let package = Package::new(manifest);
    for (program, output) in programs.iter().zip(in_memory) {
        shows(output, &package.run(program));
    }
    let (away, instead) = change(diff);
    let changed = programs.iter().rfind(|program| program.contains(away)).expect("a program has the line");
    assert_eq!(changed.matches(away).count(), 1, "{away}");
    let connecting = |line: &str| {
        let (before, after) = line.split_once("mongodb://").expect("it connects");
        let (_, after) = after.split_once('"').expect("the connection string ends");
        format!("{before}{uri}\"{after}")
    };
    let on_mongodb = changed.replace(away, &connecting(instead));
    let once = shows(output, &package.run(&on_mongodb));
    let again = shows(output, &package.run(&on_mongodb));
    assert!(once.last() < again.first(), "tokens grow over restarts: {once:?}, {again:?}");
    shows(fenced_output, &package.run(&connecting(fenced)));
}

#[tokio::test]
async fn each_step_of_the_tutorial_compiles_and_prints_what_the_page_shows() {
    let uri = TestDatabase::new("examples_tutorial").await.uri();
    tokio::task::spawn_blocking(move || run_each_step(&uri)).await.unwrap();
}

//! The tables of errors and loss causes in the runbook are those of the source.
//!
//! `MONGOSEAL_UPDATE=1 cargo test --test docs errors` writes them into the page.

use std::{env, fs};

use crate::{read, root};

/// A variant of an enum.
struct Variant {
    name: String,
    /// The first sentence of its documentation.
    meaning: String,
    /// Its row in the table of the documentation of the enum.
    reaction: String,
}

/// A text of rustdoc with the links of the page: those to the guide lead there, and of others only the text stays.
fn with_labels(text: &str) -> String {
    let mut parts = text.split("](");
    let mut page = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').expect("a link has an end");
        if let Some(label) = target.strip_prefix("crate::guide::") {
            page = format!("{page}][{}]", label.replace('_', "-"));
        } else {
            page.remove(page.rfind('[').expect("a link has a beginning"));
        }
        page += rest;
    }
    page
}

/// The variants of a public enum of `src/types/error.rs`.
fn variants(name: &str) -> Vec<Variant> {
    let source = read("src/types/error.rs");
    let (before, rest) = source.split_once(&format!("\npub enum {name} {{\n")).expect("there is the enum");
    let documentation = before.rsplit("\n\n").next().unwrap();
    let body = rest.split("\n}\n").next().unwrap();
    let (mut found, mut head) = (Vec::new(), Vec::new());
    for line in body.lines() {
        let is_variant = line.strip_prefix("    ").is_some_and(|text| text.starts_with(|at: char| at.is_uppercase()));
        if !is_variant {
            head.push(line.trim());
            continue;
        }
        let name = line.trim().trim_end_matches([' ', '{', ',']).to_owned();
        let head = std::mem::take(&mut head);
        // The fields of the variant before are documented, too.
        let own = head.iter().rposition(|line| *line == "},").map_or(&head[..], |end| &head[end + 1..]);
        let lines = own.iter().skip_while(|line| line.is_empty()).map_while(|line| line.strip_prefix("/// "));
        let sentences = with_labels(&lines.collect::<Vec<_>>().join(" "));
        let meaning = sentences.split(". ").next().unwrap().trim_end_matches('.').to_owned();
        let row = format!("/// | [`{name}`](Self::{name}) | ");
        let reaction = documentation.lines().find_map(|line| line.strip_prefix(&row)?.strip_suffix(" |"));
        let reaction = with_labels(reaction.unwrap_or("–"));
        found.push(Variant { name, meaning, reaction });
    }
    assert!(found.len() > 2, "{name} is not read");
    found
}

/// The exit status with which the program reports an error.
fn status(error: &str) -> String {
    let source = read("cli/src/exit_status.rs");
    let named = format!("Error::{error} {{ .. }}");
    let arm = source.lines().find(|line| line.contains(&named) && line.contains("=> Status::"));
    let arm = arm.or_else(|| source.lines().find(|line| line.contains("_ => Status::"))).expect("each error has one");
    let status = arm.split("Status::").nth(1).unwrap().trim_end_matches(',');
    let code =
        source.split_once(&format!("const {status}: Self = Self::of_command(")).expect("a status has a number").1;
    code.split(')').next().unwrap().to_owned()
}

fn errors() -> String {
    let mut table = "| error | meaning | do | status |\n|---|---|---|---|\n".to_owned();
    for Variant { name, meaning, reaction } in variants("Error") {
        assert_ne!(reaction, "–", "the table of `Error` has no row {name}");
        table = format!("{table}| `{name}` | {meaning} | {reaction} | {} |\n", status(&name));
    }
    table
}

fn causes() -> String {
    let mut table = "| cause | meaning | do |\n|---|---|---|\n".to_owned();
    for Variant { name, meaning, reaction } in variants("LossCause") {
        assert_ne!(reaction, "–", "the table of `LossCause` has no row {name}");
        table = format!("{table}| `{name}` | {meaning} | {reaction} |\n");
    }
    table
}

#[test]
fn the_runbook_has_each_error_and_each_loss_cause_as_the_source_describes_them() {
    let mut page = read("docs/runbook.md");
    for table in [errors(), causes()] {
        let (head, _) = table.split_once('\n').unwrap();
        let start = page.find(head).unwrap_or_else(|| panic!("docs/runbook.md has no table that begins with {head}"));
        let end = start + page[start..].find("\n\n").expect("a line follows the table") + 1;
        if env::var_os("MONGOSEAL_UPDATE").is_some() {
            page.replace_range(start..end, &table);
            fs::write(root().join("docs/runbook.md"), &page).unwrap();
        } else {
            assert!(
                page[start..end] == table,
                "docs/runbook.md is old: run this test with MONGOSEAL_UPDATE=1. The source has\n{table}"
            );
        }
    }
}

#[test]
fn the_runbook_names_each_way_in_which_a_holder_ends_its_lease() {
    let page = read("docs/runbook.md");
    let section = page.split("\n## Loss causes\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    for Variant { name, .. } in variants("EndReason") {
        assert!(section.contains(&format!("`{name}`")), "docs/runbook.md does not name {name}");
    }
}

//! The links of the documents lead somewhere, in the repository and in rustdoc.
//!
//! A page of `docs`, or one of `PROTOCOL`, links to other pages and to the API by labels, and defines the labels at its end for
//! readers in the repository. The pages of `docs/internals` are in the repository only. `src/guide/links.md` defines the same labels for
//! rustdoc, which checks its paths. `.ci/doc-links` checks the
//! addresses of docs.rs against the pages that rustdoc made.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{read, root};

/// Where rustdoc's pages of this crate are once it is published.
const DOCS_RS: &str = "https://docs.rs/mongoseal/latest/mongoseal/";
/// An image of one transparent pixel. In rustdoc the plots follow the page, because it can link to no file beside a page.
const NO_IMAGE: &str = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==";

/// The pages beside the test vectors that rustdoc has, too.
const PROTOCOL: [&str; 2] = ["protocol/record.md", "protocol/requests.md"];

/// A document, without its blocks of code.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) prose: String,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = read(&path);
        let mut in_code = false;
        let lines = text.lines().filter(|line| {
            let is_fence = line.trim_start().starts_with("```");
            in_code ^= is_fence;
            !in_code && !is_fence
        });
        let prose = lines.fold(String::new(), |prose, line| prose + line + "\n");
        assert!(!in_code, "{} has a block of code without an end", path.display());
        Self { path, prose }
    }

    fn is_guide(&self) -> bool {
        self.path.parent() == Some(Path::new("docs")) || PROTOCOL.iter().any(|page| self.path == Path::new(page))
    }

    /// The labels that the page defines, each with its target.
    fn definitions(&self) -> impl Iterator<Item = (&str, &str)> {
        let definition = |line: &'_ str| line.strip_prefix('[').is_some_and(|rest| rest.contains("]: "));
        self.prose.lines().filter(move |line| definition(line)).map(|line| line[1..].split_once("]: ").unwrap())
    }

    /// The prose without the definitions, and without code spans that are no label of a link.
    fn text(&self) -> String {
        let lines = self.prose.lines().filter(|line| !line.starts_with('[') || !line.contains("]: "));
        lines.fold(String::new(), |text, line| text + line + "\n")
    }

    /// The targets of its inline links.
    fn inline(&self) -> Vec<String> {
        let text = self.text();
        text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned()).collect()
    }

    /// The labels that its links name.
    fn labels(&self) -> BTreeSet<String> {
        let text = self.text();
        let full = text.split("][").skip(1).map(|rest| rest.split(']').next().unwrap().to_owned());
        let shortcut = text.match_indices("[`").filter_map(|(at, _)| {
            let (label, after) = text[at + 2..].split_once("`]")?;
            (!after.starts_with(['[', '('])).then(|| format!("`{label}`"))
        });
        full.chain(shortcut).collect()
    }

    /// The addresses of its headings.
    fn anchors(&self) -> BTreeSet<String> {
        let mut seen = BTreeMap::<String, usize>::new();
        let headings = self.prose.lines().filter_map(|line| line.strip_prefix('#'));
        let anchor = |heading: &str| -> String {
            let heading = heading.trim_start_matches('#').trim();
            let kept = heading.chars().filter(|at| at.is_alphanumeric() || " -_".contains(*at));
            kept.flat_map(char::to_lowercase).map(|at| if at == ' ' { '-' } else { at }).collect()
        };
        headings
            .map(|heading| {
                let anchor = anchor(heading);
                let before = seen.entry(anchor.clone()).or_default();
                *before += 1;
                if *before == 1 { anchor } else { format!("{anchor}-{}", *before - 1) }
            })
            .collect()
    }
}

pub(crate) fn pages() -> Vec<Page> {
    let beside = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "CHANGELOG.md"];
    let mut paths: Vec<PathBuf> = beside.iter().map(PathBuf::from).collect();
    paths.extend(
        ["cli/README.md", "protocol/README.md", "protocol/pipe.md", "stores/redis/README.md"].map(PathBuf::from),
    );
    paths.extend(PROTOCOL.map(PathBuf::from));
    for folder in ["docs", "docs/internals"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path.strip_prefix(root()).unwrap().into());
            }
        }
    }
    paths.sort();
    paths.into_iter().map(Page::read).collect()
}

/// Whether there is such a file and, in it, such a heading.
fn leads_somewhere(page: &Page, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { page.path.clone() } else { page.path.parent().unwrap().join(file) };
    root().join(&path).exists() && anchor.is_none_or(|anchor| Page::read(path).anchors().contains(anchor))
}

fn is_external(target: &str) -> bool {
    target.starts_with("https://") || target.starts_with("http://")
}

#[test]
fn each_link_of_a_document_leads_to_a_file_and_a_heading() {
    let (mut checked, mut failures) = (0, Vec::new());
    for page in pages() {
        let mut fail = |reason: String| failures.push(format!("{}: {reason}", page.path.display()));
        let defined: BTreeMap<_, _> = page.definitions().collect();
        let (inline, labels) = (page.inline(), page.labels());
        for target in defined.values().copied().chain(inline.iter().map(String::as_str)) {
            checked += 1;
            if !is_external(target) && !leads_somewhere(&page, target) {
                fail(format!("there is no {target}"));
            }
        }
        for target in inline.iter().filter(|target| !is_external(target) && !target.starts_with('#')) {
            if page.is_guide() {
                fail(format!("{target} is an inline link, which rustdoc cannot resolve: use a label"));
            }
        }
        for label in labels.iter().filter(|label| !defined.contains_key(label.as_str())) {
            fail(format!("[{label}] is not defined"));
        }
        for label in defined.keys().filter(|label| !labels.contains(**label)) {
            fail(format!("[{label}] is defined and not used"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(checked > 100, "only {checked} links were found");
}

/// Returns the definition of a label for rustdoc, from the target of the label in the repository.
fn in_rustdoc(page: &Path, target: &str) -> Option<String> {
    if let Some(address) = target.strip_prefix(DOCS_RS) {
        let (file, anchor) = address.split_once('#').unwrap_or((address, ""));
        let mut path = vec!["crate"];
        path.extend(file.trim_end_matches("index.html").split('/').filter(|part| !part.is_empty()));
        // `struct.Lease.html#method.transaction`
        if let Some(item) = path.last_mut()
            && let Some(kind_and_name) = item.strip_suffix(".html")
        {
            *item = kind_and_name.split_once('.').expect("a kind and a name").1;
        }
        path.extend(anchor.split_once('.').map(|(_, member)| member));
        return Some(path.join("::"));
    }
    if is_external(target) {
        return None;
    }
    if target.starts_with("plots/") || target.starts_with("pictures/") {
        return Some(NO_IMAGE.to_owned());
    }
    let (file, anchor) =
        target.split_once(".md").unwrap_or_else(|| panic!("{} links to {target}: name it only", page.display()));
    let is_in_protocol = PROTOCOL.contains(&format!("{}.md", file.trim_start_matches("../")).as_str());
    let folder = if is_in_protocol { "../protocol/" } else { "../docs/" };
    let file = file.strip_prefix(folder).unwrap_or(file);
    assert!(!file.contains('/'), "{} links to {target}, which rustdoc does not have: name it only", page.display());
    Some(format!("crate::guide::{}{anchor}", file.replace('-', "_")))
}

#[test]
fn rustdoc_knows_each_label_of_the_guide() {
    let mut links = BTreeMap::new();
    let table = Page::read("src/guide/wants.md".into());
    let of_table = table.labels();
    for page in pages() {
        let is_readme = page.path == Path::new("README.md");
        for (label, target) in page.definitions() {
            if !(page.is_guide() || is_readme && of_table.contains(label)) {
                continue;
            }
            if let Some(path) = in_rustdoc(&page.path, target.trim_start_matches("docs/")) {
                let other = links.insert(label.to_owned(), path.clone());
                assert!(other.is_none_or(|other| other == path), "[{label}] means two things in the guide");
            }
        }
    }
    let expected = links.iter().fold(String::new(), |text, (label, path)| text + &format!("[{label}]: {path}\n"));
    let file = root().join("src/guide/links.md");
    if std::env::var_os("MONGOSEAL_UPDATE").is_some() {
        fs::write(&file, &expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "src/guide/links.md is old: run this test with MONGOSEAL_UPDATE=1");
}

#[test]
fn the_guide_begins_with_the_table_of_readme() {
    assert!(read("README.md").contains(&read("src/guide/wants.md")));
}

#[test]
fn the_guide_has_each_page() {
    let guide = read("src/guide.rs");
    for page in pages().iter().filter(|page| page.is_guide()) {
        let path = page.path.strip_prefix("docs").map_or(Path::new("..").join(&page.path), Path::to_path_buf);
        assert!(guide.contains(&format!("\"{}\"", path.display())), "src/guide.rs leaves out {}", path.display());
    }
}

/// The milliseconds that a text names, rounded to a tenth.
fn milliseconds(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split(" ms").collect();
    let numbers = parts[..parts.len() - 1].iter().filter_map(|part| part.rsplit(' ').next()?.parse::<f64>().ok());
    numbers.map(|number| format!("{number:.1}")).collect()
}

/// A row of the table of README names the case whose figures it quotes, and so does a row of another page.
#[test]
fn pages_quote_the_figures_of_the_cases_that_they_name() {
    let performance = read("docs/performance.md");
    let mut quoted = 0;
    for page in pages() {
        let name = page.path.display().to_string();
        for row in page.prose.lines() {
            let is_quote = row.contains("`][performance#the-figures]") || name == "README.md" && row.contains(" ms |");
            let mut named = row.split('(').filter_map(|part| part.trim_start_matches('[').strip_prefix('`'));
            let Some(case) = named.next().and_then(|rest| rest.split('`').next()).filter(|_| is_quote) else {
                continue;
            };
            let measured = performance.lines().find(|line| line.starts_with(&format!("| `{case}`")));
            let measured = measured.unwrap_or_else(|| panic!("{name}: docs/performance.md has no {case:?}"));
            let known = milliseconds(measured);
            for figure in milliseconds(row) {
                assert!(known.contains(&figure), "{name}: {figure} ms of {case}, and docs/performance.md {known:?}");
                quoted += 1;
            }
            let ratios = row.split(" times").filter_map(|part| part.rsplit(' ').next());
            for ratio in ratios.filter(|ratio| ratio.parse::<f64>().is_ok()) {
                assert!(measured.contains(&format!("| {ratio}")), "{name}: {ratio} times of {case}: {measured}");
                quoted += 1;
            }
        }
    }
    assert!(quoted >= 6, "{quoted} figures");
    let settings = read("docs/settings.md").replace('\n', " ").to_lowercase();
    for (quote, source) in [
        ("a queue of 1,000 is served at 123 grants a second", "123 grants a second"),
        ("the primary 0.09 ms of processor, and all members together 0.17 ms", "| 86 | 21 | 4.2 | 169 | 63 |"),
    ] {
        let is_quoted = settings.contains(quote) && performance.contains(source);
        assert!(is_quoted, "docs/settings.md quotes {source:?} as {quote:?}");
    }
}

#[test]
fn the_page_on_tests_shows_the_code_that_runs() {
    let (page, tests) = (read("docs/testing.md"), read("tests/verbs/own_code.rs"));
    let blocks: Vec<&str> = page
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.strip_prefix("rust").or(block.strip_prefix("rs")))
        .collect();
    assert_eq!(blocks.len(), 6);
    for code in blocks.iter().map(|block| block.split_once('\n').unwrap().1) {
        assert!(tests.contains(code), "docs/testing.md is old: tests/verbs/own_code.rs has no\n{code}");
    }
}

#[test]
fn the_page_on_services_shows_the_example_that_runs() {
    let (page, example) = (read("docs/services.md"), read("examples/recipes/service.rs"));
    // The page describes what the head of the file does.
    let (_, code) = example.split_once("\n\n").unwrap();
    assert!(
        page.contains(&format!("```rs\n{code}```\n")),
        "docs/services.md is old: copy examples/recipes/service.rs into it, from its first `use` on"
    );
}

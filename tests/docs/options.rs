//! An option of an acquire has the same name and the same default in each language, in the unit of the language.

use crate::read;

/// An option of `Acquire`, and what it is elsewhere.
struct Of {
    setter: &'static str,
    name: &'static str,
    is_time: bool,
    /// Whether `mongoseal run` has it.
    is_flag: bool,
}

const fn of(setter: &'static str, name: &'static str, is_time: bool, is_flag: bool) -> Of {
    Of { setter, name, is_time, is_flag }
}

const OPTIONS: [Of; 10] = [
    of("wait", "wait", true, true),
    of("ttl", "ttl", true, true),
    // The program has the grace of its handle.
    of("grace", "grace", true, false),
    of("min_hold", "min_hold", true, true),
    of("max_hold", "max_hold", true, true),
    // A command cannot report progress.
    of("stalled_after", "stalled_after", true, false),
    of("without_expiry", "without_expiry", false, true),
    of("shared_up_to", "shared", false, true),
    of("group", "group", false, true),
    of("metadata", "metadata", false, true),
];

/// What only Rust has: others share with a large number, have an event for a place in the queue, retry by a loop of their own,
/// and have a program that refreshes.
const ONLY_IN_RUST: [&str; 5] = ["shared", "on_queued", "retry", "refresh_every", "without_refresh"];

#[test]
fn each_option_of_an_acquire_is_in_every_language_or_only_in_rust() {
    let source = read("src/action/acquire.rs");
    let mut setters: Vec<_> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub fn "))
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| *name != "acquire")
        .collect();
    let mut known: Vec<_> = OPTIONS.iter().map(|option| option.setter).chain(ONLY_IN_RUST).collect();
    setters.sort_unstable();
    known.sort_unstable();
    assert_eq!(setters, known);

    let program = read("cli/src/arguments/holding.rs");
    let request = read("cli/src/command/hold/request.rs");
    let request = between(&request, "struct Acquire {", "}");
    let pipe = read("protocol/pipe.md");
    let pipe = between(&pipe, "#### Options of a lease", "###");
    let [sync, aio] = ["_sync", "aio"].map(|module| read(format!("clients/python/src/mongoseal/{module}.py")));
    let [sync, aio] = [&sync, &aio].map(|source| between(source, "def acquire(", "\"\"\"\n\n"));
    let node = read("clients/node/src/mongoseal.ts");
    for Of { name, is_time, is_flag, .. } in OPTIONS {
        let in_millis = if is_time { format!("{name}_ms") } else { name.to_owned() };
        assert_eq!(program.contains(&format!("    pub(crate) {name}: ")), is_flag, "the flag {name}");
        assert!(request.contains(&format!("pub(super) {in_millis}: ")), "the request has no {in_millis}");
        for (module, source) in [("_sync", sync), ("aio", aio)] {
            assert!(source.contains(&format!(" {name}: ")), "{module} has no {name}");
        }
        let default = default_in_table(pipe, &in_millis, 1.0);
        let seconds = default_in_table(sync, name, if is_time { 1_000.0 } else { 1.0 });
        assert_eq!(seconds, default, "the default of {name} in Python, and of the pipe");
        let milliseconds = default_in_comment(&node, &camel_case(&in_millis));
        assert_eq!(milliseconds, default, "the default of {name} in Node.js, and of the pipe");
    }
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).unwrap_or_else(|| panic!("nothing has {begin:?}")).1;
    rest.split_once(end).map_or(rest, |(part, _)| part)
}

/// The last cell of the row of this name.
fn default_in_table(text: &str, name: &str, factor: f64) -> String {
    let row = format!("| `{name}` |");
    let row =
        text.lines().map(str::trim).find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("no row {name}"));
    in_unit(row.trim_end_matches('|').rsplit('|').next().unwrap(), factor)
}

/// What the comment on a member says after "Default:".
fn default_in_comment(text: &str, name: &str) -> String {
    let (before, _) = text.split_once(&format!("  {name}?: ")).unwrap_or_else(|| panic!("no member {name}"));
    let comment = before.rsplit("/**").next().unwrap();
    let default = comment.split_once("Default: ").unwrap_or_else(|| panic!("{name} has no default: {comment}")).1;
    in_unit(default.trim_end().trim_end_matches("*/").trim_end().trim_end_matches('.'), 1.0)
}

/// A default with its numbers times the factor.
fn in_unit(default: &str, factor: f64) -> String {
    let words = default.split_whitespace().map(|word| {
        let number = word.replace(',', "").parse::<f64>();
        number.map_or_else(|_| word.trim_matches('`').to_lowercase(), |number| (number * factor).to_string())
    });
    words.collect::<Vec<_>>().join(" ")
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

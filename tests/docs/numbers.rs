//! A number that readers choose by stands on one page. So a change of it changes one page.

use crate::links::pages;

/// A number, as a page states it, and the pages that do. `protocol/` is a contract of its own for other implementations.
const HOMES: [(&str, &[&str]); 9] = [
    ("30.5 s", &["docs/settings.md", "docs/comparison.md"]),
    ("tenth of the ttl", &["docs/settings.md", "README.md", "protocol/pipe.md"]),
    ("third of the ttl", &["docs/settings.md", "docs/guarantees.md", "protocol/pipe.md", "protocol/requests.md"]),
    ("third of its ttl", &["docs/guarantees.md", "protocol/requests.md"]),
    (" 24 h", &["docs/settings.md"]),
    (" 19 s", &["docs/failure-modes.md", "README.md"]),
    ("20 s without a primary", &["docs/settings.md", "README.md"]),
    ("90 days", &["docs/jobs.md", "docs/schedules.md", "protocol/pipe.md"]),
    (" 64 kib", &["docs/jobs.md", "protocol/pipe.md"]),
];

#[test]
fn a_number_stands_on_the_pages_that_are_its_home_and_on_no_other() {
    for page in pages().iter().filter(|page| !page.path.starts_with("docs/internals")) {
        let name = page.path.to_str().unwrap();
        let prose = page.prose.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        for (number, homes) in HOMES {
            let is_stated = prose.contains(number);
            assert_eq!(is_stated, homes.contains(&name), "{name} and {number:?}: link to {homes:?}");
        }
    }
}

//! The track record: each defect has its test, and each family its count.

use crate::{read, root};

/// Whether a file has this test: a function, or the text by which another language names it.
fn has_test(path: &str, test: &str) -> bool {
    let file = read(path);
    match path.rsplit('.').next() {
        Some("rs") => file.contains(&format!("fn {test}(")),
        Some("py") => file.contains(&format!("def {test}(")),
        _ => file.contains(test),
    }
}

#[test]
fn each_defect_of_the_track_record_has_a_test() {
    let page = read("docs/internals/track-record.md");
    let defects = page.split("\n## Defects\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let mut in_all = 0;
    for family in defects.split("\n### ").skip(1) {
        let (title, rows) = family.split_once('\n').unwrap();
        let rows: Vec<&str> = rows.lines().filter(|line| !line.is_empty()).collect();
        for row in &rows {
            // What was seen, then the files, each followed by the names of tests in it.
            let (_, tests) = row.split_once(": `").unwrap_or_else(|| panic!("no test: {row}"));
            let (mut path, mut found) = (None, 0);
            for name in tests.split('`').step_by(2).filter(|name| !name.is_empty()) {
                if root().join(name).is_file() {
                    path = Some(name);
                    continue;
                }
                assert!(path.is_some_and(|path| has_test(path, name)), "there is no {name}: {row}");
                found += 1;
            }
            assert!(row.starts_with("- ") && found > 0, "no test: {row}");
        }
        assert!(title.ends_with(&format!("({})", rows.len())), "{title} has {} defects", rows.len());
        in_all += rows.len();
    }
    assert!(defects.contains(&format!("\n{in_all} defects ")), "{in_all} defects in all");
}

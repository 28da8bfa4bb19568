//! The alerts and the dashboard name metrics that there are, and what to do about an alert is in the runbook.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::read;

/// Where the runbook is once it is published.
const ALERTS: &str = "https://docs.rs/mongoseal/latest/mongoseal/guide/runbook/#";

/// The words of a text that begin with `prefix`: letters, digits, underscores and dots.
fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_.".contains(letter);
    let found = text.match_indices(prefix).filter(|(at, _)| !text[..*at].ends_with(is_part));
    found.map(|(at, _)| text[at..].split(|letter| !is_part(letter)).next().unwrap().trim_end_matches('.')).collect()
}

/// The names of the metrics in the source.
fn metrics() -> BTreeSet<String> {
    let source = read("src/metrics.rs");
    let names: BTreeSet<_> = words(&source, "mongoseal.").into_iter().map(str::to_owned).collect();
    assert!(names.len() > 10, "{names:?}");
    names
}

/// The names that exporters for Prometheus make of them, each with its metric.
fn in_prometheus() -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for metric in metrics() {
        let name = metric.replace('.', "_");
        if name.ends_with("_duration") {
            names.extend(["_sum", "_count", "_bucket"].map(|part| (name.clone() + part, metric.clone())));
        } else {
            names.insert(name, metric);
        }
    }
    names
}

/// The alerts, each with its lines.
fn alerts() -> Vec<(String, String)> {
    let text = read("docs/monitoring/alerts.yaml");
    let rules = text.split("- alert: ").skip(1).map(|rule| {
        let (name, rest) = rule.split_once('\n').unwrap();
        (name.to_owned(), rest.to_owned())
    });
    rules.collect()
}

#[test]
fn the_page_describes_each_metric_of_the_source_and_no_other() {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `mongoseal.")?.split('`').next());
    let described: BTreeSet<_> = rows.map(|name| format!("mongoseal.{name}")).collect();
    assert_eq!(described, metrics());
    let other = ["docs/runbook.md", "docs/metrics.md"].map(read);
    for name in other.iter().flat_map(|page| words(page, "mongoseal.")) {
        assert!(metrics().contains(name), "a page names {name}");
    }
}

#[test]
fn alerts_and_dashboard_name_metrics_that_there_are() {
    let known = in_prometheus();
    for file in ["docs/monitoring/alerts.yaml", "docs/monitoring/dashboard.json"] {
        let text = read(file);
        let named = words(&text, "mongoseal_");
        for name in &named {
            assert!(known.contains_key(*name), "{file} names {name}");
        }
        assert!(named.len() >= 10, "{file}: {named:?}");
    }
    let dashboard = read("docs/monitoring/dashboard.json");
    let shown: BTreeSet<_> = words(&dashboard, "mongoseal_").into_iter().map(|name| &known[name]).collect();
    assert_eq!(shown, metrics().iter().collect(), "the dashboard shows each metric");
}

#[test]
fn alerts_and_dashboard_name_labels_that_the_page_describes() {
    let page = read("docs/metrics.md");
    let texts = ["docs/monitoring/alerts.yaml", "docs/monitoring/dashboard.json"].map(read);
    let mut checked = 0;
    for text in &texts {
        let by = text.split("by (").skip(1).flat_map(|rest| rest.split(')').next().unwrap().split(", "));
        let selected = text.split('{').skip(1).flat_map(|rest| rest.split('}').next().unwrap().split(','));
        let selected = selected.filter(|part| part.contains("=\\\"") || part.contains("=\"") || part.contains("=~"));
        for label in by.chain(selected.map(|part| part.split(['!', '=']).next().unwrap())) {
            checked += 1;
            // Prometheus adds two of them, and `le` is of a bucket.
            let is_known = ["job", "instance", "le"].contains(&label);
            assert!(is_known || page.contains(&format!("`{}`", label.replace('_', "."))), "{label}");
        }
    }
    assert!(checked > 30, "{checked}");
}

#[test]
fn each_alert_has_its_section_and_its_row_on_the_page_about_metrics() {
    let (advice, page) = (read("docs/runbook.md"), read("docs/metrics.md"));
    let headings = advice.lines().filter_map(|line| line.strip_prefix("### `Mongoseal"));
    let sections: Vec<_> = headings.map(|rest| format!("Mongoseal{}", rest.trim_end_matches('`'))).collect();
    let rows: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `Mongoseal")?.split('`').next()).collect();
    let rows: Vec<_> = rows.iter().map(|name| format!("Mongoseal{name}")).collect();
    let names: Vec<_> = alerts().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() >= 8, "{names:?}");
    assert_eq!(sections, names);
    assert_eq!(rows, names);
    for (name, rule) in alerts() {
        let url = rule.lines().find_map(|line| line.trim().strip_prefix("runbook_url: "));
        assert_eq!(url, Some(&*format!("{ALERTS}{}", name.to_lowercase())), "{name}");
        for field in ["\n        expr: ", "\n        labels:\n          severity: ", "\n          summary: '"] {
            assert!(format!("\n{rule}").contains(field), "{name} has no {}", field.trim());
        }
    }
}

#[test]
fn the_dashboard_is_json_and_each_panel_has_a_place_and_a_query() {
    let dashboard: Value = serde_json::from_str(&read("docs/monitoring/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let place = &panel["gridPos"];
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{}", panel["id"]);
        assert!(places.insert((place["y"].as_u64().unwrap(), place["x"].as_u64().unwrap())), "{place}");
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{place}");
        assert!(!panel["title"].as_str().unwrap().is_empty() && !panel["description"].as_str().unwrap().is_empty());
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            assert_eq!(query.matches('(').count(), query.matches(')').count(), "{query}");
            assert!(query.contains("{job=~\"$job\""), "{query} is of all jobs");
            assert!(!target["legendFormat"].as_str().unwrap().is_empty());
        }
    }
    assert!(panels.len() >= 8);
}

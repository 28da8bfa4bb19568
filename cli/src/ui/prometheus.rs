//! The text format of Prometheus, version 0.0.4, for a textfile collector.

use std::fmt::Write;

/// Gauges of one name.
pub(crate) struct Gauges {
    text: String,
    name: &'static str,
}

impl Gauges {
    pub(crate) fn new(name: &'static str, help: &str) -> Self {
        Self { text: format!("# HELP {name} {help}\n# TYPE {name} gauge\n"), name }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<_> = labels.iter().map(|(name, text)| format!("{name}=\"{}\"", escaped(text))).collect();
        // A number that is not finite is written as Prometheus reads it: `+Inf`.
        let value = if value.is_infinite() { "+Inf".to_owned() } else { value.to_string() };
        // A text takes all that is written to it.
        writeln!(self.text, "{}{{{}}} {value}", self.name, labels.join(",")).unwrap_or_default();
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// The value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_keeps_each_character_in_one_line() {
        let mut gauges = Gauges::new("mongoseal_leases", "the leases of the key");
        gauges.add(&[("key", "a\\b\"c\nd ä")], 1.0);
        gauges.add(&[("key", "")], f64::INFINITY);
        assert_eq!(
            gauges.text(),
            "# HELP mongoseal_leases the leases of the key\n# TYPE mongoseal_leases gauge\n\
             mongoseal_leases{key=\"a\\\\b\\\"c\\nd ä\"} 1\nmongoseal_leases{key=\"\"} +Inf\n"
        );
    }
}

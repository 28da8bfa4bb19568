//! What is printed of a case.

use serde_json::{Map, Value};

/// A case and what was found of every peer.
pub(crate) struct Table {
    pub(crate) case: &'static str,
    /// What was done, in a sentence.
    pub(crate) what: String,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
}

/// One peer's line.
pub(crate) struct Row {
    pub(crate) peer: &'static str,
    /// One for each column.
    pub(crate) cells: Vec<Value>,
    pub(crate) notes: Vec<String>,
}

impl Table {
    pub(crate) fn json(&self) -> impl Iterator<Item = Value> {
        self.rows.iter().map(|row| {
            let mut line = Map::new();
            line.insert("case".into(), self.case.into());
            line.insert("peer".into(), row.peer.into());
            line.extend(self.columns.iter().map(ToString::to_string).zip(row.cells.iter().cloned()));
            line.insert("notes".into(), row.notes.clone().into());
            line.into()
        })
    }

    pub(crate) fn print(&self) {
        println!("\n{}: {}", self.case, self.what);
        let texts: Vec<Vec<String>> = self.rows.iter().map(|row| row.cells.iter().map(text).collect()).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| {
                let cells = texts.iter().filter_map(|cells| cells.get(at)).map(|cell| cell.chars().count());
                cells.max().unwrap_or(0).max(self.columns[at].chars().count())
            })
            .collect();
        // Words begin below each other, numbers end so.
        let words = |at: usize| self.rows.iter().any(|row| row.cells.get(at).is_some_and(Value::is_string));
        let line = |peer: &str, cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<String> = cells
                .zip(&widths)
                .enumerate()
                .map(|(at, (cell, width))| if words(at) { format!("{cell:width$}") } else { format!("{cell:>width$}") })
                .collect();
            println!("{peer:24} {}", cells.join("  ").trim_end());
        };
        line("", &mut self.columns.iter().copied());
        for (row, cells) in self.rows.iter().zip(&texts) {
            line(row.peer, &mut cells.iter().map(String::as_str));
            for note in &row.notes {
                println!("{:24} {note}", "");
            }
        }
    }
}

fn text(cell: &Value) -> String {
    match cell {
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Number(number) if number.is_f64() => format!("{:.2}", number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

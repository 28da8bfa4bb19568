//! Tables: rows in aligned columns, with a header, without borders.

use unicode_width::UnicodeWidthStr;

use crate::ui::escape;

/// The space between two columns.
const GAP: &str = "  ";
/// The text of an empty cell.
const EMPTY: &str = "-";
/// The smallest width to which a column is cut. A longer title counts instead.
pub(crate) const MIN_WIDTH: usize = 8;

/// The titles of the columns that are cut if the terminal is too narrow.
const CUT: [&str; 11] =
    ["KEY", "OWNER", "GROUP", "METADATA", "HOLDER", "WAITER", "BY", "REASON", "TOKENS", "DETAILS", "NOTE"];

#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    /// The titles.
    columns: [&'static str; N],
    /// How many of the columns are shown, from the first one on.
    count: usize,
    rows: Vec<[String; N]>,
    /// The layout of the rows that were taken by [`Self::next_lines`].
    layout: Option<Layout<N>>,
}

/// The indexes of the columns that are shown, and the width of each column.
#[derive(Clone, Debug)]
struct Layout<const N: usize> {
    shown: Vec<usize>,
    widths: [usize; N],
}

impl<const N: usize> Table<N> {
    pub(crate) const fn new(columns: [&'static str; N]) -> Self {
        Self { columns, count: N, rows: Vec::new(), layout: None }
    }

    /// Shows only the first columns.
    pub(crate) fn first_columns(mut self, count: usize) -> Self {
        self.count = count;
        self
    }

    /// Adds a row. Escapes the cells, which can come from other programs.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| if cell.is_empty() { EMPTY.into() } else { escape::visible(&cell) }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the header and a line per row. With a `width`, lines are cut to it, and empty columns are omitted.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let shown: Vec<usize> = (0..self.count).filter(|at| width.is_none() || self.has_values(*at)).collect();
        let layout = Layout { widths: self.widths(&shown, width), shown };
        let titles = self.columns.map(str::to_owned);
        let rows = std::iter::once(&titles).chain(&self.rows);
        rows.map(|cells| self.line(&layout, cells, width)).collect()
    }

    /// Formats the rows since the last call, and removes them. The first call prepends the header, and its rows set the
    /// widths of the columns. A wider cell of a later row is cut if there is a `width`, and otherwise moves the rest of
    /// its line.
    pub(crate) fn next_lines(&mut self, width: Option<usize>) -> Vec<String> {
        let mut lines = Vec::new();
        let layout = self.layout.take().unwrap_or_else(|| {
            let shown: Vec<usize> = (0..self.count).collect();
            let layout = Layout { widths: self.widths(&shown, width), shown };
            lines.push(self.line(&layout, &self.columns.map(str::to_owned), width));
            layout
        });
        lines.extend(self.rows.iter().map(|cells| self.line(&layout, cells, width)));
        self.rows.clear();
        self.layout = Some(layout);
        lines
    }

    fn line(&self, Layout { shown, widths }: &Layout<N>, cells: &[String; N], bound: Option<usize>) -> String {
        format_row(shown.iter().map(|at| (self.columns[*at], widths[*at], cells[*at].as_str())), bound)
    }

    fn has_values(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row[column] != EMPTY)
    }

    fn widths(&self, shown: &[usize], bound: Option<usize>) -> [usize; N] {
        let mut widths = self.columns.map(UnicodeWidthStr::width);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let Some(bound) = bound else { return widths };
        let gaps = GAP.len() * shown.len().saturating_sub(1);
        while shown.iter().map(|at| widths[*at]).sum::<usize>() + gaps > bound {
            // The widest column is cut first, so that narrow ones stay readable.
            let can_be_cut = |at: &&usize| {
                let title = self.columns[**at];
                CUT.contains(&title) && widths[**at] > MIN_WIDTH.max(title.width())
            };
            let Some(widest) = shown.iter().filter(can_be_cut).max_by_key(|at| widths[**at]) else { break };
            widths[*widest] -= 1;
        }
        widths
    }
}

/// Formats a row. Each cell has the title and the width of its column. A wider cell is cut if there is a `bound` and the
/// column can be cut, and otherwise moves the rest of the line. The cells must be escaped.
pub(crate) fn format_row<'a>(cells: impl Iterator<Item = (&'a str, usize, &'a str)>, bound: Option<usize>) -> String {
    let padded = cells.map(|(title, width, cell)| {
        let cell = if bound.is_some() && CUT.contains(&title) { cut(cell, width) } else { cell.to_owned() };
        let missing = width.saturating_sub(cell.width());
        cell + &" ".repeat(missing)
    });
    let line = padded.collect::<Vec<_>>().join(GAP);
    cut(line.trim_end(), bound.unwrap_or(usize::MAX))
}

/// Cuts a text to a width; a cut text ends with `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.chars() {
        let next = format!("{kept}{character}");
        if next.width() >= width {
            break;
        }
        kept = next;
    }
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<3> {
        let mut table = Table::new(["KEY", "TOKEN", "OWNER"]);
        table.row(["reports/nightly/of/all/the/shops".into(), "226650000001".into(), "host-1/4711".into()]);
        table.row(["夜".into(), "7".into(), String::new()]);
        table
    }

    #[test]
    fn columns_are_aligned_by_what_is_seen_and_nothing_is_cut_without_a_width() {
        let lines = table().lines(None);
        assert_eq!(lines[0], "KEY                               TOKEN         OWNER");
        assert_eq!(lines[1], "reports/nightly/of/all/the/shops  226650000001  host-1/4711");
        assert_eq!(lines[2], "夜                                7             -");
    }

    #[test]
    fn a_column_that_says_nothing_is_left_out_where_room_is_dear() {
        let mut table = Table::new(["KEY", "GROUP"]);
        table.row(["k".into(), String::new()]);
        assert_eq!(
            (table.lines(Some(80)), table.lines(None)[0].as_str()),
            (vec!["KEY".into(), "k".into()], "KEY  GROUP")
        );
    }

    #[test]
    fn columns_after_the_first_ones_are_not_shown() {
        let mut table = table().first_columns(2);
        assert_eq!(table.lines(None)[0], "KEY                               TOKEN");
        assert_eq!(table.next_lines(None)[1], "reports/nightly/of/all/the/shops  226650000001");
    }

    #[test]
    fn the_first_rows_set_the_widths_of_the_columns_for_all() {
        let later = |width: Option<usize>| {
            let mut table = table();
            let first = table.next_lines(width);
            table.row(["k".repeat(34), "1".into(), "host-10/4711".into()]);
            (first.len(), table.next_lines(width), table.next_lines(width))
        };
        let (key, none) = ("k".repeat(34), Vec::<String>::new());
        assert_eq!(later(None), (3, vec![format!("{key}  1             host-10/4711")], none.clone()));
        let cut = format!("{}…  1             host-10/47…", "k".repeat(31));
        assert_eq!(later(Some(80)), (3, vec![cut], none));
    }

    #[test]
    fn the_widest_column_that_may_is_cut_first_and_no_line_is_wider_than_the_terminal() {
        let lines = table().lines(Some(44));
        assert_eq!(lines[1], "reports/nightly/…  226650000001  host-1/4711");
        for width in 1..80 {
            for line in table().lines(Some(width)) {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
    }
}

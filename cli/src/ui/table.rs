//! Tables: rows in aligned columns, with a header, without borders.

use unicode_width::UnicodeWidthStr;

use crate::ui::escape;

/// The space between two columns.
const GAP: &str = "  ";
/// The text of an empty cell.
const EMPTY: &str = "-";
/// The smallest width to which a column is cut. A longer title counts instead.
pub(crate) const MIN_WIDTH: usize = 8;

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    title: &'static str,
    can_be_cut: bool,
}

impl Column {
    /// A column that is never cut.
    pub(crate) const fn whole(title: &'static str) -> Self {
        Self { title, can_be_cut: false }
    }

    /// A column that is cut if the terminal is too narrow.
    pub(crate) const fn cut(title: &'static str) -> Self {
        Self { title, can_be_cut: true }
    }
}

#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    columns: [Column; N],
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
    pub(crate) const fn new(columns: [Column; N]) -> Self {
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
        let titles = self.titles();
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
            lines.push(self.line(&layout, &self.titles(), width));
            layout
        });
        lines.extend(self.rows.iter().map(|cells| self.line(&layout, cells, width)));
        self.rows.clear();
        self.layout = Some(layout);
        lines
    }

    fn titles(&self) -> [String; N] {
        self.columns.map(|column| column.title.to_owned())
    }

    fn line(&self, Layout { shown, widths }: &Layout<N>, cells: &[String; N], bound: Option<usize>) -> String {
        join(shown.iter().map(|at| fill(self.columns[*at], widths[*at], &cells[*at], bound.is_some())), bound)
    }

    fn has_values(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row[column] != EMPTY)
    }

    fn widths(&self, shown: &[usize], bound: Option<usize>) -> [usize; N] {
        let mut widths = self.columns.map(|column| column.title.width());
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
                let column = self.columns[**at];
                column.can_be_cut && widths[**at] > MIN_WIDTH.max(column.title.width())
            };
            let Some(widest) = shown.iter().filter(can_be_cut).max_by_key(|at| widths[**at]) else { break };
            widths[*widest] -= 1;
        }
        widths
    }
}

/// Formats a row of a table that has no end, in columns of these widths. A wider cell is cut if there is a `width`, and
/// otherwise moves the rest of its line. The cells must be escaped.
pub(crate) fn format_row<const N: usize>(
    columns: &[Column; N],
    widths: &[usize; N],
    cells: &[String; N],
    width: Option<usize>,
) -> String {
    let filled = columns.iter().zip(widths).zip(cells);
    join(filled.map(|((column, size), cell)| fill(*column, *size, cell, width.is_some())), width)
}

fn fill(column: Column, width: usize, cell: &str, is_bound: bool) -> String {
    pad(if is_bound && column.can_be_cut { cut(cell, width) } else { cell.to_owned() }, width)
}

fn join(cells: impl Iterator<Item = String>, bound: Option<usize>) -> String {
    let line = cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned();
    bound.map_or(line.clone(), |bound| cut(&line, bound))
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

fn pad(cell: String, width: usize) -> String {
    let missing = width.saturating_sub(cell.width());
    cell + &" ".repeat(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<3> {
        let mut table = Table::new([Column::cut("KEY"), Column::whole("TOKEN"), Column::cut("OWNER")]);
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
        let mut table = Table::new([Column::cut("KEY"), Column::cut("GROUP")]);
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

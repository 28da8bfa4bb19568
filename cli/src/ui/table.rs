//! Tables: rows in aligned columns, with a header, without borders.
//!
//! In a pipe all columns are printed, and nothing is cut. On a terminal, a column without values is left out. If the rest
//! is too wide, the first step that is enough is taken:
//!
//! 1. cells are wrapped or cut, those of the key last;
//! 2. optional columns are left out;
//! 3. each row is a block of lines, one for each cell with a value.

use unicode_width::UnicodeWidthStr;

use crate::ui::{escape, wrap};

/// The space between two columns.
const GAP: &str = "  ";
/// The text of an empty cell.
const EMPTY: &str = "-";
/// The smallest width to which a column is cut. A longer title counts instead.
pub(crate) const MIN_WIDTH: usize = 8;
/// The smallest width to which keys are cut.
const MIN_KEY: usize = 32;
/// The width to which columns can be wrapped even if they have longer words.
const MIN_WORD: usize = 16;

/// The titles of the columns that are cut or wrapped if the terminal is too narrow. The first give room first.
const CUT: [&str; 11] =
    ["METADATA", "NOTE", "TOKENS", "REASON", "GROUP", "BY", "WAITER", "HOLDER", "OWNER", "DETAILS", "KEY"];
/// The titles of those that are wrapped.
const WRAPPED: [&str; 5] = ["METADATA", "DETAILS", "NOTE", "TOKENS", "REASON"];
/// The titles of the columns with numbers and durations, which are aligned on the right.
const RIGHT: [&str; 9] = ["TOKEN", "HELD", "FREE IN", "WAITERS", "LAST SEEN", "POSITION", "WAITED", "ENDED", "TOOK"];
/// Cells that have no value beside [`EMPTY`], by the title of their column.
const DEFAULTS: [(&str, &str); 2] = [("MODE", "exclusive"), ("WAITERS", "0")];

#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    /// The titles.
    columns: [&'static str; N],
    /// How many of the columns are shown, from the first one on.
    count: usize,
    /// The titles of the columns that are left out if the terminal is too narrow, the first one first.
    optional: &'static [&'static str],
    rows: Vec<[String; N]>,
    /// The layout of the rows that were taken by [`Self::next_lines`].
    layout: Option<Layout<N>>,
}

/// How rows are printed.
#[derive(Clone, Debug)]
struct Layout<const N: usize> {
    /// The indexes of the columns that are shown, and the width of each column.
    shown: Vec<usize>,
    widths: [usize; N],
    /// The width of the terminal.
    bound: Option<usize>,
    /// Whether each row is a block of lines.
    is_block: bool,
}

impl<const N: usize> Table<N> {
    pub(crate) const fn new(columns: [&'static str; N]) -> Self {
        Self { columns, count: N, optional: &[], rows: Vec::new(), layout: None }
    }

    /// Shows only the first columns.
    pub(crate) fn first_columns(mut self, count: usize) -> Self {
        self.count = count;
        self
    }

    /// Leaves out the columns with these titles, the first one first, if the terminal is too narrow.
    pub(crate) fn optional(mut self, titles: &'static [&'static str]) -> Self {
        self.optional = titles;
        self
    }

    /// Adds a row. Escapes the cells, which can come from other programs.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| if cell.is_empty() { EMPTY.into() } else { escape::visible(&cell) }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the header and the rows. With a `width`, the lines fit it, and columns without values are left out.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let shown = (0..self.count).filter(|at| width.is_none() || self.has_values(*at)).collect();
        self.all_lines(&self.layout(shown, width))
    }

    /// Formats the rows since the last call, and removes them. The first call prepends the header, and its rows set the
    /// layout. A wider cell of a later row is cut if there is a `width`, and otherwise moves the rest of its line.
    pub(crate) fn next_lines(&mut self, width: Option<usize>) -> Vec<String> {
        let lines = if let Some(layout) = &self.layout {
            self.row_lines(layout)
        } else {
            let layout = self.layout((0..self.count).collect(), width);
            let lines = self.all_lines(&layout);
            self.layout = Some(layout);
            lines
        };
        self.rows.clear();
        lines
    }

    fn all_lines(&self, layout: &Layout<N>) -> Vec<String> {
        let mut lines = self.row_lines(layout);
        if layout.is_block {
            // The blank line before the first block.
            lines.remove(0);
        } else {
            let bold = anstyle::Style::new().bold();
            let header = self.line(layout, &self.columns.map(str::to_owned));
            lines.insert(0, format!("{bold}{header}{bold:#}"));
        }
        lines
    }

    fn row_lines(&self, layout: &Layout<N>) -> Vec<String> {
        let lines = |row| if layout.is_block { self.block(layout, row) } else { self.wrapped(layout, row) };
        self.rows.iter().flat_map(lines).collect()
    }

    /// Formats a row as a line for each cell with a value, below a blank line.
    fn block(&self, layout: &Layout<N>, cells: &[String; N]) -> Vec<String> {
        let titles = layout.shown.iter().map(|at| self.columns[*at].width()).max().unwrap_or_default();
        let lines =
            layout.shown.iter().filter(|at| cells[**at] != EMPTY).flat_map(|at| {
                wrap::labelled(&format!("{:titles$}{GAP}", self.columns[*at]), &cells[*at], layout.bound)
            });
        std::iter::once(String::new()).chain(lines).collect()
    }

    /// Formats a row as a line, or as several if cells are wrapped.
    fn wrapped(&self, layout: &Layout<N>, cells: &[String; N]) -> Vec<String> {
        let mut columns: [std::vec::IntoIter<String>; N] = std::array::from_fn(|at| {
            let is_wrapped = layout.bound.is_some() && WRAPPED.contains(&self.columns[at]);
            let cell = &cells[at];
            if is_wrapped { wrap::cell(cell, layout.widths[at]) } else { vec![cell.clone()] }.into_iter()
        });
        let count = layout.shown.iter().map(|at| columns[*at].len()).max().unwrap_or_default();
        (0..count)
            .map(|_| self.line(layout, &std::array::from_fn(|at| columns[at].next().unwrap_or_default())))
            .collect()
    }

    fn line(&self, Layout { shown, widths, bound, .. }: &Layout<N>, cells: &[String; N]) -> String {
        format_row(shown.iter().map(|at| (self.columns[*at], widths[*at], cells[*at].as_str())), *bound)
    }

    fn has_values(&self, column: usize) -> bool {
        let has_value = |cell: &str| cell != EMPTY && !DEFAULTS.contains(&(self.columns[column], cell));
        self.rows.iter().any(|row| has_value(&row[column]))
    }

    fn layout(&self, mut shown: Vec<usize>, bound: Option<usize>) -> Layout<N> {
        let all = shown.clone();
        let mut optional = self.optional.iter();
        loop {
            let widths = self.widths(&shown, bound);
            let total = shown.iter().map(|at| widths[*at]).sum::<usize>() + gaps(&shown);
            if bound.is_none_or(|bound| total <= bound) {
                return Layout { shown, widths, bound, is_block: false };
            }
            let Some(title) = optional.next() else { return Layout { shown: all, widths, bound, is_block: true } };
            shown.retain(|at| self.columns[*at] != *title);
        }
    }

    /// Returns the widths of the columns. If the shown ones are wider than `bound`, these are reduced as far as possible.
    fn widths(&self, shown: &[usize], bound: Option<usize>) -> [usize; N] {
        let mut widths = self.columns.map(UnicodeWidthStr::width);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let total = shown.iter().map(|at| widths[*at]).sum::<usize>() + gaps(shown);
        let mut excess = total.saturating_sub(bound.unwrap_or(usize::MAX));
        for title in CUT {
            for at in shown.iter().filter(|at| self.columns[**at] == title) {
                let given = widths[*at].saturating_sub(self.least(*at)).min(excess);
                widths[*at] -= given;
                excess -= given;
            }
        }
        widths
    }

    /// Returns the smallest width to which a column is cut or wrapped.
    fn least(&self, column: usize) -> usize {
        let title = self.columns[column];
        let words = self.rows.iter().flat_map(|row| row[column].split(' ')).map(UnicodeWidthStr::width);
        let longest = match title {
            "KEY" => MIN_KEY,
            _ if WRAPPED.contains(&title) => words.max().unwrap_or_default().min(MIN_WORD),
            _ => MIN_WIDTH,
        };
        longest.max(MIN_WIDTH).max(title.width())
    }
}

/// Returns the width of the gaps between so many columns.
fn gaps(shown: &[usize]) -> usize {
    GAP.len() * shown.len().saturating_sub(1)
}

/// Formats a row. Each cell has the title and the width of its column. A wider cell is cut if there is a `bound` and the
/// column can be cut, and otherwise moves the rest of the line. The cells must be escaped.
pub(crate) fn format_row<'a>(cells: impl Iterator<Item = (&'a str, usize, &'a str)>, bound: Option<usize>) -> String {
    let padded = cells.map(|(title, width, cell)| {
        let cell = if bound.is_some() && CUT.contains(&title) { cut(cell, width) } else { cell.to_owned() };
        let missing = " ".repeat(width.saturating_sub(cell.width()));
        if RIGHT.contains(&title) { missing + &cell } else { cell + &missing }
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
    use anstream::adapter::strip_str;

    use super::*;

    fn plain(lines: &[String]) -> Vec<String> {
        lines.iter().map(|line| strip_str(line).to_string()).collect()
    }

    fn table() -> Table<3> {
        let mut table = Table::new(["KEY", "TOKEN", "OWNER"]);
        table.row(["reports/nightly/of/all/the/shops".into(), "226650000001".into(), "host-1/4711".into()]);
        table.row(["夜".into(), "7".into(), String::new()]);
        table
    }

    #[test]
    fn columns_are_aligned_by_what_is_seen_and_numbers_on_the_right_and_nothing_is_cut_without_a_width() {
        let lines = plain(&table().lines(None));
        assert_eq!(lines[0], "KEY                                      TOKEN  OWNER");
        assert_eq!(lines[1], "reports/nightly/of/all/the/shops  226650000001  host-1/4711");
        assert_eq!(lines[2], "夜                                           7  -");
    }

    #[test]
    fn a_column_whose_cells_all_have_the_default_is_left_out_on_a_terminal() {
        let mut table = Table::new(["KEY", "MODE", "WAITERS", "GROUP"]);
        table.row(["k".into(), "exclusive".into(), "0".into(), String::new()]);
        assert_eq!(plain(&table.lines(Some(80))), ["KEY", "k"]);
        assert_eq!(plain(&table.lines(None))[0], "KEY  MODE       WAITERS  GROUP");
        table.row(["l".into(), "shared".into(), "0".into(), String::new()]);
        assert_eq!(plain(&table.lines(Some(80))), ["KEY  MODE", "k    exclusive", "l    shared"]);
    }

    #[test]
    fn columns_after_the_first_ones_are_not_shown() {
        let mut table = table().first_columns(2);
        assert_eq!(plain(&table.lines(None))[0], "KEY                                      TOKEN");
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
        assert_eq!(later(None), (3, vec![format!("{key}             1  host-10/4711")], none.clone()));
        let cut = format!("{}…             1  host-10/47…", "k".repeat(31));
        assert_eq!(later(Some(80)), (3, vec![cut], none));
    }

    #[test]
    fn the_owner_is_cut_before_the_key() {
        let lines = table().lines(Some(56));
        assert_eq!(lines[1], "reports/nightly/of/all/the/shops  226650000001  host-1/…");
        let mut table = table();
        table.row(["k".repeat(40), "7".into(), "o".repeat(9)]);
        let lines = table.lines(Some(58));
        assert_eq!(lines[3], format!("{}…             7  ooooooo…", "k".repeat(33)));
    }

    #[test]
    fn a_row_is_a_block_of_lines_if_the_columns_are_wider_than_the_terminal() {
        let lines = table().lines(Some(39));
        let blocks = [
            "KEY    reports/nightly/of/all/the/shops",
            "TOKEN  226650000001",
            "OWNER  host-1/4711",
            "",
            "KEY    夜",
            "TOKEN  7",
        ];
        assert_eq!(lines, blocks);
        let mut table = table();
        assert_eq!(table.next_lines(Some(39)), blocks);
        table.row(["k".into(), "1".into(), String::new()]);
        assert_eq!(table.next_lines(Some(39)), ["", "KEY    k", "TOKEN  1"]);
    }

    #[test]
    fn an_optional_column_is_left_out_before_rows_become_blocks() {
        let lines = table().optional(&["TOKEN"]).lines(Some(43));
        assert_eq!(lines[1], "reports/nightly/of/all/the/shops  host-1/4…");
    }

    #[test]
    fn a_reason_is_wrapped_between_its_words() {
        let mut table = Table::new(["REVOKED", "REASON"]);
        table.row(["9 s ago".into(), "stuck since Monday".into()]);
        let lines = plain(&table.lines(Some(20)));
        assert_eq!(lines, ["REVOKED  REASON", "9 s ago  stuck since", "         Monday"]);
    }
}

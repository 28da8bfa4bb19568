//! Reads lines of limited length.

use std::io::{BufRead, Read};

/// Reads a line, and of a line longer than `limit` bytes only the beginning, which is longer than `limit`, too. Returns
/// `None` at the end of the input, or if it cannot be read.
pub(super) fn next_line(input: &mut impl BufRead, limit: usize) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let most = u64::try_from(limit).unwrap_or_default().saturating_add(2);
    input.by_ref().take(most).read_until(b'\n', &mut line).ok()?;
    if line.is_empty() {
        return None;
    }
    if line.len() > limit && !line.ends_with(b"\n") {
        input.skip_until(b'\n').ok()?;
    }
    Some(line)
}

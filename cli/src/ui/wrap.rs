//! Splits texts into lines of a width.

use anstream::adapter::strip_str;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Splits a text between words into lines of at most `width`. A longer word is a line of its own: the terminal breaks it,
/// and a copy of it is whole.
pub(crate) fn words(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Splits a text between words into lines of at most `width`, and breaks longer words.
pub(crate) fn cell(text: &str, width: usize) -> Vec<String> {
    words(text, width).iter().flat_map(|line| broken(line, width)).collect()
}

fn broken(line: &str, width: usize) -> Vec<String> {
    let mut parts = vec![String::new()];
    for character in line.chars() {
        match parts.last_mut() {
            Some(part) if part.is_empty() || part.width() + character.width().unwrap_or(0) <= width => {
                part.push(character);
            }
            _ => parts.push(character.to_string()),
        }
    }
    parts
}

/// Splits a text between words into lines of at most `width`, the first behind this label, which can have
/// colours, the others below it. Without a `width`, returns one line.
pub(crate) fn labelled(label: &str, text: &str, width: Option<usize>) -> Vec<String> {
    let indent = strip_str(label).to_string().width();
    let Some(width) = width else { return vec![format!("{label}{text}")] };
    let lines = words(text, width.saturating_sub(indent).max(1));
    let lead = |at: usize| if at == 0 { label.to_owned() } else { " ".repeat(indent) };
    lines.iter().enumerate().map(|(at, line)| lead(at) + line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_between_words_and_only_a_cell_breaks_a_long_one() {
        assert_eq!(words("stuck since Monday", 11), ["stuck since", "Monday"]);
        assert_eq!(words("a reports/nightly", 7), ["a", "reports/nightly"]);
        assert_eq!(cell("a reports/nightly", 7), ["a", "reports", "/nightl", "y"]);
        assert_eq!(cell("夜夜夜", 5), ["夜夜", "夜"]);
        assert_eq!(labelled("Key  ", "a b", Some(6)), ["Key  a", "     b"]);
        assert_eq!(labelled("Key  ", "a b", None), ["Key  a b"]);
    }
}

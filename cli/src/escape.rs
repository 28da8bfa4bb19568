//! Texts that others wrote, made safe to show: a key or an owner must not move a terminal's cursor, nor make a
//! line read otherwise than it is.

use std::fmt::Write;

/// Whether a character acts on a terminal or on the order in which a line is read, instead of being seen.
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The same text with whatever acts written out, such as `\u{1b}`.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if acts(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// JSON in which whatever acts is written as JSON writes it, such as `\u009b`: it leaves those above U+001F as
/// they are. They can be in its strings only, so it means the same.
pub(crate) fn visible_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if acts(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(shown, "\\u{unit:04x}").ok();
            }
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_written_out_and_all_else_is_left() {
        assert_eq!(visible("отчёт 夜 a\\b"), "отчёт 夜 a\\b");
        assert_eq!(visible("a\u{1b}[2Jb\n\t\u{9b}"), "a\\u{1b}[2Jb\\n\\t\\u{9b}");
        assert_eq!(visible("admin\u{202e}nimda\u{200b}"), "admin\\u{202e}nimda\\u{200b}");
    }

    #[test]
    fn json_without_what_acts_means_the_same() {
        let nasty = "a\u{7f}\u{9b}31m\u{202e}\u{e0041}\u{1b}\"\\";
        let shown = visible_json(&serde_json::to_string(nasty).unwrap());
        assert!(!shown.chars().any(acts), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), nasty);
    }
}

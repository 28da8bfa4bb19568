//! Escapes texts from other programs before they are printed: a key or an owner must not move a terminal's cursor,
//! change the order in which a line is read, or look like another one.

use std::fmt::Write;

/// Returns whether a character acts on a terminal, changes the reading order of a line, or is invisible.
///
/// The ranges are the control characters, the separators of lines and paragraphs, the annotation characters, and
/// `Default_Ignorable_Code_Point` of Unicode 16. Some emoji contain a variation selector or a joiner. These are escaped,
/// too: with and without them two names look alike.
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the text with each acting character escaped, such as `\u{1b}`.
pub(crate) fn visible(text: &str) -> String {
    escaped(text, |character, shown| shown.extend(character.escape_default()))
}

/// Returns the JSON with each acting character escaped as in JSON, such as `\u009b`. The serializer escapes those up to
/// U+001F only. Such characters occur only inside strings, so the meaning stays the same.
pub(crate) fn visible_json(json: &str) -> String {
    escaped(json, |character, shown| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(shown, "\\u{unit:04x}").ok();
        }
    })
}

/// Returns the text with what `escape` writes in place of each acting character.
fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if acts(character) {
            escape(character, &mut shown);
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
        for invisible in ['\u{ad}', '\u{34f}', '\u{115f}', '\u{3164}', '\u{ffa0}', '\u{fe0f}', '\u{e0100}'] {
            assert_eq!(visible(&format!("a{invisible}b")), format!("a{}b", invisible.escape_default()));
        }
    }

    #[test]
    fn json_without_what_acts_means_the_same() {
        let nasty = "a\u{7f}\u{9b}31m\u{202e}\u{e0041}\u{1b}\"\\";
        let shown = visible_json(&serde_json::to_string(nasty).unwrap());
        assert!(!shown.chars().any(acts), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), nasty);
    }
}

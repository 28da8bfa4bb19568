//! The key of a lease.

use crate::types::string_newtype::string_newtype;

string_newtype!(
    /// The name of what a lease is for: any text of 1 to 1,024 bytes without NUL.
    ///
    /// An acquire refuses a key with control characters, with spaces at its ends, and in quotes. So the newline at the end of a
    /// file does not make another key.
    ///
    /// No other text is special. `$where`, `a.b` and `../x` are valid keys, because a store treats a key as a value only.
    /// Keys compare byte by byte: `Job` and `job` are two keys.
    ///
    /// ```
    /// use mongoseal::Key;
    ///
    /// let key: Key = "reports/nightly".parse()?;
    /// assert_eq!(key.as_str(), "reports/nightly");
    /// assert!("".parse::<Key>().is_err());
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    Key, 1024, "a key", "name what the lease is for"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::Error;

    #[test]
    fn keys_that_look_like_operators_are_keys() {
        for text in ["$where", "a.b", "$$NOW", "../x", "a b", "\"a\" and \"b", "\"", "ключ", "{}"] {
            assert_eq!(text.parse::<Key>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_bad_key_is_refused_with_what_to_do() {
        let longest = "k".repeat(Key::MAX_BYTES);
        assert!(longest.parse::<Key>().is_ok());
        for (text, says) in [
            (String::new(), "must not be empty"),
            (longest + "k", "has 1025: use a hash"),
            ("a\0b".into(), "remove it"),
        ] {
            let error = text.parse::<Key>().unwrap_err();
            assert!(matches!(Error::from(error.clone()), Error::Invalid { .. }));
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}

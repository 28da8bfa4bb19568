//! The common part of the text types. They differ in meaning, and in the longest text.

use crate::types::parse_error::ParseError;

/// Refuses a text that is no name.
pub(crate) fn check(text: &str, max: usize, what: &str, hint: &str) -> Result<(), ParseError> {
    let bytes = text.len();
    let problem = if text.is_empty() {
        format!("must not be empty: {hint}")
    } else if bytes > max {
        format!("may have at most {max} bytes and this one has {bytes}: use a hash of it, or shorten it")
    } else if text.contains('\0') {
        "must not contain a NUL character: remove it".to_owned()
    } else {
        return Ok(());
    };
    Err(ParseError(format!("{what} {problem}")))
}

/// Refuses what a person does not see in a name, but which makes it another name: the newline at the end of a file, or the
/// quotes of a setting. What is stored already can have such a name: it can be read, and released.
pub(crate) fn refuse_unseen(text: &str, what: &str) -> Result<(), ParseError> {
    let is_quoted =
        ['"', '\''].iter().any(|quote| text.len() > 1 && text.starts_with(*quote) && text.ends_with(*quote));
    let problem = if text.contains(char::is_control) {
        "has a control character"
    } else if text.trim() != text {
        "begins or ends with a space"
    } else if is_quoted {
        "is in quotes"
    } else {
        return Ok(());
    };
    Err(ParseError(format!("{what} {problem}: remove it from {text:?}")))
}

/// Parses decimal digits. `str::parse` would accept a leading plus, too.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Defines a text type: a name of 1 to `$max` bytes without NUL. `$what` is its name in messages, and `$hint` says what to
/// do about a text that is empty.
macro_rules! string_newtype {
    ($(#[$meta:meta])* $name:ident, $max:literal, $what:literal, $hint:literal) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The longest text, in bytes.
            pub const MAX_BYTES: usize = $max;

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::types::parse_error::ParseError;

            fn from_str(text: &str) -> Result<Self, $crate::types::parse_error::ParseError> {
                $crate::types::string_newtype::check(text, Self::MAX_BYTES, $what, $hint)?;
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $crate::types::parse_error::ParseError;

            fn try_from(text: &str) -> Result<Self, $crate::types::parse_error::ParseError> {
                text.parse()
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::types::parse_error::ParseError;

            fn try_from(text: String) -> Result<Self, $crate::types::parse_error::ParseError> {
                text.parse()
            }
        }

        impl TryFrom<&String> for $name {
            type Error = $crate::types::parse_error::ParseError;

            fn try_from(text: &String) -> Result<Self, $crate::types::parse_error::ParseError> {
                text.parse()
            }
        }

        impl From<&$name> for $name {
            fn from(value: &$name) -> Self {
                value.clone()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.0.as_ref().into()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

pub(crate) use string_newtype;

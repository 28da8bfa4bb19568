//! What all words that are texts can do: they differ in what they mean and in what they refuse.

/// The number that a text of decimal digits is. `str::parse` takes a leading plus, too.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Gives a word, a tuple of one `Arc<str>` that is `FromStr`, the rest of what a text can do.
macro_rules! text_word {
    ($word:ident) => {
        impl $word {
            /// It as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $word {
            type Error = $crate::Error;

            fn try_from(text: &str) -> Result<Self, $crate::Error> {
                text.parse()
            }
        }

        impl TryFrom<String> for $word {
            type Error = $crate::Error;

            fn try_from(text: String) -> Result<Self, $crate::Error> {
                text.parse()
            }
        }

        impl TryFrom<&String> for $word {
            type Error = $crate::Error;

            fn try_from(text: &String) -> Result<Self, $crate::Error> {
                text.parse()
            }
        }

        impl From<&$word> for $word {
            fn from(word: &$word) -> Self {
                word.clone()
            }
        }

        impl From<$word> for String {
            fn from(word: $word) -> Self {
                word.0.as_ref().into()
            }
        }

        impl std::fmt::Display for $word {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $word {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

pub(crate) use text_word;

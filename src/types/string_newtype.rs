//! The common part of the text types. They differ in meaning, and in which texts they refuse.

/// Parses decimal digits. `str::parse` would accept a leading plus, too.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Implements the common part of a text type: a tuple of one `Arc<str>` that is `FromStr`.
macro_rules! string_newtype {
    ($name:ident) => {
        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $crate::Error;

            fn try_from(text: &str) -> Result<Self, $crate::Error> {
                text.parse()
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::Error;

            fn try_from(text: String) -> Result<Self, $crate::Error> {
                text.parse()
            }
        }

        impl TryFrom<&String> for $name {
            type Error = $crate::Error;

            fn try_from(text: &String) -> Result<Self, $crate::Error> {
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

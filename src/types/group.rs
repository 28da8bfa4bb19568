//! The group of a lease.

use crate::types::string_newtype::string_newtype;

string_newtype!(
    /// The name that several leases share, so that a caller that knows it can release or refresh them together: a text of 1
    /// to 256 bytes without NUL. An acquire refuses the same as of a [`Key`](crate::Key).
    ///
    /// It is not a secret: each listing of a lease shows it.
    Group, 256, "a group name", "name what the leases have in common"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::parse_error::ParseError;

    #[test]
    fn a_bad_group_is_refused() {
        assert!("g".repeat(256).parse::<Group>().is_ok());
        for text in ["", "a\0b", "g".repeat(257).as_str()] {
            assert!(matches!(text.parse::<Group>(), Err(ParseError(_))));
        }
    }
}

//! The owner of a lease, a name for people.

use crate::types::string_newtype::string_newtype;

string_newtype!(
    /// The owner of a lease or of an acquire, a name for people. It decides nothing.
    ///
    /// Two processes with the same owner still exclude each other: the [`LeaseId`](crate::LeaseId) identifies a lease.
    /// Default: `host/pid/random`.
    ///
    /// Another process may have chosen it, with any characters. `Display` writes it as it is. `Debug` quotes and escapes
    /// it: use `{:?}` for logs and terminals, as [`Error`](crate::Error) does.
    Owner, 1024, "an owner", "name the holder, or use the default"
);

impl Owner {
    /// Names this process: host, process id and a random part.
    #[must_use]
    pub fn of_this_process() -> Self {
        let host = gethostname::gethostname();
        // A host name has at most 255 bytes on each system, so the whole stays far below the limit.
        let text =
            format!("{}/{}/{:08x}", host.to_string_lossy().replace('\0', ""), std::process::id(), fastrand::u32(..));
        Self(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::parse_error::ParseError;

    #[test]
    fn the_default_owner_names_host_and_process_and_differs_each_time() {
        let owner = Owner::of_this_process();
        let parts: Vec<_> = owner.as_str().split('/').collect();
        assert_eq!(parts.len(), 3, "{owner}");
        assert_eq!(parts[1], std::process::id().to_string());
        assert_ne!(owner, Owner::of_this_process());
        assert_eq!(owner.as_str().parse::<Owner>().unwrap(), owner);
    }

    #[test]
    fn a_bad_owner_is_refused() {
        for text in ["", "a\0b", "o".repeat(1025).as_str()] {
            assert!(matches!(text.parse::<Owner>(), Err(ParseError(_))));
        }
    }
}

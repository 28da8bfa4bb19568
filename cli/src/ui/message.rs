//! Messages on the standard error.

use std::io::{self, Write};

use super::escape;

/// Prints a line to the standard error, with characters that act on a terminal escaped. Ignores a closed pipe.
pub(crate) fn print_message(line: &str) {
    drop(writeln!(io::stderr(), "mongoseal: {}", escape::visible(line)));
}

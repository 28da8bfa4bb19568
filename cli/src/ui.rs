//! What the program prints: lines, tables, JSON, messages.

pub(crate) mod escape;
pub(crate) mod json;
pub(crate) mod message;
pub(crate) mod output;
pub(crate) mod prometheus;
pub(crate) mod table;
pub(crate) mod wrap;

//! What is promised, and how it is kept.

#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../docs/protocol.md")]
pub mod protocol {}

#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}

#[doc = include_str!("../docs/fencing.md")]
pub mod fencing {}

#[doc = include_str!("../docs/jobs.md")]
pub mod jobs {}

#[doc = include_str!("../docs/failure-modes.md")]
pub mod failure_modes {}

#[doc = include_str!("../docs/privileges.md")]
pub mod privileges {}

#[doc = include_str!("../docs/cli.md")]
pub mod cli {}

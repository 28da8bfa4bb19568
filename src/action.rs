//! The builders of the verbs: a method of the handle or of a lease makes each, and its options are setters on it.
//!
//! An option is checked when the builder is awaited or run.

// In the order of use, which the documentation of the handle has.
pub(crate) mod acquire;
pub(crate) mod acquire_all;
pub(crate) mod acquire_any;
pub(crate) mod acquire_options;
mod with;

pub(crate) mod once;
pub(crate) mod resume;
pub(crate) mod value;

pub(crate) mod group;
mod inspect;
pub(crate) mod list;
mod now;
pub(crate) mod purge;
mod raise;
pub(crate) mod revoke;
pub(crate) mod watch;

pub use acquire::Acquire;
pub use acquire_all::AcquireAll;
pub use acquire_any::AcquireAny;
pub use group::RefreshedGroup;
pub use list::Leases;
pub use once::{RewindTick, RunOnce};
pub use resume::Resume;
pub use revoke::Revoke;
pub use value::PutValue;

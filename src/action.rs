//! The verbs of a handle: one file for each verb, with its builder and its checks.

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

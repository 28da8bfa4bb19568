//! The verbs of a handle: one file for each verb, with its builder and its checks.

pub(crate) mod acquire;
pub(crate) mod acquire_all;
pub(crate) mod acquire_any;
pub(crate) mod acquire_options;
pub(crate) mod group;
mod inspect;
pub(crate) mod list;
mod now;
pub(crate) mod once;
pub(crate) mod purge;
mod raise;
pub(crate) mod resume;
pub(crate) mod revoke;
pub(crate) mod value;
pub(crate) mod watch;
mod with;

//! The commands, one file each.

pub(crate) mod acquire;
pub(crate) mod audit;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod doctor;
mod driver;
pub(crate) mod elect;
pub(crate) mod fences;
mod finding;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod leader;
mod lease_file;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod once;
pub(crate) mod purge;
pub(crate) mod raise;
#[cfg(feature = "redis")]
mod redis;
pub(crate) mod refresh;
pub(crate) mod release;
pub(crate) mod revoke;
pub(crate) mod run;
pub(crate) mod show;
mod status_file;
pub(crate) mod value;
pub(crate) mod verify;
pub(crate) mod watch;

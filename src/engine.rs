//! The engine: the tasks that acquire, refresh and release leases, and the state that they share.

pub(crate) mod acquire_task;
pub(crate) mod call_limit;
pub(crate) mod confirm;
pub(crate) mod context;
pub(crate) mod end_action;
pub(crate) mod handle_inner;
pub(crate) mod held_lease;
pub(crate) mod keeper;
pub(crate) mod lease_inner;
pub(crate) mod lease_state;
pub(crate) mod mailbox;
pub(crate) mod notifier;
pub(crate) mod observer;
pub(crate) mod owned_runtime;
pub(crate) mod refresh;
pub(crate) mod registry;
pub(crate) mod release;
pub(crate) mod release_batch;
pub(crate) mod resume;
pub(crate) mod retry;
pub(crate) mod retry_policy;
pub(crate) mod schedule;
pub(crate) mod settings;
pub(crate) mod siblings;
pub(crate) mod ungiven;
pub(crate) mod value;

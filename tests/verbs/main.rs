//! The engine on the memory store, on paused time: what it does when the store does not.

#![allow(clippy::disallowed_methods, reason = "a test spawns as users do")]

mod acquire_all;
mod acquire_any;
mod bad_input;
mod batch;
mod blocking;
mod cancel_safety;
mod candidates;
mod compare_and_swap;
mod connectors;
mod crowd;
mod deadline;
mod downgrade;
mod election;
mod eligibility;
mod everywhere;
mod faulty;
mod groups;
mod holds;
mod in_memory;
mod inspect;
mod leadership;
mod lease;
mod metrics;
mod names;
mod now;
mod once;
mod own_code;
mod raise;
mod recorded_spans;
mod resume;
mod retry;
mod revoke;
mod round_trip;
mod runtimes;
mod shutdown;
mod siblings;
mod slow;
mod spans;
mod testing;
mod tokens;
mod tracing;
mod upgrade;
mod value;
mod waiting;
mod watch;
mod watch_prefix;
mod with;
mod world;

use std::time::Duration;

use mongoseal_test_support::{by_length, millis, secs};

/// The default grace of a lease with a ttl of 5 seconds or more.
const GRACE: Duration = millis(500);

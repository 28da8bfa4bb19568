//! `run`, `once`, `elect`, `leader`, `verify`, `hold` and `acquire`: the real program on a real replica set, with signals, kills and faults.

#![allow(clippy::disallowed_methods, reason = "a test measures time by the clocks it is about, and spawns as users do")]
#![allow(
    clippy::unchecked_time_subtraction,
    reason = "a test that finds a time before its cause fails, and that is right"
)]

mod election;
#[path = "../ended.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod ended;
mod endings;
mod escapees;
mod hold_example;
mod init;
mod killed;
mod once;
mod options;
mod pipe;
mod recipes;
mod released;
#[path = "../sandbox.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod sandbox;
mod scripts;
mod secrets;
mod statuses;
mod terminal;
mod unkillable;
mod value;

use mongoseal_test_support::{by_length, eventually, millis, secs};

//! Model checking of hold limits and of the ticks of a schedule.
//!
//! Purpose: to find each order of steps in which a tick is completed twice, a completed work runs again, a minimum hold
//! is cut short, or a holder believes past its maximum hold.
//!
//! Mechanism: up to three runners and an operator send requests to the library's real state machine, with faults between
//! them. The record is never deleted and no clock jumps, so the version alone numbers tokens: a token is the number of
//! its grant.
//!
//! Invariant: a rule is taken out of the state machine in [`altered`], or out of the runners. The promises in [`promises`]
//! stay.

mod actions;
mod altered;
mod config;
mod promises;
mod rules;
mod runner;
mod safety;
mod server;
mod state;

//! The API for callers without async.
//!
//! The verbs, options and errors are those of the asynchronous API. A verb that has options is the same type in both, with
//! [`Blocking`] as its parameter here, and ends with `run()`. A call blocks its thread until the answer is there.
//!
//! ```
//! use std::time::Duration;
//! use mongoseal::blocking::Mongoseal;
//!
//! fn main() -> mongoseal::Result<()> {
//!     let seal = Mongoseal::in_memory()?; // or Mongoseal::connect("mongodb://db0,db1,db2/app?replicaSet=rs0")?
//!     let lease = seal.acquire("reports/nightly").wait(Duration::from_secs(5)).run()?;
//!
//!     let pages = lease.run(|lease| {
//!         let mut pages = 0;
//!         while pages < 3 && lease.is_valid() {
//!             pages += 1; // pass the token to the storage
//!         }
//!         pages
//!     })?;
//!     println!("wrote {pages} pages");
//!
//!     lease.release()?;
//!     seal.shutdown();
//!     Ok(())
//! }
//! ```
//!
//! # Threads
//!
//! A [`Mongoseal`] starts a runtime with two worker threads, and a thread that waits for its end. Refreshes, releases and
//! change streams run there, so a lease stays held while its caller computes. Clones and [siblings](Builder::sibling_of)
//! share the threads. The closure of a [`Retry`](crate::Retry) policy and an observer run there, or on the thread of the call.
//!
//! # What blocks
//!
//! Each verb of a handle and each request of a lease: at most the operation timeout, and longer for a wait or a retry. An
//! iterator of events blocks until the next event. Getters, such as [`Lease::is_valid`](crate::Lease::is_valid), read memory and return at once. A call
//! cannot be cancelled. A [`Mongoseal::shutdown`] on another thread ends the calls that wait, with an error.
//!
//! # Work
//!
//! The asynchronous API drops work when its lease is lost. A closure cannot be dropped. So [`Lease::run`] passes the
//! lease to the closure, which [checks](crate::Lease::check) it before each step. The result is [`Error::Lost`](crate::Error::Lost) if the
//! lease was lost meanwhile. [`Lease::watchdog`](crate::Lease::watchdog) aborts the process if work continues past the deadline.
//!
//! # Drop and exit
//!
//! Dropping a lease releases it in the background, and never blocks. The threads end after the last handle and the last
//! lease: when the releases are answered, or after the operation timeout. An open change stream keeps them for 10 to 20
//! seconds; [`Mongoseal::shutdown`] ends it at once.
//!
//! The end of the process waits for nothing: not for a release in the background. A lease that was not released ends by its
//! ttl. Call [`Lease::release`] or [`Mongoseal::shutdown`] before the process ends. A handle in a `static` is never dropped,
//! and needs the call, too.
//!
//! # In asynchronous code
//!
//! All calls and drops are allowed inside of a runtime, and none of them panics there. But a call blocks its thread, and the
//! tasks of that thread wait; it also starts a thread for its time. In asynchronous code use the asynchronous API, or call this
//! one in `spawn_blocking`.
//!
//! # Fork
//!
//! Threads do not survive a fork. In the child process a call on a handle of the parent blocks for ever. Make the handle after
//! the fork.
//!
//! # The rest of the API
//!
//! [`Mongoseal::block_on`] runs a future on the threads of the handle: for an [`Elector`](crate::election::Elector), a
//! [transaction](crate::Lease::transaction), or a fenced write of an asynchronous client.

mod executor;
mod handle;
mod lease;
mod open;
mod verb;

pub use executor::{Blocking, StreamIter};
pub use handle::Mongoseal;
pub use lease::{Held, Leader, Lease, LeaseSet, TickLease};
pub use open::Builder;
pub use verb::{Acquire, AcquireAll, AcquireAny, Campaign, Leases, PutValue, Resume, Revoke, RewindTick, RunOnce};

//! The runtimes of the callers, on which tasks run.
//!
//! Purpose: a process may have several runtimes. One that is not driven any more keeps all that its tasks hold, such as a
//! permit or a change stream, and one that has ended drops its tasks.
//!
//! Mechanism: a task runs on the runtime that starts it, unless its handle has a thread of its own. What tasks wait for
//! is kept for each runtime, in a [`ByRuntime`] or by the id of the runtime.
//!
//! Invariant: no task waits for what a task of another runtime holds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::runtime::{Handle, Id};

use crate::types::{
    error::{Error, Result, Source},
    lock::lock,
};

/// The runtime in which this is called. Tokio would panic without one.
pub(crate) fn current() -> Result<Handle> {
    Handle::try_current().map_err(|source| {
        Error::invalid("no tokio runtime is running here: call this inside of one, or use the module `blocking`")
            .caused_by(source)
    })
}

/// The id of the runtime in which this is called, if there is one.
pub(crate) fn id() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// The error of a call whose task was dropped by its runtime.
pub(crate) fn ended(cause: impl Into<Source>) -> Error {
    Error::unavailable("the task of this request ended early: retry on a running runtime").caused_by(cause)
}

/// A value for each runtime.
#[derive(Debug)]
pub(crate) struct ByRuntime<T>(Mutex<HashMap<Option<Id>, Arc<T>>>);

impl<T> ByRuntime<T> {
    /// Returns the value of the runtime in which this is called.
    pub(crate) fn here(&self, new: impl FnOnce() -> T) -> Arc<T> {
        let runtime = id();
        let mut all = lock(&self.0);
        // A runtime that does not use its value needs none, and may have ended.
        all.retain(|id, value| *id == runtime || Arc::strong_count(value) > 1);
        Arc::clone(all.entry(runtime).or_insert_with(|| Arc::new(new())))
    }
}

impl<T> Default for ByRuntime<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_has_a_value_of_its_own_and_that_of_one_that_does_not_use_it_is_forgotten() {
        let all = ByRuntime::default();
        let runtime = || tokio::runtime::Runtime::new().unwrap();
        let (one, other) = (runtime(), runtime());
        let here = || async { all.here(|| ()) };
        let of_one = one.block_on(here());
        assert!(Arc::ptr_eq(&of_one, &one.block_on(here())));
        assert!(!Arc::ptr_eq(&of_one, &other.block_on(here())));
        all.here(|| ());
        assert_eq!(all.0.lock().unwrap().len(), 2, "that of `one`, which is in use, and that without a runtime");
        drop(of_one);
        all.here(|| ());
        assert_eq!(all.0.lock().unwrap().len(), 1);
    }
}

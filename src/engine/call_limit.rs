//! When a call ends that sends several requests.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::context::Context;
use crate::types::deadline::Deadline;

/// When a call ends: at the operation timeout, or, if it has waited for a key, after its wait and the operation timeout. All
/// requests of the call share one.
#[derive(Clone, Debug)]
pub(crate) struct CallLimit {
    unless_waited: Deadline,
    after_wait: Deadline,
    has_waited: Arc<AtomicBool>,
}

impl CallLimit {
    /// The limit of a call that begins now.
    pub(crate) fn new(context: &Context, after_wait: Deadline) -> Self {
        let unless_waited = context.operation_deadline().or_at(after_wait.reading());
        Self { unless_waited, after_wait, has_waited: Arc::default() }
    }

    /// The deadline of the next request.
    pub(crate) fn next(&self, context: &Context) -> Deadline {
        if self.has_waited.load(Ordering::Relaxed) {
            context.operation_deadline().or_at(self.after_wait.reading())
        } else {
            self.unless_waited
        }
    }

    /// The call was queued, or refused and retries.
    pub(crate) fn note_wait(&self) {
        self.has_waited.store(true, Ordering::Relaxed);
    }
}

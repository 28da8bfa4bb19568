//! When a call ends that sends several requests.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::context::Context;
use crate::types::deadline::Deadline;

/// How much longer a caller waits for the task of its call, which ends by itself if its runtime is driven.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

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
        let unless_waited = context.operation_deadline().or_at(after_wait.instant());
        Self { unless_waited, after_wait, has_waited: Arc::default() }
    }

    /// The deadline of the next request.
    pub(crate) fn next(&self, context: &Context) -> Deadline {
        if self.has_waited.load(Ordering::Relaxed) {
            context.operation_deadline().or_at(self.after_wait.instant())
        } else {
            self.unless_waited
        }
    }

    /// Waits for the answer of the task of the call. `None`: the task has not ended in time.
    pub(crate) async fn wait_for<T>(&self, context: &Context, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = pin!(answer);
        loop {
            let has_waited = self.has_waited.load(Ordering::Relaxed);
            if let Some(answer) = self.next(context).later_by(ANSWER_MARGIN).wait_for(&mut answer).await {
                return Some(answer);
            }
            let waits = has_waited || self.has_waited.load(Ordering::Relaxed);
            if !waits || self.after_wait.has_passed() {
                return None;
            }
        }
    }

    /// The call was queued, or refused and retries.
    pub(crate) fn note_wait(&self) {
        self.has_waited.store(true, Ordering::Relaxed);
    }
}

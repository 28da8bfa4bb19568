//! The reset of a schedule by an operator.

use std::sync::Arc;

use crate::{
    engine::{
        confirm::{Proof, stale_error},
        handle_inner::HandleInner,
    },
    handle::{Async, Mongoseal, awaitable},
    record::{self, CompletedTick, Outcome, Request},
    store::answers::{Applied, Snapshot},
    types::{error::Result, into_name::IntoName, key::Key, owner::Owner},
};

impl Mongoseal {
    /// Lowers the last completed tick of a schedule, so that the ticks after `to` can run again. For operators: after a tick
    /// whose number was too large, or to run a tick again. Nothing is sent until the returned builder is awaited.
    ///
    /// A reset never raises the last completed tick. It neither ends nor begins a run, and leaves a tick that is completed
    /// while it is sent. 0 allows all ticks.
    pub fn rewind_tick(&self, key: impl IntoName<Key>, to: u64) -> RewindTick {
        RewindTick::new(self, key, to, Async)
    }
}

/// Lowers the last completed tick of a schedule. Awaiting it returns the last completed tick after that, if there is one.
///
/// [`Mongoseal::rewind_tick`] makes it.
///
/// # Errors
///
/// - [`Error::Unavailable`](crate::Error::Unavailable): the store did not confirm the reset within the operation timeout. It may have been applied.
///   Retry; a second reset does no harm.
/// - [`Error::Invalid`](crate::Error::Invalid), [`Error::Corrupt`](crate::Error::Corrupt): a retry fails in the same way.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer. The reset may still be applied.
///
/// # Examples
///
/// ```
/// # use mongoseal::{Mongoseal, OnceOutcome, Tick};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// # let seal = Mongoseal::in_memory();
/// let run = async || seal.once("batches", Tick::number(7)).run(async |_| -> mongoseal::Result<()> { Ok(()) }).await;
/// run().await?;
/// let last = seal.rewind_tick("batches", 6).by("olga").await?;
/// assert_eq!(last.map(|last| last.tick), Some(6));
/// assert_eq!(run().await?, OnceOutcome::Ran(()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is reset until this is awaited or run"]
pub struct RewindTick<M = Async> {
    handle: Arc<HandleInner>,
    key: Result<Key>,
    to: u64,
    by: Result<Owner>,
    pub(crate) mode: M,
}

impl<M> RewindTick<M> {
    pub(crate) fn new(seal: &Mongoseal, key: impl IntoName<Key>, to: u64, mode: M) -> Self {
        let (handle, by) = (Arc::clone(&seal.handle), Ok(seal.owner().clone()));
        Self { handle, key: key.into_name(), to, by, mode }
    }

    /// Sets the name of the operator, which the record keeps. Default: the owner of the handle.
    pub fn by(mut self, operator: impl IntoName<Owner>) -> Self {
        self.by = operator.into_name();
        self
    }

    pub(crate) async fn send(self) -> Result<Option<CompletedTick>> {
        let Self { handle, key, to, by, mode: _mode } = self;
        let (key, by, context) = (key?, by?, &handle.context);
        context.ensure_open()?;
        let until = context.operation_deadline();
        let read = context.read_record(&key, until).await?;
        let Some(done) = read.and_then(|Snapshot { record, .. }| record.done) else { return Ok(None) };
        if done.tick <= to {
            return Ok(Some(done));
        }
        // Only the completion that was read, so that a repeated request does not undo the next one.
        let upto = done.token;
        let request = Request::Reset(record::Reset { tick: to, upto, by: by.as_str().to_owned() });
        let is_reset = |done: &CompletedTick| done.tick <= to || done.token > upto;
        let (key, request) = (&key, &request);
        let reset = context.request(until, |deadline| async move {
            let done = match context.store.apply(key, request.clone(), deadline).await? {
                Proof::Answer(Applied { outcome: Outcome::Reset { done }, .. }) => done,
                Proof::Answer(answer) => return Err(answer.outcome.unexpected("a reset")),
                Proof::Record(read) => read.and_then(|Snapshot { record, .. }| record.done),
            };
            if done.as_ref().is_none_or(is_reset) { Ok(done) } else { Err(stale_error()) }
        });
        reset.await
    }
}

awaitable!(RewindTick => Option<CompletedTick>);

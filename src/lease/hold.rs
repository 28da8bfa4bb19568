//! What a holder does with its lease: it checks it, runs work under it, refreshes and releases it.

use std::{pin::pin, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Lease, state_stream, work};
use crate::{
    engine::{
        confirm::{Proof, loss_of, loss_or_stale, stale_error},
        context::Context,
        held_lease::TASK_MARGIN,
        lease_state::{LeaseState, ReleaseOutcome},
        mailbox::RefreshCommand,
        retry,
    },
    record::Request,
    spans,
    store::answers::{Applied, Snapshot},
    types::{
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
        lease_id::LeaseId,
        metadata::Metadata,
        owner::Owner,
        token::FencingToken,
        ttl::Ttl,
    },
};

impl Lease {
    /// The token to pass with every write: larger than that of every earlier holder of the key. It does not change
    /// while the lease lives.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease_inner().token
    }

    /// Whether the lease has not ended, as far as this process can know. Needs no request, and reads a clock that runs
    /// while the machine sleeps.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease_inner().is_valid()
    }

    /// Runs `work` while the lease is held: returns its value, or stops it when the lease is over.
    ///
    /// The work is dropped before this returns. Tasks that it spawned are not: pass them a
    /// [`cancellation_token`](Self::cancellation_token). Work that blocks its thread stops only when it yields.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], also if the work ended after the deadline: then part of it ran without the lease.
    /// [`Error::Ended`] if the lease was transferred or the handle was shut down. The value of the work is then dropped.
    /// If the work returns a `Result`, that is the value: `lease.run(work).await?` has it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work. The lease stays.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let pages = lease.run(async { 6 * 7 }).await?;
    /// assert_eq!(pages, 42);
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = Result<F::Output>> {
        work::run_under(self, work)
    }

    /// Releases the lease, and returns whether it was held until then.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the store did not confirm the release within the operation timeout. [`Error::Corrupt`]
    /// or [`Error::Invalid`] if another program wrote over the record or a privilege was removed. The ttl ends the
    /// lease at the latest.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. The lease is released all the same.
    pub async fn release(self) -> Result<ReleaseOutcome> {
        self.end_by_release().await
    }

    /// Returns an error if the lease has ended, as far as this process can know, so that work can leave with `?`. Needs no
    /// request.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], with the cause. [`Error::Ended`] if its holder has ended the lease.
    pub fn check(&self) -> Result<()> {
        self.lease_inner().check()
    }

    /// Waits until the lease is over, and returns its last state: [`Lost`](LeaseState::Lost) with the cause, or
    /// [`Ended`](LeaseState::Ended).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn cancelled(&self) -> LeaseState {
        self.lease_inner().ended.cancelled().await;
        self.lease_inner().state()
    }

    /// A token that is cancelled when the lease ends, for any reason. Cancelling it does not end the lease.
    ///
    /// ```
    /// use mongoseal::{CancellationToken, Mongoseal};
    ///
    /// async fn export(stop: CancellationToken) -> u32 {
    ///     let mut pages = 0;
    ///     while pages < 3 && !stop.is_cancelled() {
    ///         pages += 1;
    ///     }
    ///     pages
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// assert_eq!(export(lease.cancellation_token()).await, 3);
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.lease_inner().ended.child_token()
    }

    /// Checks, by a linearizable read, whether the lease is held at this moment.
    ///
    /// It may end a moment later. Only a storage that checks the token covers that.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lease is not held, and is lost from now on. [`Error::Ended`]: its holder has ended it.
    /// - [`Error::Unavailable`]: the store did not answer within the operation timeout.
    /// - [`Error::Corrupt`] or [`Error::Invalid`]: another program wrote over the record, or a privilege was removed.
    ///   The lease lives on to its deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer and changes nothing.
    pub async fn verify(&self) -> Result<()> {
        let span = spans::verify(self.key(), self.token());
        spans::run(span, ("verified", "not verified"), self.confirm()).await
    }

    /// Refreshes the lease now, as the handle does by itself.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] or [`Error::Ended`]: the lease is over. A refresh never creates it again.
    /// - [`Error::Unavailable`]: the store did not confirm the refresh within the operation timeout.
    /// - [`Error::Corrupt`] or [`Error::Invalid`]: another program wrote over the record, or a privilege was removed.
    ///   The lease lives on to its deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. The refresh may still be applied.
    pub async fn refresh(&self) -> Result<()> {
        self.send_refresh(None, None).await
    }

    /// Refreshes the lease with another ttl, which later refreshes keep. The lease never ends sooner than before, and
    /// keeps its [`grace`](crate::action::Acquire::grace). If this is not confirmed, the store may keep the key for the whole
    /// new ttl although the lease is lost.
    ///
    /// # Errors
    ///
    /// As [`refresh`](Self::refresh), and [`Error::Invalid`] if an acquire would refuse the ttl or the lease has no
    /// expiry.
    ///
    /// # Cancel safety
    ///
    /// As [`refresh`](Self::refresh).
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        if self.lease_inner().has_no_expiry() {
            return Err(Error::invalid("this lease has no expiry to extend: release it, or leave it as it is"));
        }
        let ttl = self.context().settings.check_ttl(ttl, Duration::from_millis(self.lease_inner().grace))?;
        self.send_refresh(Some(ttl), None).await
    }

    /// The key that is held.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.lease_inner().key
    }

    /// The owner of the lease, as other processes see it. A [resumed](crate::Mongoseal::resume) lease keeps the owner of
    /// its acquire.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.lease_inner().owner
    }

    /// The secret id of this lease. With it and the token, [`Mongoseal::resume`](crate::Mongoseal::resume) takes the lease
    /// up again after a restart.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.lease_inner().id
    }

    /// How long the lease lasts without another refresh: zero once it has ended, [`Duration::MAX`] without expiry.
    /// Needs no request.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let lease = self.lease_inner();
        match lease.is_valid() {
            false => Duration::ZERO,
            true if lease.has_no_expiry() => Duration::MAX,
            true => lease.remaining(),
        }
    }

    /// How long the lease lasts at most, however often it is refreshed: the rest of its
    /// [maximum hold](crate::action::Acquire::max_hold), [`Duration::MAX`] without one. Needs no request.
    #[must_use]
    pub fn remaining_hold(&self) -> Duration {
        if self.is_valid() { self.lease_inner().remaining_hold() } else { Duration::ZERO }
    }

    /// The state of the lease now.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        self.lease_inner().state()
    }

    /// Follows the state of the lease. The stream outlives the lease and returns its end.
    pub fn watch_state(&self) -> state_stream::StateStream {
        state_stream::StateStream::new(self.lease_inner())
    }

    /// Reports that the work under this lease makes progress. Needs no request.
    ///
    /// Without [`Acquire::stalled_after`](crate::action::Acquire::stalled_after) this does nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mongoseal::Mongoseal;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("import").stalled_after(Duration::from_secs(120)).await?;
    /// for _page in 0..3 {
    ///     // Import the page, then:
    ///     lease.progress();
    /// }
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn progress(&self) {
        self.lease_inner().record_progress();
    }

    /// Replaces the lease's metadata and refreshes the lease.
    ///
    /// # Errors
    ///
    /// As [`refresh`](Self::refresh).
    ///
    /// # Cancel safety
    ///
    /// As [`refresh`](Self::refresh). The new metadata may still be applied, until the next refresh restores the
    /// metadata that was confirmed.
    pub async fn update_metadata(&self, metadata: Metadata) -> Result<()> {
        self.send_refresh(None, Some(metadata)).await
    }

    async fn send_refresh(&self, ttl: Option<Ttl>, metadata: Option<Metadata>) -> Result<()> {
        let lease = self.lease_inner();
        lease.check()?;
        self.context().ensure_open()?;
        let (reply, done) = oneshot::channel();
        let until = self.context().operation_deadline();
        lease.request_refresh(RefreshCommand { ttl, metadata, until: until.instant(), reply });
        // At the operation timeout the keeper replies with the error of the last attempt.
        match until.later_by(TASK_MARGIN).wait_for(done).await {
            Some(answer) => answer.unwrap_or_else(|_ended| Err(lease.end_error())),
            None => Err(Error::unavailable(
                "the handle did not answer within the operation timeout: drive the runtime in which the handle was made, and retry while the lease is valid",
            )),
        }
    }

    /// Checks whether the lease is held at this moment, as part of an operation that has a span and records the error.
    pub(crate) async fn confirm(&self) -> Result<()> {
        self.check()?;
        if !self.context().store.capabilities().linearizable_reads {
            return Err(Error::invalid(
                "the reads of this store can be outdated, so they verify nothing: rely on the token and a fence",
            ));
        }
        self.read_held().await.map(drop)
    }

    /// Reads the record in which the lease holds the key, which is no older than the grant. If the reads of the store cannot
    /// be outdated, a read that shows no such holder ends the lease.
    pub(crate) async fn read_held(&self) -> Result<Option<Snapshot>> {
        let (lease, store) = (self.lease_inner(), &self.context().store);
        let can_be_outdated = !store.capabilities().linearizable_reads;
        self.until_lost(|deadline| async move {
            let read = store.read_held(&lease.key, deadline).await?;
            match loss_of(lease, read.as_ref()) {
                None => Ok(read),
                Some(_) if can_be_outdated => Err(stale_error()),
                Some(cause) => {
                    lease.lose(cause);
                    Err(lease.end_error())
                }
            }
        })
        .await
    }

    /// Sends a request of the holder until its outcome is known, while the lease is held. If the store has no such holder,
    /// and a read confirms it, the lease is lost.
    pub(super) async fn send(&self, request: Request) -> Result<Applied> {
        let (lease, context, request) = (self.lease_inner(), self.context(), &request);
        self.until_lost(|deadline| async move {
            match context.store.apply(&lease.key, request.clone(), deadline).await? {
                Proof::Answer(answer) => Ok(answer),
                Proof::Record(read) => {
                    lease.lose(loss_or_stale(lease, read.as_ref())?);
                    Err(lease.end_error())
                }
            }
        })
        .await
    }

    /// Repeats an attempt until its outcome is known or the lease is over.
    async fn until_lost<T, F>(&self, attempt: impl FnMut(Deadline) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (lease, context) = (self.lease_inner(), self.context());
        context.ensure_open()?;
        let sent = retry::until_definite(context.operation_deadline(), context.settings.attempt, attempt);
        work::run_while_held(&lease.ended, || lease.check(), pin!(sent)).await?
    }

    pub(crate) fn context(&self) -> &Context {
        &self.handle.context
    }
}

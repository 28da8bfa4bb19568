//! A transaction that cannot commit without its leases.

use std::{sync::Arc, time::Duration};

use mongodb::{
    ClientSession,
    bson::oid::ObjectId,
    error::{Error as DriverError, ErrorKind},
};
use tracing::debug;

use super::{Alive, BoxFuture, error, work_error::WorkError};
use crate::{
    store::{
        MongoStore, Store,
        mongo::{
            error::{self as store_error, needs},
            task,
            transaction::{NotCommitted, begin},
        },
    },
    types::{
        backoff::Backoff,
        deadline::Deadline,
        error::{Error, Result},
        key::Key,
        lease_id::LeaseId,
        token::FencingToken,
    },
};

/// A lease on which a transaction depends.
#[derive(Debug)]
pub(crate) struct TransactionLease {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    pub(crate) token: FencingToken,
}

/// The leases on which a transaction depends, one or more.
pub(crate) struct TransactionLeases {
    pub(crate) store: MongoStore,
    /// In the order of their keys. Of two transactions that write some of the same records, the first to write the first of
    /// these goes on, and the other one is aborted there.
    pub(crate) leases: Arc<[TransactionLease]>,
    /// How long the transaction is retried.
    pub(crate) operation_timeout: Duration,
    /// How long a command may take.
    pub(crate) attempt: Duration,
}

/// The delays between attempts. Most conflicts are with a refresh, which takes milliseconds.
const FIRST_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_millis(320);

/// The tasks of the leases. Its futures are boxed: otherwise the compiler cannot prove that a transaction can be spawned.
pub(crate) trait LeaseProbe: Alive {
    /// Checks at the store that the lease at this index holds.
    fn verify(&self, index: usize) -> BoxFuture<'_, Result<()>>;

    /// Refreshes each lease, so that its next refresh is as late as possible.
    fn refresh(&self) -> BoxFuture<'_, Result<()>>;
}

/// Runs `work` in a transaction until it is committed or cannot be.
pub(crate) async fn run<R, E, F, Kind>(leases: TransactionLeases, probe: &dyn LeaseProbe, mut work: F) -> Result<R, E>
where
    F: AsyncFnMut(&mut ClientSession) -> Result<R, E>,
    E: From<Error> + WorkError<Kind>,
{
    let deadline = Deadline::after(leases.store.clock(), leases.operation_timeout);
    let mut backoff = Backoff::between(FIRST_DELAY, MAX_DELAY);
    let (mut last, mut aborted_in) = (None, None);
    loop {
        let before = aborted_in.take();
        // In the session of the last attempt, so that the server ends what is left of that transaction.
        let mut session = leases.begin(last.take()).await?;
        let (unsettled, was_aborted): (E, bool) = match work(&mut session).await {
            Ok(value) => match leases.settle(session, probe, deadline).await? {
                Settled::Committed => return Ok(value),
                Settled::Retryable { error, session, was_aborted } => {
                    last = session.map(|session| *session);
                    (error.into(), was_aborted)
                }
            },
            Err(error) => {
                last = leases.abort(session, deadline).await;
                if !error::is_transient(error.as_error()) {
                    return Err(error);
                }
                let was_aborted = error::had_aborted(error.as_error());
                (error, was_aborted)
            }
        };
        if was_aborted {
            aborted_in = leases.read_election(deadline).await;
            if aborted_in.is_some() && aborted_in == before {
                return Err(error_was_hidden().caused_by(unsettled.as_error().to_string()).into());
            }
        }
        let next = Deadline::after(deadline.clock(), backoff.next());
        if next.instant() >= deadline.instant() {
            return Err(unsettled);
        }
        debug!("the transaction is retried");
        next.passed().await;
    }
}

/// How a transaction ended whose work is done.
enum Settled {
    Committed,
    /// Nothing was committed, and the work can run again.
    Retryable {
        error: Error,
        session: Option<Box<ClientSession>>,
        /// Whether the server had aborted it before the work was done.
        was_aborted: bool,
    },
}

impl TransactionLeases {
    /// Begins a transaction on a task of its own.
    async fn begin(&self, last: Option<ClientSession>) -> Result<ClientSession> {
        let (store, deadline) = (self.store.clone(), Deadline::after(self.store.clock(), self.attempt));
        task::run(self.store.context.runtime(), deadline, async move {
            let mut session = match last {
                Some(session) => session,
                None => store.context.client().start_session().await?,
            };
            begin(&mut session, deadline).await?;
            Ok(session)
        })
        .await
    }

    /// The election that made the primary, if the server returns one: a router does not.
    async fn read_election(&self, until: Deadline) -> Option<ObjectId> {
        let store = self.store.clone();
        task::run(self.store.context.runtime(), self.attempt_deadline(until), async move {
            store.context.read_election().await
        })
        .await
        .ok()
        .flatten()
    }

    /// The deadline of the next command.
    fn attempt_deadline(&self, until: Deadline) -> Deadline {
        until.or_after(self.attempt)
    }

    /// Aborts a transaction, and waits for that until the deadline at most. If no server answers, the server aborts it
    /// later.
    async fn abort(&self, mut session: ClientSession, until: Deadline) -> Option<ClientSession> {
        let store = self.store.clone();
        let aborted = task::run(self.store.context.runtime(), self.attempt_deadline(until), async move {
            store.context.abort(&mut session).await;
            Ok(session)
        });
        aborted.await.ok()
    }

    /// Checks the leases and commits: until the deadline, or, if the work took longer, for one attempt.
    async fn settle(&self, session: ClientSession, probe: &dyn LeaseProbe, deadline: Deadline) -> Result<Settled> {
        if let Err(ended) = probe.check() {
            self.abort(session, deadline).await;
            return Err(ended);
        }
        let clock = self.store.clock();
        let until = Deadline::at(clock, clock.now().after(self.attempt).max(deadline.instant()));
        let (store, leases) = (self.store.clone(), Arc::clone(&self.leases));
        let touching = task::run(self.store.context.runtime(), Deadline::after(clock, self.attempt), async move {
            let (mut session, mut last, mut touched) = (session, 0, Ok(true));
            for (index, TransactionLease { key, lease, token }) in leases.iter().enumerate() {
                (last, touched) = (index, store.context.touch(&mut session, key, *lease, *token).await);
                if !matches!(touched, Ok(true)) {
                    break;
                }
            }
            Ok((session, last, touched))
        });
        let (session, index, touched) = touching.await?;
        let failed = match touched {
            Ok(true) => return self.commit(session, until).await,
            Ok(false) => None,
            Err(error) if is_misuse(&error) => return Err(refused(error)),
            Err(error) => Some(error),
        };
        let session = self.abort(session, until).await.map(Box::new);
        let was_aborted = failed.as_ref().is_some_and(|error| error::had_aborted(error));
        let error = match failed {
            Some(error) if was_aborted => already_aborted().caused_by(store_error::source(error)),
            Some(error) if error::is_transient(&error) => {
                // The conflict may be with a refresh. If this refresh is not confirmed, the next attempt finds that.
                if let Some(Err(error)) = until.wait_for(probe.refresh()).await
                    && !matches!(error, Error::Unavailable { .. })
                {
                    return Err(error);
                }
                conflicted().caused_by(store_error::source(error))
            }
            Some(error) => {
                let error = self.store.context.translate(error, needs::CHANGE);
                if !matches!(error, Error::Unavailable { .. }) {
                    // The server cannot count up the refreshes of a corrupt record.
                    probe.verify(index).await?;
                }
                error
            }
            None => {
                // Returns the cause if the lease is lost or its record is corrupt.
                probe.verify(index).await?;
                conflicted()
            }
        };
        Ok(Settled::Retryable { error, session, was_aborted })
    }

    /// Commits. If the outcome is unknown or the server cannot do it now, repeats that until the deadline.
    async fn commit(&self, session: ClientSession, deadline: Deadline) -> Result<Settled> {
        let store = self.store.clone();
        let committed = task::run(self.store.context.runtime(), deadline, async move {
            Ok(store.context.commit(session, deadline).await)
        });
        match committed.await.map_err(|error| unknown_outcome().caused_by(error))? {
            Ok(()) => Ok(Settled::Committed),
            Err(NotCommitted::Aborted(session, error)) => {
                let error = conflicted().caused_by(error);
                Ok(Settled::Retryable { error, session: Some(session), was_aborted: false })
            }
            Err(NotCommitted::Unknown(error)) => Err(unknown_outcome().caused_by(error)),
            Err(NotCommitted::Refused(error)) => Err(refused(error)),
        }
    }
}

/// Whether the driver refuses the call because there is no transaction.
fn is_misuse(error: &DriverError) -> bool {
    matches!(*error.kind, ErrorKind::Transaction { .. })
}

/// Translates an error that ends a transaction.
fn refused(error: DriverError) -> Error {
    if is_misuse(&error) {
        return Error::invalid(
            "the transaction was ended by its own work, which must not commit or abort it: return Ok to commit it, or an error to abort it",
        )
        .caused_by(error);
    }
    error.into()
}

fn already_aborted() -> Error {
    Error::unavailable(
        "MongoDB had aborted the transaction before its commit, and nothing was committed: return each error of a statement from the work, and retry",
    )
}

/// The error if the transactions of two runs in a row were aborted under one primary. A step-down aborts a transaction
/// without an error before it, but then the next run is under another primary, or under the same one after another
/// election.
fn error_was_hidden() -> Error {
    Error::invalid(
        "the work went on twice in a transaction that MongoDB had aborted, and nothing was committed: return each error of a statement from the work instead of hiding it, and keep the work shorter than transactionLifetimeLimitSeconds of the server",
    )
}

fn conflicted() -> Error {
    Error::unavailable(
        "the transaction was aborted and nothing was committed, because the lease's record was written meanwhile or a primary was elected: retry, and keep it shorter than a third of the ttl, at which the lease is refreshed",
    )
}

fn unknown_outcome() -> Error {
    Error::unavailable(
        "MongoDB did not confirm the transaction in time, so it may have been committed or not: read before you run it again",
    )
}

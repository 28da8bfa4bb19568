//! A transaction that cannot commit without its leases.

use std::{sync::Arc, time::Duration};

use mongodb::{
    ClientSession,
    bson::oid::ObjectId,
    error::{Error as DriverError, ErrorKind, UNKNOWN_TRANSACTION_COMMIT_RESULT},
};
use tracing::debug;

use super::{Alive, BoxFuture, error, work_error::WorkError};
use crate::{
    Deadline, Error, FencingToken, Key, LeaseId, Result,
    store::{MongoStore, Store, mongo::error as driver},
};

/// A lease that a transaction stands and falls with.
#[derive(Debug)]
pub(crate) struct TransactionLease {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    pub(crate) token: FencingToken,
}

/// All the leases that a transaction stands and falls with, one or more.
pub(crate) struct TransactionLeases {
    pub(crate) store: MongoStore,
    /// In the order of their keys. Of two transactions that write some of the same records, the first to write the first of
    /// these goes on, and the other one is aborted there.
    pub(crate) leases: Arc<[TransactionLease]>,
    /// How long is tried.
    pub(crate) operation_timeout: Duration,
    /// How long one command may take.
    pub(crate) attempt: Duration,
}

/// How long to wait before the second try; it doubles from there, up to the other.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// What keeps the leases. Its futures are boxed, or the compiler cannot tell that a transaction can be
/// spawned.
pub(crate) trait LeaseProbe: Alive {
    /// Whether the lease at this index has ended at the store.
    fn verify(&self, index: usize) -> BoxFuture<'_, Result<()>>;

    /// Sees to it that the next refresh of each is as far ahead as it can be.
    fn refresh(&self) -> BoxFuture<'_, Result<()>>;
}

/// Runs `work` in a transaction until it is committed or cannot be.
pub(crate) async fn run<R, E, F, Kind>(leases: TransactionLeases, probe: &dyn LeaseProbe, mut work: F) -> Result<R, E>
where
    F: AsyncFnMut(&mut ClientSession) -> Result<R, E>,
    E: From<Error> + WorkError<Kind>,
{
    let clock = leases.store.clock();
    let deadline = Deadline::after(clock, leases.operation_timeout);
    let mut pause = PAUSE;
    let (mut last, mut aborted_in) = (None, None);
    loop {
        let before = aborted_in.take();
        // In the session of before, so that the server ends what was left of that transaction.
        let mut session = leases.begin(last.take()).await?;
        let unsettled: E = match work(&mut session).await {
            Ok(value) => match leases.settle(session, probe, deadline).await? {
                Settled::Committed => return Ok(value),
                Settled::Retryable(error, session) => {
                    last = session.map(|session| *session);
                    error.into()
                }
                Settled::Aborted(error, session) => {
                    aborted_in = leases.election(deadline).await;
                    if aborted_in.is_some() && aborted_in == before {
                        return Err(error_was_hidden().caused_by(error).into());
                    }
                    last = session.map(|session| *session);
                    error.into()
                }
                Settled::LeaseUnconfirmed(index, error) => {
                    // Says why, where the lease is lost or its record is not one.
                    probe.verify(index).await?;
                    error.into()
                }
            },
            Err(error) => {
                last = leases.abort(session, deadline).await;
                if !error::is_transient(error.as_error()) {
                    return Err(error);
                }
                if error::had_aborted(error.as_error()) {
                    aborted_in = leases.election(deadline).await;
                    if aborted_in.is_some() && aborted_in == before {
                        return Err(error_was_hidden().caused_by(error.as_error().to_string()).into());
                    }
                }
                error
            }
        };
        if deadline.remaining() <= pause {
            return Err(unsettled);
        }
        debug!(leases = ?leases.leases, "the transaction is tried again");
        clock.sleep_until(clock.now().saturating_add(pause.mul_f64(fastrand::f64().mul_add(0.5, 0.5)))).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

/// What became of a transaction whose work is done.
enum Settled {
    Committed,
    /// It can be tried again.
    Retryable(Error, Option<Box<ClientSession>>),
    /// The server had aborted it before the work was done. It can be tried again.
    Aborted(Error, Option<Box<ClientSession>>),
    /// The lease at this index was not found, or its record could not be written.
    LeaseUnconfirmed(usize, Error),
}

impl TransactionLeases {
    /// Begins a transaction, on a task of its own.
    async fn begin(&self, last: Option<ClientSession>) -> Result<ClientSession> {
        let (store, deadline) = (self.store.clone(), Deadline::after(self.store.clock(), self.attempt));
        MongoStore::run(deadline, async move {
            let mut session = match last {
                Some(session) => session,
                None => store.session().await?,
            };
            MongoStore::begin(&mut session, deadline).await?;
            Ok(session)
        })
        .await
    }

    /// The election that made the primary what it is now, as far as that can be seen: a router does not say.
    async fn election(&self, until: Deadline) -> Option<ObjectId> {
        let store = self.store.clone();
        MongoStore::run(self.attempt_deadline(until), async move { store.election().await }).await.ok().flatten()
    }

    /// When the next command is given up.
    fn attempt_deadline(&self, until: Deadline) -> Deadline {
        until.or_after(self.attempt)
    }

    /// Aborts a transaction, which is not waited for any longer than until then. Where nobody answers, the
    /// server ends it by itself.
    async fn abort(&self, mut session: ClientSession, until: Deadline) -> Option<ClientSession> {
        let aborted = MongoStore::run(self.attempt_deadline(until), async move {
            // The driver says nothing of it where the server did not answer.
            drop(session.abort_transaction().await);
            Ok(session)
        });
        aborted.await.ok()
    }

    /// Makes sure of the leases and commits: until then, or, for work that took so long, for one attempt.
    async fn settle(&self, session: ClientSession, probe: &dyn LeaseProbe, deadline: Deadline) -> Result<Settled> {
        if let Err(ended) = probe.check() {
            self.abort(session, deadline).await;
            return Err(ended);
        }
        let clock = self.store.clock();
        let until = Deadline::at(clock, clock.now().saturating_add(self.attempt).max(deadline.reading()));
        let (store, leases) = (self.store.clone(), Arc::clone(&self.leases));
        let (session, index, touched) = MongoStore::run(Deadline::after(clock, self.attempt), async move {
            let mut session = session;
            let (mut last, mut touched) = (0, Ok(true));
            for (index, TransactionLease { key, lease, token }) in leases.iter().enumerate() {
                last = index;
                touched = store.touch(&mut session, key, *lease, *token).await;
                if !matches!(touched, Ok(true)) {
                    break;
                }
            }
            Ok((session, last, touched))
        })
        .await?;
        match touched {
            Ok(true) => self.commit(session, until).await,
            Ok(false) => {
                self.abort(session, until).await;
                Ok(Settled::LeaseUnconfirmed(index, in_the_way()))
            }
            Err(error) if error::had_aborted(&error) => {
                let session = self.abort(session, until).await;
                Ok(Settled::Aborted(was_aborted().caused_by(driver::source(error)), session.map(Box::new)))
            }
            Err(error) if error::is_transient(&error) => {
                let session = self.abort(session, until).await;
                // It may have been a refresh that was in the way. Where this one is not confirmed, the next
                // try tells.
                tokio::select! {
                    biased;
                    refreshed = probe.refresh() => match refreshed {
                        Ok(()) | Err(Error::Unavailable { .. }) => {}
                        Err(error) => return Err(error),
                    },
                    () = until.passed() => {}
                }
                Ok(Settled::Retryable(in_the_way().caused_by(driver::source(error)), session.map(Box::new)))
            }
            Err(error) if is_misuse(&error) => Err(refused(error)),
            Err(error) => {
                let session = self.abort(session, until).await;
                match self.store.meaning(error) {
                    error @ Error::Unavailable { .. } => Ok(Settled::Retryable(error, session.map(Box::new))),
                    // Of a record that is none the server cannot count anything up.
                    error => Ok(Settled::LeaseUnconfirmed(index, error)),
                }
            }
        }
    }

    /// Commits, and where it is not known whether that was done, again until then.
    async fn commit(&self, mut session: ClientSession, deadline: Deadline) -> Result<Settled> {
        let clock = self.store.clock();
        loop {
            let committed = MongoStore::run(self.attempt_deadline(deadline), async move {
                let committed = session.commit_transaction().await;
                Ok((session, committed))
            });
            let (back, committed) = committed.await.map_err(|error| unknown().caused_by(error))?;
            session = back;
            match committed {
                Ok(()) => return Ok(Settled::Committed),
                Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {
                    if deadline.remaining() <= PAUSE {
                        return Err(unknown().caused_by(error));
                    }
                    clock.sleep_until(clock.now().saturating_add(PAUSE)).await;
                }
                Err(error) if error::is_transient(&error) => {
                    return Ok(Settled::Retryable(in_the_way().caused_by(error), Some(Box::new(session))));
                }
                Err(error) => return Err(refused(error)),
            }
        }
    }
}

/// Whether the driver refuses the call because there is no transaction.
fn is_misuse(error: &DriverError) -> bool {
    matches!(*error.kind, ErrorKind::Transaction { .. })
}

/// What an error means that ends a transaction.
fn refused(error: DriverError) -> Error {
    if is_misuse(&error) {
        return Error::invalid(
            "the transaction was ended by its own work, which must not commit or abort it: return Ok to commit it, or an error to abort it",
        )
        .caused_by(error);
    }
    error.into()
}

fn was_aborted() -> Error {
    Error::unavailable(
        "MongoDB had aborted the transaction before its commit, and nothing was committed: return each error of a statement from the work, and retry",
    )
}

/// What it means that the transactions of two runs in a row were gone under one primary. A step-down ends a transaction
/// without any error before it, and the next run is under another primary, or the same one after another election.
fn error_was_hidden() -> Error {
    Error::invalid(
        "the work went on twice in a transaction that MongoDB had aborted, and nothing was committed: return each error of a statement from the work instead of hiding it, and keep the work shorter than transactionLifetimeLimitSeconds of the server",
    )
}

fn in_the_way() -> Error {
    Error::unavailable(
        "the transaction was aborted and nothing was committed, as other writes of the lease's record or an election cause: retry, and keep it shorter than a third of the ttl, at which the lease is refreshed",
    )
}

fn unknown() -> Error {
    Error::unavailable(
        "it is not known whether the transaction was committed, because MongoDB did not confirm it in time: read before you run it again",
    )
}

//! Asking for a key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::{Instrument, debug, debug_span, field};

use crate::{
    Error, Key, Lease, LeaseId, Metadata, Result, Ttl,
    hold::Hold,
    record::{self, Outcome, Request, Terms},
    refresh::{Keeper, Refreshing},
    retry,
    seal::{self, InUse, Inner},
    store::{Applied, BoxFuture},
};

/// Asks for a key, once: awaiting it gives the [`Lease`], or [`Error::Held`].
///
/// Made by [`Mongoseal::acquire`](crate::Mongoseal::acquire).
///
/// # Errors
///
/// - [`Error::Held`]: somebody else holds the key. Nothing was changed.
/// - [`Error::Unavailable`]: nobody confirmed within the operation timeout. If the request was
///   applied after all, it is taken back in the background, and at the latest its ttl ends it.
/// - [`Error::Invalid`], [`Error::Corrupt`]: asking again gives the same.
///
/// # Cancel safety
///
/// Dropping it gives the key up: if the request was or is being granted, it is released in the
/// background. Nothing stays held by nobody.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::{Error, Mongoseal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal
///     .acquire("reports/nightly")
///     .ttl(Duration::from_secs(60))
///     .metadata("build", "1.4.2")
///     .await?;
///
/// match seal.acquire("reports/nightly").await {
///     Err(Error::Held { owner, token, .. }) => {
///         assert_eq!((&owner, token), (lease.owner(), lease.token()));
///     }
///     other => panic!("one at a time: {other:?}"),
/// }
/// # lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an acquire asks nothing until it is awaited"]
pub struct Acquire {
    inner: Arc<Inner>,
    key: Result<Key>,
    ttl: Duration,
    metadata: Result<Metadata>,
    lease: Option<LeaseId>,
    refreshing: Refreshing,
}

impl Acquire {
    pub(crate) fn new(inner: &Arc<Inner>, key: Result<Key>) -> Self {
        Self {
            inner: Arc::clone(inner),
            key,
            ttl: inner.settings.ttl.duration(),
            metadata: Ok(Metadata::default()),
            lease: None,
            refreshing: Refreshing::AtAThird,
        }
    }

    /// How long the lease lasts without a refresh. Default: the handle's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Adds an entry to what others see of this lease. See [`Metadata`] for its bounds.
    pub fn metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.metadata = self.metadata.and_then(|mut metadata| {
            metadata.insert(name, text)?;
            Ok(metadata)
        });
        self
    }

    /// Asks with this lease id instead of a new random one.
    ///
    /// Who asks with the id of a lease that still holds is given that lease, with its token: so a
    /// process that kept its id takes its own lease up again after a restart. The process before
    /// must have ended: two that use one id both believe they hold it. And an id is spent once its
    /// lease was released or dropped, because a release that was delayed may still be under way.
    ///
    /// An acquire with a chosen id that ends in [`Error::Unavailable`] is not taken back, so that it
    /// can be asked again; the ttl ends what it may have been granted.
    pub fn lease_id(mut self, id: LeaseId) -> Self {
        self.lease = Some(id);
        self
    }

    /// Refreshes this often, at most half the ttl, so that one failure is not the end. Default: a
    /// third of the ttl.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.refreshing = Refreshing::Every(interval);
        self
    }

    /// Does not refresh in the background: the lease ends with its ttl unless
    /// [`Lease::refresh`] is called.
    pub fn without_refresh(mut self) -> Self {
        self.refreshing = Refreshing::ByHand;
        self
    }

    /// Checks what was asked.
    fn checked(self) -> Result<Ask> {
        let Self { inner, key, ttl, metadata, lease, refreshing } = self;
        let ttl = inner.settings.check_ttl(ttl)?;
        refreshing.check(ttl)?;
        let terms = Terms {
            lease: lease.unwrap_or_else(LeaseId::random),
            owner: inner.settings.owner.clone(),
            limit: 0,
            ttl: ttl.millis(),
            grace: u64::try_from(inner.settings.grace.as_millis()).unwrap_or(u64::MAX),
            metadata: metadata?,
        };
        let key = key?;
        inner.runs()?;
        let in_use = inner.use_id(terms.lease)?;
        Ok(Ask { in_use, key, ttl, terms, refreshing, chosen: lease.is_some(), in_doubt: AtomicBool::new(false) })
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease>;
    type IntoFuture = BoxFuture<Result<Lease>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let ask = self.checked()?;
            let inner = Arc::clone(ask.in_use.by());
            let (reply, granted) = oneshot::channel();
            let span = debug_span!("lease", key = %ask.key, owner = %ask.terms.owner, token = field::Empty);
            inner.tasks.spawn(ask.run(reply).instrument(span));
            granted.await.unwrap_or_else(|gone| {
                Err(Error::unavailable("the runtime shut down while a key was asked for: ask again on a running one")
                    .caused_by(gone))
            })
        })
    }
}

/// A checked request for a key, which becomes the task of the lease it is granted.
struct Ask {
    in_use: InUse,
    key: Key,
    ttl: Ttl,
    terms: Terms,
    refreshing: Refreshing,
    /// Whether the caller chose the lease id.
    chosen: bool,
    /// Whether a request was sent whose end is not known.
    in_doubt: AtomicBool,
}

impl Ask {
    /// Asks, answers, and keeps the lease until it ends.
    async fn run(self, reply: oneshot::Sender<Result<Lease>>) {
        let inner = Arc::clone(self.in_use.by());
        let granted = retry::until_definite(inner.clock(), inner.give_up(), inner.settings.attempt, |within| {
            // Looked at between attempts and never within one: what was sent must have come to
            // its end before it can be taken back.
            let stop = if inner.closing.is_cancelled() {
                Some(seal::shut_down())
            } else {
                reply.is_closed().then(|| Error::invalid("nobody asks any more"))
            };
            let attempt = self.attempt(&inner, within);
            async move {
                match stop {
                    Some(error) => Err(error),
                    None => attempt.await,
                }
            }
        })
        .await;
        match granted {
            Ok(hold) => {
                tracing::Span::current().record("token", hold.token.get());
                debug!("granted");
                let (lease, keeper) = Keeper::start(hold, self.ttl, self.refreshing, self.in_use);
                // Whoever is gone drops the lease here, which releases it.
                drop(reply.send(Ok(lease)));
                keeper.run().await;
            }
            Err(error) => {
                debug!(%error, "not granted");
                let in_doubt = self.in_doubt.load(Ordering::Relaxed);
                if in_doubt && (!self.chosen || reply.is_closed()) {
                    drop(reply.send(Err(error)));
                    take_back(&inner, &self.key, self.terms.lease).await;
                } else {
                    // Whoever chose the id may ask again with it at once.
                    drop(self.in_use);
                    drop(reply.send(Err(error)));
                }
            }
        }
    }

    /// Sends the request once.
    async fn attempt(&self, inner: &Inner, within: Duration) -> Result<Hold> {
        let clock = inner.clock();
        let until = clock.now().saturating_add(within);
        inner.prepare(within).await?;
        let request = Request::Acquire(record::Acquire { terms: self.terms.clone(), patience: None });
        // The store counts the ttl from some time after this one.
        let sent = clock.now();
        let answer = inner.store.apply(&self.key, request, until.saturating_sub(sent)).await;
        // A record that cannot be read may have been written all the same.
        if matches!(answer, Err(Error::Unavailable { .. } | Error::Corrupt { .. })) {
            self.in_doubt.store(true, Ordering::Relaxed);
        }
        let Applied { outcome, at } = answer?;
        match outcome {
            Outcome::Granted { token } => {
                let deadline = sent.saturating_add(inner.settings.lasts(self.ttl));
                if clock.now() >= deadline {
                    self.in_doubt.store(true, Ordering::Relaxed);
                    return Err(Error::unavailable(format!(
                        "the answer came after the {:?} it was good for: choose a longer ttl",
                        self.ttl.duration()
                    )));
                }
                let owner = self.terms.owner.clone();
                Ok(Hold::new(self.key.clone(), owner, self.terms.lease, token, clock, deadline))
            }
            Outcome::Refused { holder } => Err(Error::Held {
                key: self.key.clone(),
                remaining: at.map(|at| holder.expires_at.since(at.now)).unwrap_or_default(),
                owner: holder.terms.owner,
                token: holder.version,
            }),
            outcome => Err(Error::invalid(format!("the store answered an acquire with {outcome:?}: it is broken"))),
        }
    }
}

/// Sees to it that a request in doubt leaves nothing held. Where the store cannot be reached the ttl
/// does the same, later.
async fn take_back(inner: &Inner, key: &Key, lease: LeaseId) {
    let released = retry::until_definite(inner.clock(), inner.give_up(), inner.settings.attempt, |within| {
        inner.store.apply(key, Request::Release(record::Release { lease, token: None }), within)
    });
    match released.await {
        Ok(applied) => debug!(outcome = ?applied.outcome, "took back a request in doubt"),
        Err(error) => debug!(%error, "left a request in doubt to its ttl"),
    }
}

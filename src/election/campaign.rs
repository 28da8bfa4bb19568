//! Standing for a leadership, and having it.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Elector, LeaderInfo, LeaderStream, VALUE};
use crate::{
    Error, FencingToken, Key, Lease, Metadata, ReleaseOutcome, Result,
    action::acquire_options::{AcquireOptions, CheckedAcquire},
    engine::{context::Context, refresh::Refreshing, retry::Backoff, shared::Shared},
    store::BoxFuture,
};

/// Stands for a leadership: awaiting it gives the [`Leader`] when it is this one's turn. Candidates queue,
/// and one who resigns or dies is followed by the next in line.
///
/// Made by [`Mongoseal::campaign`](crate::Mongoseal::campaign).
///
/// # Three durations
///
/// | here | with Kubernetes | is | default |
/// |---|---|---|---|
/// | [`ttl`](Self::ttl) | lease duration | how long nobody else leads after a leader was last heard of | the handle's ttl |
/// | [`stop_within`](Self::stop_within) | lease duration less renew deadline | how much earlier than that a leader loses its lease, and has to have stopped | a sixth of the ttl |
/// | [`refresh_every`](Self::refresh_every) | retry period | how often a leader is heard of | a third of the time it leads unheard |
///
/// A leader has to have stopped before anybody else begins, so no default leaves it without time for
/// that, and a time to stop of more than half the ttl is refused: such a leader would be lost by the
/// first answer that is late.
///
/// The handle's [`grace`](crate::Builder::grace) comes on top of the ttl. So a leader has its whole time to stop
/// even if a failover makes a member primary whose clock is ahead.
///
/// # Errors
///
/// As of an [`Acquire`](crate::Acquire) that waits, with [`Error::Held`] where somebody else led until the
/// [`wait`](Self::wait) was over.
///
/// # Cancel safety
///
/// Dropping it withdraws the candidate, also when it was just elected.
///
/// # Examples
///
/// ```
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let leader = seal.campaign("scheduler").value("10.0.0.7:4000").await?;
/// let done = leader.run(async { "scheduled" }).await?; // dropped if the leadership is lost
/// assert_eq!(done, "scheduled");
/// leader.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a campaign does nothing until it is awaited"]
pub struct Campaign {
    name: Result<Key>,
    value: String,
    stop_within: Option<Duration>,
    /// Its ttl is that of the campaign, which [`check`](Self::check) shortens by the time to stop.
    options: AcquireOptions,
}

impl Campaign {
    pub(super) fn new(shared: &Arc<Shared>, name: Result<Key>) -> Self {
        let campaign = Self { name, value: String::new(), stop_within: None, options: AcquireOptions::new(shared) };
        campaign.wait(Duration::MAX)
    }

    /// What others see of this one when it leads, as the address where it can be reached: up to 4,000
    /// bytes. Default: nothing.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
        self
    }

    /// Sets how long nobody else can lead after this candidate was last heard of as the leader. The handle's
    /// [`grace`](crate::Builder::grace) for this ttl comes on top. Default: the handle's ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// How much earlier than that this one loses its lease, so that its work has stopped when the next
    /// one begins. Up to half the ttl; default: a sixth of it.
    pub fn stop_within(mut self, time: Duration) -> Self {
        self.stop_within = Some(time);
        self
    }

    /// How often the lease is refreshed: up to half the time after which it is lost without. Default: a third
    /// of that.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.options.refreshing = Refreshing::Every(interval);
        self
    }

    /// Waits no longer than this for the leadership. Default: for ever.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.options.wait = Some(at_most);
        self
    }

    /// Stands again and again, as an [`Elector`] does. It waits for ever, whatever [`wait`](Self::wait) says.
    pub fn elector(self) -> Elector {
        let clock = self.options.shared.context.clock();
        Elector::new(self.wait(Duration::MAX).check(), clock)
    }

    /// Checks the options.
    fn check(self) -> Result<Stand> {
        let Self { name, value, stop_within, mut options } = self;
        let settings = &options.shared.context.settings;
        let ttl = options.ttl.unwrap_or(settings.ttl.duration());
        let stop_within = stop_within.unwrap_or(ttl.checked_div(6).unwrap_or_default());
        let leads = ttl.saturating_sub(stop_within);
        if leads < stop_within {
            return Err(Error::invalid(format!(
                "a leader with a ttl of {ttl:?} cannot stop {stop_within:?} earlier: choose up to half the ttl, so that one late answer is not the end"
            )));
        }
        // The time to stop, and the handle's grace after that.
        options.grace = Some(stop_within.saturating_add(settings.grace_for(ttl)));
        options.ttl = Some(leads);
        options.metadata(VALUE, value);
        Ok(Stand { name: name?, leads, acquire: options.check()? })
    }
}

/// A campaign whose options fit together.
#[derive(Debug)]
pub(super) struct Stand {
    pub(super) name: Key,
    /// How long it leads without being heard of.
    pub(super) leads: Duration,
    acquire: CheckedAcquire,
}

impl Stand {
    pub(super) async fn elected(&self) -> Result<Leader> {
        Ok(Leader { lease: self.acquire.clone().acquire(self.name.clone()).await? })
    }

    fn context(&self) -> &Arc<Context> {
        &self.acquire.shared.context
    }

    /// Tells of each leader that was not seen before, until an error that asking again does not mend.
    pub(super) async fn tell_of_leaders(&self, call: &mut (dyn FnMut(&LeaderInfo) + Send)) -> Error {
        let mut backoff = Backoff::new();
        let mut last = None;
        loop {
            let mut leaders = match LeaderStream::begin(self.context(), self.name.clone()).await {
                Ok(leaders) => leaders,
                Err(Error::Unavailable { .. }) => {
                    self.pause(&mut backoff, &CancellationToken::new()).await;
                    continue;
                }
                Err(error) => return error,
            };
            while let Some(leader) = leaders.next().await {
                match leader {
                    Ok(Some(incumbent)) if last.replace(incumbent.token) != Some(incumbent.token) => call(&incumbent),
                    Ok(_) => {}
                    Err(error) => return error,
                }
            }
        }
    }

    /// What its clock reads.
    pub(super) fn now(&self) -> Duration {
        self.context().clock().now()
    }

    /// Waits before it stands again, unless it is told to end.
    pub(super) async fn pause(&self, backoff: &mut Backoff, until: &CancellationToken) {
        let next = self.now().saturating_add(backoff.next());
        tokio::select! {
            biased;
            () = until.cancelled() => {}
            () = self.context().clock().sleep_until(next) => {}
        }
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leader>;
    type IntoFuture = BoxFuture<Result<Leader>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.check()?.elected().await })
    }
}

/// A leadership that is held: a [`Lease`] that others look at.
///
/// Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping a leader resigns: bind it to a name, and `_` is none"]
pub struct Leader {
    lease: Lease,
}

impl Leader {
    /// The lease that it is.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The token to pass with every write as leader: larger than that of every leader before.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease.token()
    }

    /// Says another value to others. Those who observe are told. The token stays.
    ///
    /// # Errors
    ///
    /// As [`Lease::update_metadata`], and [`Error::Invalid`] for a value that is too long.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::update_metadata`]: the value may be said all the same.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        let mut metadata = Metadata::default();
        metadata.insert(VALUE, value)?;
        self.lease.update_metadata(metadata).await
    }

    /// Leads no more, and says whether it led to this moment. The next in line is elected by that.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer. It resigns all the same.
    pub async fn resign(self) -> Result<ReleaseOutcome> {
        self.lease.release().await
    }

    /// Does `work` while it leads, as [`Lease::run`] does for a lease.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] where the leadership was lost before the work had ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the work. The leadership stays.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        self.lease.run(work).await
    }
}

/// A leader as the writer at a fence, by its lease.
#[cfg(feature = "mongodb")]
impl<'a> From<&'a Leader> for crate::fence::FencedWriter<'a> {
    fn from(leader: &'a Leader) -> Self {
        leader.lease().into()
    }
}

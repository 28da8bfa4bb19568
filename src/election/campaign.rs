//! Campaigns for a leadership, and the leadership.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Elector, LeaderInfo, LeaderStream, VALUE};
use crate::{
    action::acquire_options::{AcquireOptions, CheckedAcquire},
    engine::{context::Context, lease_state::ReleaseOutcome, refresh::Refreshing, retry::Backoff},
    handle::{Async, Mongoseal, awaitable},
    lease::Lease,
    record::KeyFilter,
    types::{
        error::{Error, Result},
        group::Group,
        instant::Instant,
        into_name::IntoName,
        key::Key,
        lease_id::LeaseId,
        metadata::Metadata,
        token::FencingToken,
    },
};

/// Campaigns for a leadership. Awaiting it returns the [`Leader`] when this candidate is elected. Candidates queue:
/// when a leader resigns or dies, the next in line is elected.
///
/// [`Mongoseal::campaign`](crate::Mongoseal::campaign) makes it.
///
/// # Three durations
///
/// | here | Kubernetes | meaning | default |
/// |---|---|---|---|
/// | [`ttl`](Self::ttl) | renew deadline | how long a leader leads without a refresh | the handle's ttl |
/// | [`stop_margin`](Self::stop_margin) | lease duration less renew deadline | how long the leader has after that to stop, before another candidate leads | a sixth of the ttl |
/// | [`refresh_every`](Self::refresh_every) | retry period | how often the leader refreshes | a third of the ttl |
///
/// A leader must have stopped before another one begins, so no default leaves it without time for that.
///
/// The handle's [`grace`](crate::Builder::grace) comes after the `stop_margin`. So a leader has its whole time to stop even
/// if a failover makes a member primary whose clock is ahead.
///
/// # Errors
///
/// The errors of an [`Acquire`](crate::action::Acquire) that waits. [`Error::Held`] if another candidate led until the
/// [`wait`](Self::wait) ended.
///
/// # Cancel safety
///
/// Dropping the future withdraws the candidate, even if it was just elected.
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
/// let done = leader.lease().run(async { "scheduled" }).await?; // dropped if the leadership is lost
/// assert_eq!(done, "scheduled");
/// leader.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a campaign does nothing until it is awaited or run"]
pub struct Campaign<M = Async> {
    name: Result<Key>,
    value: String,
    stop_margin: Option<Duration>,
    options: AcquireOptions,
    pub(crate) mode: M,
}

impl<M> Campaign<M> {
    pub(crate) fn new(seal: &Mongoseal, name: impl IntoName<Key>, mode: M) -> Self {
        let mut options = AcquireOptions::new(&seal.handle);
        options.is_campaign = true;
        let campaign = Self { name: name.into_name(), value: String::new(), stop_margin: None, options, mode };
        campaign.wait(Duration::MAX)
    }

    /// Sets the value that other processes see while this candidate leads, such as its address: up to 4,000 bytes.
    /// Default: empty.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
        self
    }

    /// Sets the [group](crate::action::Acquire::group) of the leadership's lease.
    pub fn group(mut self, group: impl IntoName<Group>) -> Self {
        self.options.group = group.into_name().map(Some);
        self
    }

    /// Adds an entry to the metadata that other processes see of the leadership's lease. The name `value` is that of the
    /// leader's [`value`](Self::value), and is refused.
    pub fn metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.options.metadata(name, text);
        self
    }

    /// Sets how long this leader leads without a refresh: then its lease is lost. No other candidate leads for the
    /// [`stop_margin`](Self::stop_margin) and the handle's [`grace`](crate::Builder::grace) after that. Default: the handle's
    /// ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets how long no other candidate leads after this leader has lost its lease, so that its work has stopped when the
    /// next leader begins. Default: a sixth of the ttl.
    pub fn stop_margin(mut self, time: Duration) -> Self {
        self.stop_margin = Some(time);
        self
    }

    /// Sets the interval between refreshes: at most half the ttl. Default: a third of it.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.options.refreshing = Refreshing::Every(interval);
        self
    }

    /// Waits for the leadership for at most this long. Default: for ever.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.options.wait = Some(at_most);
        self
    }

    /// Calls `report` when it is queued: as [`Acquire::on_queued`](crate::action::Acquire::on_queued).
    pub fn on_queued(mut self, report: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.options.on_queued(report);
        self
    }

    pub(crate) async fn send(self) -> Result<Leader> {
        self.check()?.campaign(LeaseId::random()).await
    }

    /// Checks the options.
    fn check(self) -> Result<Candidacy> {
        let Self { name, value, stop_margin, mut options, mode: _mode } = self;
        let settings = &options.handle.context.settings;
        let ttl = options.ttl.unwrap_or(settings.ttl.duration());
        let stop_margin = stop_margin.unwrap_or(ttl.checked_div(6).unwrap_or_default());
        options.grace = Some(stop_margin.saturating_add(settings.grace_for(ttl.saturating_add(stop_margin))));
        let metadata = options.metadata.as_ref().ok().cloned().unwrap_or_default();
        if metadata.get(VALUE).is_some() {
            return Err(Error::invalid(
                "`value` cannot be a name in the metadata of a leadership: it is the name of the leader's value",
            ));
        }
        options.metadata(VALUE, value);
        Ok(Candidacy { name: name?, ttl, metadata, acquire: options.check()? })
    }
}

impl Campaign {
    /// Campaigns again and again, as an [`Elector`] does. It waits for ever, whatever [`wait`](Self::wait) is set to.
    pub fn elector(self) -> Elector {
        let clock = self.options.handle.context.clock();
        Elector::new(self.wait(Duration::MAX).check(), clock)
    }
}

/// A campaign with checked options.
#[derive(Debug)]
pub(super) struct Candidacy {
    pub(super) name: Key,
    pub(super) ttl: Duration,
    /// Without the leader's value.
    metadata: Metadata,
    acquire: CheckedAcquire,
}

impl Candidacy {
    /// Campaigns with a lease of this id, which no lease has had.
    pub(super) async fn campaign(&self, id: LeaseId) -> Result<Leader> {
        let lease = self.acquire.clone().acquire_as(self.name.clone(), id).await?.give();
        Ok(Leader { lease, metadata: self.metadata.clone() })
    }

    fn context(&self) -> &Arc<Context> {
        &self.acquire.handle.context
    }

    /// Calls `call` with each leader, with each new value of it, and with `None` while there is none, until an error that a
    /// retry does not remove.
    pub(super) async fn notify_of_leaders(&self, call: &mut (dyn FnMut(Option<&LeaderInfo>) + Send)) -> Error {
        let mut backoff = Backoff::new();
        loop {
            let mut leaders = match LeaderStream::begin(self.context(), KeyFilter::Key(self.name.clone())).await {
                Ok(leaders) => leaders,
                Err(Error::Unavailable { .. }) => {
                    self.pause(&mut backoff, &CancellationToken::new()).await;
                    continue;
                }
                Err(error) => return error,
            };
            while let Some(leader) = leaders.next().await {
                match leader {
                    Ok(leader) => call(leader.as_ref()),
                    Err(error) => return error,
                }
            }
        }
    }

    /// The instant that the clock shows.
    pub(super) fn now(&self) -> Instant {
        self.context().clock().now()
    }

    /// Waits before the next campaign, or until the end is requested.
    pub(super) async fn pause(&self, backoff: &mut Backoff, until: &CancellationToken) {
        let next = self.now().after(backoff.next());
        tokio::select! {
            biased;
            () = until.cancelled() => {}
            () = self.context().clock().sleep_until(next) => {}
        }
    }
}

awaitable!(Campaign => Leader);

/// A leadership: a [lease](Self::lease) that other processes observe. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "a leader resigns when it is dropped, and `let _ =` drops it at once: bind it to a variable"]
pub struct Leader<L = Lease> {
    pub(crate) lease: L,
    /// That of the campaign, without the leader's value.
    pub(crate) metadata: Metadata,
}

impl<L: AsRef<Lease>> Leader<L> {
    /// The lease of the leadership. Work runs under it: see [`Lease::run`].
    pub fn lease(&self) -> &L {
        &self.lease
    }

    /// The token to pass with every write as leader: larger than that of every earlier leader.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease.as_ref().token()
    }

    /// The metadata of the campaign, with this value.
    pub(crate) fn metadata_with(&self, value: impl Into<String>) -> Result<Metadata> {
        let mut metadata = self.metadata.clone();
        metadata.insert(VALUE, value)?;
        Ok(metadata)
    }
}

impl Leader {
    /// Replaces the leader's value, and notifies the observers. The token stays.
    ///
    /// # Errors
    ///
    /// As [`Lease::update_metadata`], and [`Error::Invalid`] if the value is too long.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::update_metadata`]: the value may still be replaced.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        self.lease.update_metadata(self.metadata_with(value)?).await
    }

    /// Resigns, and returns whether it led until then. The next in line is elected.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. The leader resigns all the same.
    pub async fn resign(self) -> Result<ReleaseOutcome> {
        self.lease.release().await
    }
}

/// A leader as the writer at a fence, by its lease.
#[cfg(feature = "mongodb")]
impl<'a, L: AsRef<Lease>> From<&'a Leader<L>> for crate::fence::FencedWriter<'a> {
    fn from(leader: &'a Leader<L>) -> Self {
        leader.lease.as_ref().into()
    }
}

//! The settings of a handle, for all its leases.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use crate::{
    engine::{
        handle_inner::HandleInner,
        observer::{Observer, Observers},
        retry_policy::{OnHeld, Retry},
        settings::{LONGEST_ATTEMPT, Settings},
    },
    handle::{Async, Mongoseal, option_setters},
    store::{Store, runtime::Home},
    types::{
        duration::format_duration,
        error::{Error, Result},
        into_name::IntoName,
        owner::Owner,
        ttl::Ttl,
    },
};

impl Mongoseal {
    /// Starts a builder with the default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// Builds a [`Mongoseal`] with settings other than the defaults.
///
/// ```
/// use std::time::Duration;
/// use mongoseal::Mongoseal;
///
/// let seal = Mongoseal::builder()
///     .owner("reporter-3")
///     .ttl(Duration::from_secs(60))
///     .in_memory()?;
/// assert_eq!(seal.owner().as_str(), "reporter-3");
/// # Ok::<(), mongoseal::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is connected"]
pub struct Builder<M = Async> {
    pub(crate) options: Options,
    mode: PhantomData<fn() -> M>,
}

/// The options of a handle. `None` is the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    owner: Option<Result<Owner, String>>,
    ttl: Option<Duration>,
    grace: Option<Duration>,
    drift_allowance_ppm: Option<u32>,
    retention: Option<Duration>,
    operation_timeout: Option<Duration>,
    queue_limit: Option<u32>,
    wait: Option<Duration>,
    retry: Option<Retry>,
    observers: Observers,
    pub(crate) database: Option<String>,
    pub(crate) collection: Option<String>,
    #[cfg(feature = "mongodb")]
    pub(crate) allow_sharded: bool,
    #[cfg(feature = "mongodb")]
    pub(crate) connections: Option<u32>,
}

const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

impl Default for Builder {
    fn default() -> Self {
        Self { options: Options::default(), mode: PhantomData }
    }
}

impl<M> Builder<M> {
    /// Sets the owner: the name by which other processes see this handle's leases. Default: host, process id and a
    /// random part.
    pub fn owner(mut self, owner: impl IntoName<Owner>) -> Self {
        // Errors are not `Clone` and builders are, so the message is kept.
        self.options.owner = Some(owner.into_name().map_err(|error| error.to_string()));
        self
    }

    option_setters! {
        /// Sets how long a lease lasts without a refresh, unless its acquire sets it. Default: 30 s, because an
        /// ungraceful failover with MongoDB's default election settings took up to 19 s.
        pub fn ttl(ttl: Duration);

        /// Sets how much longer than the ttl the store keeps the key of a holder that stopped refreshing: the
        /// lock-delay of Chubby and Consul. A release ends it at once.
        ///
        /// The grace covers members whose clocks differ. If a failover makes a member primary whose clock is ahead,
        /// that member ends leases sooner, by the difference. As long as the clocks differ by no more than the grace,
        /// the holder still stops first. The cost: the key of a holder that died is free that much later.
        ///
        /// Default: a tenth of the ttl, up to 500 ms and up to what the [`retention`](Self::retention) leaves. For a
        /// lease [without expiry](crate::action::Acquire::without_expiry) the ttl is the handle's. `Duration::ZERO` is no
        /// grace: then, after a failover to a clock that is ahead, two holders can believe that they hold the key.
        pub fn grace(grace: Duration);

        /// Sets how long the record of an idle key is kept: at least as long as the longest ttl. All processes on a
        /// collection must agree, because it is the option of the TTL index. A store that is passed to
        /// [`on_store`](Self::on_store) has its own retention, and another one is refused. Default: 24 hours.
        pub fn retention(retention: Duration);

        /// Sets how far the holder's clock and the store's clock may drift apart, in millionths. A holder stops that much
        /// before its ttl ends. Default: 1,000, a millisecond in each second; NTP slews a clock by at most 500.
        pub fn drift_allowance_ppm(ppm: u32);
    }

    /// Sets the database of the records. Default: that of the connection string, or `mongoseal`. A store without databases
    /// refuses it.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.options.database = Some(name.into());
        self
    }

    /// Sets the collection of the records, which should hold nothing else. On Redis it is the prefix of the keys. Default:
    /// `mongoseal`.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.options.collection = Some(name.into());
        self
    }

    option_setters! {
        /// Sets how long one call may take, with all requests that it sends. Default: 10 s.
        pub fn operation_timeout(timeout: Duration);

        /// Sets how many waiters a key may have; another waiter gets [`Error::QueueFull`]. A waiter takes about 300
        /// bytes of the key's record, and its metadata; MongoDB allows 16 MiB. From 1 to 3,000. Default: 1,000.
        pub fn queue_limit(waiters: u32);

        /// Sets how long an acquire waits for a held key, unless the acquire sets it: see
        /// [`Acquire::wait`](crate::action::Acquire::wait). Default: zero, which is one attempt.
        pub fn wait(at_most: Duration);

        /// Sets the policy by which an acquire retries a held key, unless the acquire sets it: see
        /// [`Acquire::retry`](crate::action::Acquire::retry). It contradicts a [`wait`](Self::wait). Default: one attempt.
        pub fn retry(policy: Retry);
    }

    /// Adds an observer, which receives the [events](crate::observe::HandleEvent) of the handle and its leases. Default: none.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.options.observers.add(observer);
        self
    }

    /// Refuses those of these options that are set, because they have no effect here.
    pub(crate) fn refuse(&self, here: &str, options: &[&str]) -> Result<()> {
        let all: &[(&str, bool)] = &[
            ("database", self.options.database.is_some()),
            ("collection", self.options.collection.is_some()),
            #[cfg(feature = "mongodb")]
            ("allow_sharded", self.options.allow_sharded),
            #[cfg(feature = "mongodb")]
            ("connections", self.options.connections.is_some()),
        ];
        match all.iter().find(|(option, is_set)| *is_set && options.contains(option)) {
            Some((option, _)) => Err(Error::invalid(format!("`{option}` has no effect {here}: leave it out"))),
            None => Ok(()),
        }
    }

    /// Refuses a retention that is not that of the store.
    pub(crate) fn ensure_retention(&self, of_store: Duration) -> Result<()> {
        match self.options.retention {
            Some(retention) if retention != of_store => Err(Error::invalid(format!(
                "`retention` of {} has no effect on this store, which keeps idle records for {}: leave it out",
                format_duration(retention),
                format_duration(of_store)
            ))),
            _ => Ok(()),
        }
    }

    /// Checks the settings.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let Options { owner, ttl, grace, retention, operation_timeout, queue_limit, .. } = &self.options;
        let owner = match owner {
            None => Owner::of_this_process(),
            Some(owner) => owner.clone().map_err(Error::invalid)?,
        };
        let operation_timeout = operation_timeout.unwrap_or(DEFAULT_TIMEOUT);
        if operation_timeout < Duration::from_millis(10) || operation_timeout > Ttl::MAX.duration() {
            return Err(Error::invalid(format!(
                "`operation_timeout` must be from 10 ms to 365 d and {} is not: seconds are usual",
                format_duration(operation_timeout)
            )));
        }
        let queue_limit = queue_limit.unwrap_or(1_000);
        if !(1..=3_000).contains(&queue_limit) {
            return Err(Error::invalid(format!(
                "`queue_limit` must be from 1 to 3,000 waiters and {queue_limit} is not: a record has at most 16 MiB"
            )));
        }
        let drift_ppm = self.options.drift_allowance_ppm.unwrap_or(1_000);
        if drift_ppm > 500_000 {
            return Err(Error::invalid(format!(
                "`drift_allowance_ppm` cannot be {drift_ppm}, which is more than half: choose less, 1,000 covers any clock under NTP"
            )));
        }
        let retention = retention.unwrap_or(DEFAULT_RETENTION);
        if retention > Ttl::MAX.duration() {
            return Err(Error::invalid(format!(
                "`retention` can be at most 365 d and {} is longer: 24 h are usual",
                format_duration(retention)
            )));
        }
        Ok(Settings {
            owner,
            ttl: ttl.map_or(Ok(Ttl::DEFAULT), Ttl::try_from)?,
            grace: *grace,
            drift_ppm,
            retention,
            operation_timeout,
            queue_limit,
            on_held: OnHeld::of(self.options.wait, self.options.retry.clone())?.unwrap_or(OnHeld::Once),
            attempt: operation_timeout.min(LONGEST_ATTEMPT),
            observers: self.options.observers.clone(),
        })
    }

    /// The same settings, for a handle of the other API.
    #[cfg(feature = "blocking")]
    pub(crate) fn with_mode<N>(self) -> Builder<N> {
        Builder { options: self.options, mode: PhantomData }
    }
}

impl Builder {
    /// Makes a handle on a custom store. Handles on clones of one `Arc` share what the store shares. On MongoDB that is
    /// a change stream, and a client that belongs to the store: the last handle that is shut down closes it. Each of them sends
    /// refreshes over a quarter of the store's connections: for many handles, [make siblings](Self::sibling_of).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the settings contradict each other, or if one of them has no effect on a store that is open:
    /// another retention, or the name of a collection.
    pub fn on_store(self, store: Arc<dyn Store>) -> Result<Mongoseal> {
        self.on_store_at(store, Home::here())
    }

    /// Makes a handle on a custom store, whose tasks run on this home.
    pub(crate) fn on_store_at(self, store: Arc<dyn Store>, home: Arc<Home>) -> Result<Mongoseal> {
        self.refuse("on a store that is open", &["database", "collection", "allow_sharded", "connections"])?;
        self.ensure_retention(store.retention())?;
        let settings = Settings { retention: store.retention(), ..self.settings()? };
        Ok(Mongoseal { handle: HandleInner::new(store, settings, home)? })
    }
}

//! The options of an acquire, their checks, and the start of its task.
//!
//! The builders of an acquire, of an acquire of several keys and of a campaign wrap [`AcquireOptions`]. Each option is
//! checked only here, before anything is sent.

use std::{
    collections::BTreeSet,
    panic::resume_unwind,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    engine::{
        acquire_task::AcquireTask,
        call_limit::CallLimit,
        handle_inner::HandleInner,
        observer::{HandleEvent, Observers},
        refresh::Refreshing,
        retry_policy::{Attempts, OnHeld, Retry},
        ungiven::Ungiven,
    },
    record::{HoldLimits, LeaseSpec},
    spans,
    store::runtime,
    types::{
        deadline::Deadline,
        duration::format_duration,
        error::{Error, Result},
        group::Group,
        instant::Instant,
        into_name::IntoName,
        key::Key,
        lease_id::LeaseId,
        metadata::Metadata,
        sharing::Sharing,
        string_newtype::refuse_unseen,
        ttl::{self, Ttl},
    },
};

/// The options of an acquire. `None` is the handle's default.
#[derive(Debug)]
pub(crate) struct AcquireOptions {
    pub(crate) handle: Arc<HandleInner>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) has_expiry: bool,
    /// How many holders may share the key, this one included.
    pub(crate) holders: u32,
    pub(crate) group: Result<Option<Group>>,
    pub(crate) metadata: Result<Metadata>,
    pub(crate) refreshing: Refreshing,
    pub(crate) wait: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) stalled_after: Option<Duration>,
    /// Whether it is a campaign for a leadership.
    pub(crate) is_campaign: bool,
    /// Those of the handle, and of this acquire.
    observers: Observers,
}

impl AcquireOptions {
    pub(crate) fn new(handle: &Arc<HandleInner>) -> Self {
        Self {
            handle: Arc::clone(handle),
            ttl: None,
            grace: None,
            has_expiry: true,
            holders: 1,
            group: Ok(None),
            metadata: Ok(Metadata::default()),
            refreshing: Refreshing::AtAThird,
            wait: None,
            retry: None,
            min_hold: None,
            max_hold: None,
            stalled_after: None,
            is_campaign: false,
            observers: handle.context.settings.observers.clone(),
        }
    }

    /// Calls `report` with the number of waiters ahead when the acquire is queued.
    pub(crate) fn on_queued(&mut self, report: impl Fn(usize) + Send + Sync + 'static) {
        self.observers.add(Arc::new(move |event: &HandleEvent<'_>| {
            if let HandleEvent::Queued { position, .. } = event {
                report(*position);
            }
        }));
    }

    /// Adds an entry to the metadata, unless an earlier one was refused.
    pub(crate) fn metadata(&mut self, name: impl Into<String>, text: impl Into<String>) {
        if let Ok(metadata) = &mut self.metadata
            && let Err(error) = metadata.insert(name, text)
        {
            self.metadata = Err(error);
        }
    }

    /// Checks the options, alone and together.
    pub(crate) fn check(self) -> Result<CheckedAcquire> {
        let hold = self.check_hold()?;
        let Self { handle, ttl, grace, has_expiry, holders, group, metadata, refreshing, wait, retry, .. } = self;
        let (stalled_after, is_campaign, observers) = (self.stalled_after, self.is_campaign, self.observers);
        if holders == 0 {
            return Err(Error::invalid("`shared_up_to` cannot be 0: this lease counts, so pass 1 or more"));
        }
        let settings = &handle.context.settings;
        // Until its first refresh, a lease without expiry has the ttl of the handle.
        let offer = ttl.unwrap_or(settings.ttl.duration());
        let grace = grace.unwrap_or_else(|| settings.grace_for(offer));
        let wait_ttl = settings.check_ttl(offer, grace)?;
        let ttl = match (has_expiry, ttl) {
            (true, _) => wait_ttl,
            (false, None) => Ttl::FOREVER,
            (false, Some(ttl)) => {
                return Err(Error::invalid(format!(
                    "a lease cannot have a ttl of {} and be without expiry: leave one of them out",
                    format_duration(ttl)
                )));
            }
        };
        let refreshing = refreshing.checked(ttl, wait_ttl)?;
        let on_held = OnHeld::of(wait, retry)?.unwrap_or_else(|| settings.on_held.clone());
        let (group, metadata) = (group?, metadata?);
        group.as_ref().map_or(Ok(()), |group| refuse_unseen(group.as_str(), "a group name"))?;
        Ok(CheckedAcquire {
            handle,
            ttl,
            wait_ttl,
            grace,
            sharing: Sharing::from_limit(holders),
            group,
            metadata,
            hold,
            stalled_after,
            refreshing,
            on_held,
            limit: None,
            is_campaign,
            observers,
        })
    }

    /// Checks the limits of the hold.
    fn check_hold(&self) -> Result<HoldLimits> {
        let Self { min_hold, max_hold, stalled_after, has_expiry, .. } = self;
        let limits = [("`max_hold`", max_hold.is_some()), ("`stalled_after`", stalled_after.is_some())];
        let named: Vec<_> = limits.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        if !has_expiry && !named.is_empty() {
            return Err(Error::invalid(format!(
                "a lease without expiry ends by a release or a revocation only: leave out {}, or give the lease a ttl",
                named.join(" and ")
            )));
        }
        if stalled_after.is_some_and(|time| time.is_zero()) {
            return Err(Error::invalid(
                "a holder that stalls after no time has no lease: let `stalled_after` be longer",
            ));
        }
        let millis = |name: &str, limit: &Option<Duration>| match limit {
            None => Ok(None),
            Some(time) => Ttl::try_from(*time).map(|time| Some(time.millis())).map_err(|_| {
                Error::invalid(format!(
                    "`{name}` cannot be {}: choose from {} to {}",
                    format_duration(*time),
                    format_duration(Ttl::MIN.duration()),
                    format_duration(Ttl::MAX.duration())
                ))
            }),
        };
        let hold = HoldLimits { min: millis("min_hold", min_hold)?, max: millis("max_hold", max_hold)? };
        if let (Some(min), Some(max)) = (hold.min, hold.max)
            && min > max
        {
            return Err(Error::invalid(format!(
                "a lease cannot be held for at least {} and at most {}: let `min_hold` be shorter",
                format_duration(Duration::from_millis(min)),
                format_duration(Duration::from_millis(max))
            )));
        }
        Ok(hold)
    }
}

/// Refuses a key that a person would take for another one.
pub(crate) fn ensure_acquirable(key: &Key) -> Result<()> {
    Ok(refuse_unseen(key.as_str(), "a key")?)
}

/// Checks the keys of an acquire of several, and returns them in the order given.
pub(crate) fn several(keys: impl IntoIterator<Item: IntoName<Key>>) -> Result<Vec<Key>> {
    let keys = keys.into_iter().map(IntoName::into_name).collect::<Result<Vec<Key>>>()?;
    if keys.is_empty() {
        return Err(no_key_error());
    }
    let mut seen = BTreeSet::new();
    for key in &keys {
        ensure_acquirable(key)?;
        if !seen.insert(key) {
            return Err(Error::invalid(format!("the key {key:?} is given twice: name each key once")));
        }
    }
    Ok(keys)
}

/// The error of an acquire of several keys without a key.
pub(crate) fn no_key_error() -> Error {
    Error::invalid("no key is given: name one or more")
}

/// Checked options. One value can acquire several keys, or one key several times.
#[derive(Clone, Debug)]
pub(crate) struct CheckedAcquire {
    pub(crate) handle: Arc<HandleInner>,
    ttl: Ttl,
    /// The ttl of a place in the queue and of a lease that was just granted.
    wait_ttl: Ttl,
    grace: Duration,
    sharing: Sharing,
    group: Option<Group>,
    metadata: Metadata,
    hold: HoldLimits,
    stalled_after: Option<Duration>,
    refreshing: Refreshing,
    pub(crate) on_held: OnHeld,
    /// The end of the call of which the acquire is a part.
    limit: Option<CallLimit>,
    is_campaign: bool,
    observers: Observers,
}

impl CheckedAcquire {
    /// Waits up to this long if the key is held; zero is one attempt.
    pub(crate) fn wait(mut self, at_most: Duration) -> Self {
        self.on_held = OnHeld::wait(at_most);
        self
    }

    /// If the key is held, waits until a holder with these options that dies has lost it. If the handle waits or retries, the
    /// acquire does that. The second beyond the ttl and the grace is for the request that finds the expiry.
    pub(crate) fn wait_for_a_dead_holder(self) -> Self {
        if !matches!(self.on_held, OnHeld::Once) {
            return self;
        }
        let lost = self.wait_ttl.duration().saturating_add(self.grace).saturating_add(Duration::from_secs(1));
        self.wait(lost)
    }

    /// Calls `attempt` by the policy: once, with the time to wait, or after each delay of a retry.
    pub(crate) async fn attempts<T, F>(&self, attempt: impl Fn(Duration) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let policy = match &self.on_held {
            OnHeld::Once => return attempt(Duration::ZERO).await,
            OnHeld::Wait(wait) => return attempt(*wait).await,
            OnHeld::Retry(policy) => policy,
        };
        let context = &self.handle.context;
        let mut attempts = Attempts::of(policy, context.clock().now());
        loop {
            match attempt(Duration::ZERO).await {
                Err(error) => context.wait_to_retry(attempts.next(error, context.clock().now())?).await?,
                granted => return granted,
            }
        }
    }

    /// Ends with the call of which the acquire is a part.
    pub(crate) fn within(mut self, limit: CallLimit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// When a call that begins now ends. A retry policy has limits of its own.
    pub(crate) fn limit(&self) -> CallLimit {
        let context = &self.handle.context;
        let after_wait = match &self.on_held {
            OnHeld::Once => context.operation_deadline(),
            OnHeld::Wait(wait) => context.operation_deadline().later_by(*wait),
            OnHeld::Retry(_) => Deadline::at(context.clock(), Instant::MAX),
        };
        CallLimit::new(context, after_wait)
    }

    /// Acquires a key on a task, which then keeps the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the key up: the task takes the request back.
    pub(crate) async fn acquire(self, key: Key) -> Result<Ungiven> {
        self.acquire_as(key, LeaseId::random()).await
    }

    /// As [`acquire`](Self::acquire), with this new lease id.
    pub(crate) async fn acquire_as(self, key: Key, id: LeaseId) -> Result<Ungiven> {
        let span = spans::acquire(&key, &self.handle.context.settings.owner);
        let request = self.prepare(key, id).inspect_err(|error| spans::end(&span, Err(error), "not granted"))?;
        let handle = Arc::clone(&request.handle);
        let (reply, granted) = oneshot::channel();
        let limit = request.limit.clone();
        let task = handle.context.spawn(request.run(reply, span));
        let gone = match limit.wait_for(&handle.context, granted).await {
            Some(Ok(answer)) => return answer,
            Some(Err(gone)) => gone,
            None => {
                return Err(Error::unavailable(
                    "the acquire did not end within the operation timeout: drive the runtime in which the handle was made, and retry",
                ));
            }
        };
        match task.await {
            // The closure of a retry policy panicked: the panic belongs to its author.
            Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
            _ => Err(runtime::ended(gone)),
        }
    }

    /// Creates the task that acquires a key. Fails if the handle is shut down.
    fn prepare(self, key: Key, id: LeaseId) -> Result<AcquireTask> {
        ensure_acquirable(&key)?;
        let limit = self.limit.clone().unwrap_or_else(|| self.limit());
        let Self { handle, ttl, wait_ttl, grace, sharing, group, metadata, hold, stalled_after, .. } = self;
        let (refreshing, on_held) = (self.refreshing, self.on_held);
        handle.context.ensure_open()?;
        let terms = LeaseSpec {
            lease: id,
            acquire_id: handle.siblings().next_acquire_id(),
            owner: handle.context.settings.owner.clone(),
            sharing,
            // Only a refresh, which never creates a lease, removes the expiry: an acquire may arrive after its caller
            // is gone.
            ttl: wait_ttl.millis(),
            grace: ttl::millis(grace),
            group,
            metadata,
            hold,
        };
        Ok(AcquireTask {
            began: handle.context.clock().now(),
            handle,
            key,
            ttl,
            wait_ttl,
            terms,
            stalled_after,
            refreshing,
            on_held,
            limit,
            is_in_doubt: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
            observers: self.observers,
            is_campaign: self.is_campaign,
            position: OnceLock::new(),
            is_reported: AtomicBool::new(false),
        })
    }
}

//! All leases of a group at once.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    Deadline, Error, FencingToken, Group, IntoName, Key, LossCause, Mongoseal, Result, Ttl,
    engine::{
        context::Context,
        joint_release::GroupRelease,
        lease_shared::LeaseShared,
        notifier::Notifier,
        retry::{self, Backoff},
        shared::Shared,
    },
    record::{BatchRequest, Filter, LeaseRefs, ListedLease, Request, lease_refs},
    store::{BoxFuture, Page},
    types::ttl,
};

/// How many leases are listed at once.
const AT_ONCE: u32 = 2_000;

/// How much time a lease of a group that is refreshed must have left, unless it is said otherwise.
const LEAST: Duration = Duration::from_secs(1);

impl Mongoseal {
    /// Releases all leases of a group: see [`ReleaseGroup`]. Nothing is sent until the returned builder is
    /// awaited.
    pub fn release_group<G>(&self, group: G) -> ReleaseGroup
    where
        G: IntoName<Group>,
    {
        ReleaseGroup { shared: Arc::clone(&self.shared), group: group.into_name(), leases: 0 }
    }

    /// Refreshes all leases of a group, or none: see [`RefreshGroup`]. Nothing is sent until the
    /// returned builder is awaited.
    pub fn refresh_group<G>(&self, group: G, ttl: Duration) -> RefreshGroup
    where
        G: IntoName<Group>,
    {
        let (shared, group) = (Arc::clone(&self.shared), group.into_name());
        RefreshGroup { shared, group, ttl, least: LEAST, leases: 0 }
    }
}

/// Releases all leases of a group, whichever processes hold them; awaiting it gives them as they were, the
/// newest first.
///
/// Made by [`Mongoseal::release_group`]. If the group has no lease, the list is empty; a misspelt group has none.
/// [`leases_at_least`](Self::leases_at_least) makes that an error.
///
/// It releases the leases that are held when it is called. Their holders lose them with
/// [`LossCause::Revoked`], which names this handle's owner and the group: those of this handle before
/// the store is asked, others as [`revoke`](Mongoseal::revoke) has it. The key goes to the next waiter. Notifier of the group
/// keep their places. The list has a lease that its own holder releases at the same moment.
///
/// Entries of leases that had expired are removed, and are not in the list. A key is released with all
/// its leases of the group at once, one key after another; 1,000 leases take two commands.
///
/// # Errors
///
/// - [`Error::Incomplete`]: the group had fewer leases than expected. They are released.
/// - [`Error::Unavailable`]: the store did not confirm the release within the operation timeout. Some of the leases may
///   be released. Retry.
/// - [`Error::Invalid`]: the name cannot be that of a group, or the deployment or its privileges must be changed;
///   [`Error::Corrupt`]: another program wrote over a record.
///
/// # Cancel safety
///
/// Dropping it abandons the answer; the group may be released, or a part of it. As after an error, the
/// leases of this handle that it has ended already are given back in the background.
///
/// # Examples
///
/// ```
/// use mongoseal::{Error, Mongoseal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let one = seal.acquire("volumes/1").group("job-17").await?;
/// let two = seal.acquire("volumes/2").group("job-17").await?;
///
/// let released = seal.release_group("job-17").leases_at_least(2).await?; // in this or any other process
/// assert_eq!(released[0].holder.token, two.token());
/// assert!(!one.is_valid());
///
/// let misspelt = seal.release_group("job-71").leases_at_least(1).await;
/// assert!(matches!(misspelt, Err(Error::Incomplete { found: 0, .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a release is not asked for until it is awaited"]
pub struct ReleaseGroup {
    shared: Arc<Shared>,
    group: Result<Group>,
    leases: usize,
}

impl ReleaseGroup {
    /// Sets how many leases the group must have, so that the caller learns of a name that is misspelt and of
    /// leases that were lost. If it has fewer, these are released and the answer is [`Error::Incomplete`].
    /// Default: 0.
    ///
    /// After [`Error::Unavailable`] retry without it: some of the leases may be released by then.
    pub fn leases_at_least(mut self, leases: usize) -> Self {
        self.leases = leases;
        self
    }

    async fn run(self) -> Result<Vec<ListedLease>> {
        let Self { shared, group, leases } = self;
        let group = group?;
        shared.context.ensure_open()?;
        let released = release_group(&shared, group.clone()).await?;
        check_count(&group, released.len(), leases)?;
        Ok(released)
    }
}

impl IntoFuture for ReleaseGroup {
    type Output = Result<Vec<ListedLease>>;
    type IntoFuture = BoxFuture<Result<Vec<ListedLease>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Refreshes all leases of a group, whichever processes hold them, to a ttl from now, or none of them;
/// awaiting it gives them as they are after that, the oldest first.
///
/// `holder.remaining` of each is the time that it has at least, from its `read_at` on: the ttl, or what it had before if that
/// is more. Its [`grace`](crate::Acquire::grace) comes on top.
///
/// Made by [`Mongoseal::refresh_group`]. If the group has no lease, the list is empty. A lease that was lost is not in it:
/// [`leases_at_least`](Self::leases_at_least) makes that an error. A refresh never shortens a lease, and keeps its own
/// [`grace`](crate::Acquire::grace); a lease without expiry stays without. The deadlines of the leases of this handle
/// move on. Another process keeps to its own ttl, and learns of the new expiry with its next refresh. On MongoDB the refresh
/// is a transaction; 1,000 leases take three commands.
///
/// # Errors
///
/// - [`Error::ExpiresTooSoon`]: one has too little time left, or none. No lease was refreshed.
/// - [`Error::Incomplete`]: the group has fewer leases than expected. No lease was refreshed.
/// - [`Error::Unavailable`]: the store did not confirm within the operation timeout, or the leases of the group
///   came and went all the time; all or none were refreshed, and it can be asked for again.
/// - [`Error::Invalid`]: a group or a ttl that is none, or the deployment or its privileges must be changed;
///   [`Error::Corrupt`]: another program wrote over a record.
///
/// # Cancel safety
///
/// Dropping it abandons the answer; the group may be refreshed or not.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire("volumes/1").group("job-17").ttl(Duration::from_secs(5)).without_refresh().await?;
///
/// let refreshed = seal.refresh_group("job-17", Duration::from_secs(60)).leases_at_least(1).await?;
/// assert_eq!(refreshed.len(), 1);
/// assert_eq!(refreshed[0].holder.remaining, Some(Duration::from_secs(60)));
/// assert!(lease.remaining() > Duration::from_secs(50));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a refresh is not asked for until it is awaited"]
pub struct RefreshGroup {
    shared: Arc<Shared>,
    group: Result<Group>,
    ttl: Duration,
    least: Duration,
    leases: usize,
}

impl RefreshGroup {
    /// How much time each lease must have left, by the store's clock. Default: one second.
    pub fn remaining_at_least(mut self, least: Duration) -> Self {
        self.least = least;
        self
    }

    /// Sets how many leases the group must have, so that the caller learns of a name that is misspelt and of
    /// leases that were lost. If it has fewer, none is refreshed and the answer is [`Error::Incomplete`].
    /// Default: 0.
    pub fn leases_at_least(mut self, leases: usize) -> Self {
        self.leases = leases;
        self
    }

    async fn run(self) -> Result<Vec<ListedLease>> {
        let Self { shared, group, ttl, least, leases } = self;
        let group = group?;
        // Each lease keeps its own grace, which is at most this if its acquire set none.
        let ttl = shared.context.settings.check_ttl(ttl, shared.context.settings.longest_grace())?;
        shared.context.ensure_open()?;
        // No lease has more than that but those without expiry, which have more than any.
        refresh_group(&shared, group, ttl, least.min(Ttl::MAX.duration()), leases).await
    }
}

impl IntoFuture for RefreshGroup {
    type Output = Result<Vec<ListedLease>>;
    type IntoFuture = BoxFuture<Result<Vec<ListedLease>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

async fn release_group(shared: &Shared, group: Group) -> Result<Vec<ListedLease>> {
    let context = &*shared.context;
    let (clock, until) = (context.clock(), context.operation_deadline());
    let (by, reason) = (context.settings.owner.to_string(), format!("its group {group} was released"));
    let selection = Filter { group: Some(group), with_expired: true, ..Filter::default() };
    let (over, mut released) = apart(members(context, &selection, until).await?);
    // Their time was over, and they would keep the group from being refreshed.
    let mut over: HashSet<_> = over.into_iter().map(|lease| lease.key).collect();
    released.reverse();
    let listed_at = clock.now();
    let mut left = lease_refs(released.iter().map(name));
    // Work here stops before anybody else is let in. Should this come to nothing, each gives its key back
    // by itcontext.
    let releasing = GroupRelease::default();
    for hold in held_of(&shared.siblings().notifier, &released) {
        hold.end_with_group(&releasing, LossCause::Revoked { by: by.clone(), reason: reason.clone() });
    }
    let revoke = BatchRequest::Revoke { by, reason };
    let (mut sure, mut backoff) = (true, Backoff::new());
    while !left.is_empty() {
        let done = retry::until_definite(until, context.settings.attempt, |deadline| {
            context.store.apply_batch(&left, &revoke, deadline)
        });
        if done.await? {
            break;
        }
        // Some were given back meanwhile, perhaps by a request before whose answer was lost, or their time
        // was over.
        sure = false;
        let (lapsed, present) = apart(members(context, &selection, until).await?);
        over.extend(lapsed.into_iter().map(|lease| lease.key));
        let present: HashSet<_> = present.iter().map(name).collect();
        left = lease_refs(released.iter().map(name).filter(|lease| present.contains(lease)));
        if let Some((key, _)) = left.first() {
            // What cannot be released may be a record that is none.
            context.read_record(key, until).await?;
            let next = clock.now().saturating_add(backoff.next());
            if next >= until.reading() {
                return Err(Error::unavailable(
                    "some leases of the group were not released within the operation timeout: retry",
                ));
            }
            clock.sleep_until(next).await;
        }
    }
    releasing.done();
    for key in over {
        let prune = |deadline| context.store.apply(&key, Request::Prune, deadline);
        retry::until_definite(until, context.settings.attempt, prune).await?;
    }
    if !sure {
        let elapsed = clock.now().saturating_sub(listed_at);
        released.retain(|lease| lease.holder.remaining.is_none_or(|remaining| remaining > elapsed));
    }
    Ok(released)
}

async fn refresh_group(
    shared: &Shared,
    group: Group,
    ttl: Ttl,
    least: Duration,
    leases: usize,
) -> Result<Vec<ListedLease>> {
    let context = &*shared.context;
    let (clock, until) = (context.clock(), context.operation_deadline());
    let selection = Filter { group: Some(group.clone()), with_expired: true, ..Filter::default() };
    let refresh = BatchRequest::Refresh { ttl: ttl.millis(), least: ttl::millis(least) };
    let refused = Mutex::new(LeaseRefs::new());
    retry::until_definite(until, context.settings.attempt, |_| async {
        let mut listed = members(context, &selection, until).await?;
        for ListedLease { key, holder, .. } in &listed {
            if let Some(remaining) = holder.remaining.filter(|left| left.is_zero() || *left < least) {
                return Err(Error::ExpiresTooSoon { key: key.clone(), token: holder.token, remaining, least });
            }
        }
        check_count(&group, listed.len(), leases)?;
        // Whoever was heard of long ago is heard of again soon: the transaction comes to it first, so that
        // it is the other one who waits, and nobody gives way.
        listed.sort_by_key(|lease| lease.holder.last_seen);
        let leases_by_key = lease_refs(listed.iter().map(name));
        listed.sort_by_key(|lease| lease.holder.token);
        let sent = clock.now();
        let deadline = until.or_after(context.settings.attempt);
        if !leases_by_key.is_empty() && !context.store.apply_batch(&leases_by_key, &refresh, deadline).await? {
            let before =
                mem::replace(&mut *refused.lock().unwrap_or_else(PoisonError::into_inner), leases_by_key.clone());
            if before == leases_by_key {
                // Nobody came or went, so one of them may be in a record that is none.
                for (key, _) in &leases_by_key {
                    context.read_record(key, until).await?;
                }
            }
            return Err(Error::unavailable("leases of the group came or went meanwhile: retry"));
        }
        for hold in held_of(&shared.siblings().notifier, &listed) {
            hold.extend_deadline(sent.saturating_add(context.settings.validity(ttl)));
        }
        // The store has refreshed them later than it has listed them, and never shortens one.
        for lease in &mut listed {
            lease.holder.last_seen = lease.read_at;
            lease.holder.remaining = lease.holder.remaining.map(|before| before.max(ttl.duration()));
        }
        Ok(listed)
    })
    .await
}

/// The leases of a group.
async fn members(context: &Context, selection: &Filter, until: Deadline) -> Result<Vec<ListedLease>> {
    let (mut members, mut after) = (Vec::new(), None);
    loop {
        let Page { leases, next } = context.list(selection, after, AT_ONCE, until).await?;
        members.extend(leases);
        if next.is_none() {
            return Ok(members);
        }
        after = next;
    }
}

/// Those of the leases that are held here.
fn held_of(notifier: &Notifier, leases: &[ListedLease]) -> Vec<Arc<LeaseShared>> {
    let leases: HashSet<_> = leases.iter().map(name).collect();
    let mut holds = notifier.holds();
    holds.retain(|hold| leases.contains(&(hold.key.clone(), hold.token)));
    holds
}

/// Refuses a group with fewer leases than its caller expects.
fn check_count(group: &Group, found: usize, least: usize) -> Result<()> {
    if found < least { Err(Error::Incomplete { group: group.clone(), found, least }) } else { Ok(()) }
}

/// Those whose time is over, and the others.
fn apart(leases: Vec<ListedLease>) -> (Vec<ListedLease>, Vec<ListedLease>) {
    leases.into_iter().partition(|lease| lease.holder.is_expired())
}

fn name(lease: &ListedLease) -> (Key, FencingToken) {
    (lease.key.clone(), lease.holder.token)
}

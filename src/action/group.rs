//! The verbs of a group: `release_group` and `refresh_group`.

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
    record::{BatchRequest, Filter, HolderInfo, LeaseRefs, ListedLease, Request, lease_refs},
    store::{BoxFuture, Page},
    types::ttl,
};

/// How many leases one page lists.
const PAGE_SIZE: u32 = 2_000;

/// How much time each lease must have left for a refresh of its group. The default.
const MIN_REMAINING: Duration = Duration::from_secs(1);

impl Mongoseal {
    /// Releases all leases of a group: see [`ReleaseGroup`]. Nothing is sent until the returned builder is awaited.
    pub fn release_group<G>(&self, group: G) -> ReleaseGroup
    where
        G: IntoName<Group>,
    {
        ReleaseGroup { shared: Arc::clone(&self.shared), group: group.into_name(), leases: 0 }
    }

    /// Refreshes all leases of a group, or none: see [`RefreshGroup`]. Nothing is sent until the returned builder is
    /// awaited.
    pub fn refresh_group<G>(&self, group: G, ttl: Duration) -> RefreshGroup
    where
        G: IntoName<Group>,
    {
        let (shared, group) = (Arc::clone(&self.shared), group.into_name());
        RefreshGroup { shared, group, ttl, least: MIN_REMAINING, leases: 0 }
    }
}

/// Releases all leases of a group, in whatever processes they are held. Awaiting it returns the leases as they were,
/// the newest first.
///
/// [`Mongoseal::release_group`] makes it. If the group has no lease, the list is empty; so it is for a misspelt name.
/// [`leases_at_least`](Self::leases_at_least) makes that an error.
///
/// It releases the leases that are held when it is called. Their holders lose them with [`LossCause::Revoked`], which
/// names this handle's owner and the group. This handle's leases are lost before the request is sent, others as after a
/// [`revoke`](Mongoseal::revoke). The key goes to the next waiter. Waiters of the group keep their places. The list
/// includes a lease that its own holder releases at the same moment.
///
/// Entries of expired leases are removed and are not in the list. All leases of the group on one key are released at
/// once, one key after another. 1,000 leases take two commands.
///
/// # Errors
///
/// - [`Error::Incomplete`]: the group had fewer leases than expected. They are released.
/// - [`Error::Unavailable`]: the store did not confirm the release within the operation timeout. Some of the leases may
///   be released. Retry.
/// - [`Error::Invalid`]: the name is not valid for a group, or the deployment or its privileges must be changed.
/// - [`Error::Corrupt`]: another program wrote over a record.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer. All or some of the leases may be released. As after an error, the leases of
/// this handle that have already ended are released in the background.
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
#[must_use = "a release does nothing until it is awaited"]
pub struct ReleaseGroup {
    shared: Arc<Shared>,
    group: Result<Group>,
    leases: usize,
}

impl ReleaseGroup {
    /// Sets how many leases the group must have, so that the caller notices a misspelt name and lost leases. If the
    /// group has fewer, they are released and the result is [`Error::Incomplete`]. Default: 0.
    ///
    /// After [`Error::Unavailable`] retry without it: some of the leases may already be released.
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

/// Refreshes all leases of a group to a ttl from now, in whatever processes they are held, or none of them. Awaiting it
/// returns the leases as they are after the refresh, the oldest first.
///
/// `holder.remaining` is the least time for which the store keeps the key from the lease's `read_at` on: the ttl and the
/// [`grace`](crate::Acquire::grace) of the lease, or the time that was left before if that is more.
///
/// [`Mongoseal::refresh_group`] makes it. If the group has no lease, the list is empty, and a lost lease is not in the
/// list: [`leases_at_least`](Self::leases_at_least) makes that an error. A refresh never shortens a lease, and each
/// lease keeps its own [`grace`](crate::Acquire::grace). A lease without expiry stays without. The deadlines of this
/// handle's leases are extended. Another process keeps its own ttl, and learns of the new expiry with its next refresh.
/// On MongoDB the refresh is a transaction; 1,000 leases take three commands.
///
/// # Errors
///
/// - [`Error::ExpiresTooSoon`]: a lease has too little time left, or has expired. No lease was refreshed.
/// - [`Error::Incomplete`]: the group has fewer leases than expected. No lease was refreshed.
/// - [`Error::Unavailable`]: the store did not confirm the refresh within the operation timeout, or the leases of the
///   group kept changing. All or none were refreshed. Retry.
/// - [`Error::Invalid`]: the group or the ttl is not valid, or the deployment or its privileges must be changed.
/// - [`Error::Corrupt`]: another program wrote over a record.
///
/// # Cancel safety
///
/// Dropping the future abandons the answer. The group may be refreshed or not.
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
/// assert!(refreshed[0].holder.remaining >= Some(Duration::from_secs(60)));
/// assert!(lease.remaining() > Duration::from_secs(50));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a refresh does nothing until it is awaited"]
pub struct RefreshGroup {
    shared: Arc<Shared>,
    group: Result<Group>,
    ttl: Duration,
    least: Duration,
    leases: usize,
}

impl RefreshGroup {
    /// Sets how much time each lease must have left, by the store's clock. Default: 1 s.
    pub fn remaining_at_least(mut self, least: Duration) -> Self {
        self.least = least;
        self
    }

    /// Sets how many leases the group must have, so that the caller notices a misspelt name and lost leases. If the
    /// group has fewer, none is refreshed and the result is [`Error::Incomplete`]. Default: 0.
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
        // Only leases without expiry have more time left than that, and they have more than any bound.
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
    let (expired, mut released) = split_expired(list_members(context, &selection, until).await?);
    // Expired entries would keep the group from being refreshed.
    let mut expired: HashSet<_> = expired.into_iter().map(|lease| lease.key).collect();
    released.reverse();
    let listed_at = clock.now();
    let mut left = lease_refs(released.iter().map(lease_ref));
    // Work in this process stops before another acquire is granted a key. If the release fails, each lease is released
    // alone by its task.
    let releasing = GroupRelease::default();
    for lease in held_of(&shared.siblings().notifier, &released) {
        lease.end_with_group(&releasing, LossCause::Revoked { by: by.clone(), reason: reason.clone() });
    }
    let revoke = BatchRequest::Revoke { by, reason };
    let (mut is_sure, mut backoff) = (true, Backoff::new());
    while !left.is_empty() {
        let done = retry::until_definite(until, context.settings.attempt, |deadline| {
            context.store.apply_batch(&left, &revoke, deadline)
        });
        if done.await? {
            break;
        }
        // Some leases were released meanwhile, perhaps by an earlier request whose reply was lost, or have expired.
        is_sure = false;
        let (lapsed, present) = split_expired(list_members(context, &selection, until).await?);
        expired.extend(lapsed.into_iter().map(|lease| lease.key));
        let present: HashSet<_> = present.iter().map(lease_ref).collect();
        left = lease_refs(released.iter().map(lease_ref).filter(|lease| present.contains(lease)));
        if let Some((key, _)) = left.first() {
            // If the lease cannot be released, its document may not be a record.
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
    releasing.finish();
    for key in expired {
        let prune = |deadline| context.store.apply(&key, Request::Prune, deadline);
        retry::until_definite(until, context.settings.attempt, prune).await?;
    }
    if !is_sure {
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
    if !context.store.capabilities().atomic_groups {
        return Err(Error::invalid(
            "this store cannot refresh the leases of a group all together or not at all: refresh each lease, or use MongoDB",
        ));
    }
    let (clock, until) = (context.clock(), context.operation_deadline());
    let selection = Filter { group: Some(group.clone()), with_expired: true, ..Filter::default() };
    let refresh = BatchRequest::Refresh { ttl: ttl.millis(), least: ttl::millis(least) };
    let refused = Mutex::new(LeaseRefs::new());
    retry::until_definite(until, context.settings.attempt, |_| async {
        let mut listed = list_members(context, &selection, until).await?;
        for ListedLease { key, holder, .. } in &listed {
            if let Some(remaining) = holder.remaining.filter(|left| left.is_zero() || *left < least) {
                return Err(Error::ExpiresTooSoon { key: key.clone(), token: holder.token, remaining, least });
            }
        }
        check_count(&group, listed.len(), leases)?;
        // The transaction writes the lease that was refreshed longest ago first, because its own refresh is due
        // soonest: then that refresh waits for the transaction, and neither is aborted.
        listed.sort_by_key(|lease| lease.holder.last_seen);
        let leases_by_key = lease_refs(listed.iter().map(lease_ref));
        listed.sort_by_key(|lease| lease.holder.token);
        let sent = clock.now();
        let deadline = until.or_after(context.settings.attempt);
        if !leases_by_key.is_empty() && !context.store.apply_batch(&leases_by_key, &refresh, deadline).await? {
            let before =
                mem::replace(&mut *refused.lock().unwrap_or_else(PoisonError::into_inner), leases_by_key.clone());
            if before == leases_by_key {
                // The leases are the same as before, so one of the documents may not be a record.
                for (key, _) in &leases_by_key {
                    context.read_record(key, until).await?;
                }
            }
            return Err(Error::unavailable("the leases of the group changed meanwhile: retry"));
        }
        for lease in held_of(&shared.siblings().notifier, &listed) {
            lease.extend_deadline(sent.saturating_add(context.settings.validity(ttl)));
        }
        // The store has refreshed them after it listed them, and a refresh never shortens a lease.
        for lease in &mut listed {
            let HolderInfo { last_seen, remaining, grace, .. } = &mut lease.holder;
            *last_seen = lease.read_at;
            *remaining = remaining.map(|before| before.max(ttl.duration().saturating_add(*grace)));
        }
        Ok(listed)
    })
    .await
}

/// Lists the leases of a group, in the order of their tokens.
async fn list_members(context: &Context, selection: &Filter, until: Deadline) -> Result<Vec<ListedLease>> {
    let (mut members, mut after) = (Vec::new(), None);
    loop {
        let Page { leases, next } = context.list(selection, after, PAGE_SIZE, until).await?;
        members.extend(leases.into_iter().filter(|lease| lease.holder.released_at.is_none()));
        if next.is_none() {
            members.sort_by_key(|lease: &ListedLease| lease.holder.token);
            return Ok(members);
        }
        after = next;
    }
}

/// The leases of a list that this handle or a sibling holds.
fn held_of(notifier: &Notifier, listed: &[ListedLease]) -> Vec<Arc<LeaseShared>> {
    let listed: HashSet<_> = listed.iter().map(lease_ref).collect();
    let mut leases = notifier.leases();
    leases.retain(|lease| listed.contains(&(lease.key.clone(), lease.token)));
    leases
}

/// Refuses a group with fewer leases than its caller expects.
fn check_count(group: &Group, found: usize, least: usize) -> Result<()> {
    if found < least { Err(Error::Incomplete { group: group.clone(), found, least }) } else { Ok(()) }
}

/// Separates the expired leases from the others.
fn split_expired(leases: Vec<ListedLease>) -> (Vec<ListedLease>, Vec<ListedLease>) {
    leases.into_iter().partition(|lease| lease.holder.is_expired())
}

fn lease_ref(lease: &ListedLease) -> (Key, FencingToken) {
    (lease.key.clone(), lease.holder.token)
}

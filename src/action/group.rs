//! The verbs of a group: `release_group` and `refresh_group`.
//!
//! Mechanism: list the leases of the group, and send a batch for them by key and token. While some of them lack its
//! effect, list the group again and send the batch for those that are still held.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use crate::{
    engine::{
        context::Context,
        end_action::{BatchOutcome, EndAction},
        lease_inner::LeaseInner,
        lease_state::LeaseState,
        registry::Registry,
        release_batch::ReleaseBatch,
        retry::Backoff,
    },
    handle::Mongoseal,
    record::{BatchRequest, Filter, HolderInfo, LeaseRefs, ListedLease, Request, lease_refs},
    types::{
        deadline::Deadline,
        error::{Error, LossCause, Result},
        group::Group,
        into_name::IntoName,
        key::Key,
        token::FencingToken,
    },
};

/// The leases of a group after [`Mongoseal::refresh_group`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefreshedGroup {
    /// The leases that were refreshed, as they are after the refresh, the oldest first.
    ///
    /// `holder.free_in` is the least time for which the store keeps the key from the lease's `read_at` on: the ttl and
    /// the [`grace`](crate::action::Acquire::grace) of the lease, or the time that was left before if that is more.
    pub refreshed: Vec<ListedLease>,
    /// The leases that were not: they had expired before the call, or ended during it. They are as they were listed, the
    /// oldest first. A lease that ended earlier is in neither list if its record has no entry of it.
    pub gone: Vec<ListedLease>,
}

impl Mongoseal {
    /// Releases all leases of a group, in whatever processes they are held. Returns the leases as they were, the newest
    /// first. If the group has no lease, the list is empty; so it is for a misspelt name.
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
    /// - [`Error::Unavailable`]: the store did not confirm the release within the operation timeout. Some of the leases
    ///   may be released. Retry.
    /// - [`Error::Invalid`]: the name is not valid for a group, or the deployment or its privileges must be changed.
    /// - [`Error::Corrupt`]: another program wrote over a record.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. All or some of the leases may be released. As after an error, the leases
    /// of this handle that have already ended are released in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::Mongoseal;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// let seal = Mongoseal::in_memory();
    /// let one = seal.acquire("volumes/1").group("job-17").await?;
    /// let two = seal.acquire("volumes/2").group("job-17").await?;
    ///
    /// let released = seal.release_group("job-17").await?; // in this or any other process
    /// assert_eq!(released.len(), 2, "check the name of the group");
    /// assert_eq!(released[0].holder.token, two.token());
    /// assert!(!one.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_group(&self, group: impl IntoName<Group>) -> Result<Vec<ListedLease>> {
        // Boxed, because callers hold futures of several calls on their stacks.
        Box::pin(self.release_members(group.into_name()?)).await
    }

    async fn release_members(&self, group: Group) -> Result<Vec<ListedLease>> {
        let context = &*self.handle.context;
        context.ensure_open()?;
        let until = context.operation_deadline();
        let (by, reason) = (context.settings.owner.to_string(), format!("its group {group} was released"));
        let selection = Filter { group: Some(group), with_expired: true, ..Filter::default() };
        let listed_at = context.clock().now();
        // Expired entries would keep the group from being listed as empty.
        let (expired, mut released) = split_expired(list_members(context, &selection, until).await?);
        let mut expired: BTreeSet<_> = expired.into_iter().map(|lease| lease.key).collect();
        released.reverse();
        let held = held_of(&self.handle.siblings().registry, &released);
        let revoke = BatchRequest::Revoke { by: by.clone(), reason: reason.clone() };
        // If this call fails or is dropped, each lease of this handle is released alone.
        let (batch, pending) = ReleaseBatch::new();
        // Work in this process stops before another acquire is granted a key.
        for lease in held {
            let cause = LossCause::Revoked { by: by.clone(), reason: reason.clone() };
            lease.end_with(EndAction::WithGroup(pending.clone()), &LeaseState::Lost { cause });
        }
        // The tokens that are still listed are the ones that the batch has not released.
        let repeated = apply_to_members(context, &selection, &released, &revoke, until, |_| true).await?;
        batch.set(BatchOutcome::Released);
        if let Some(listed) = repeated {
            expired.extend(split_expired(listed).0.into_iter().map(|lease| lease.key));
            // A lease may have expired instead.
            let elapsed = context.clock().now().since(listed_at);
            released.retain(|lease| lease.holder.free_in > elapsed);
        }
        for key in expired {
            context.request(until, |deadline| context.store.apply(&key, Request::Prune, deadline)).await?;
        }
        Ok(released)
    }

    /// Refreshes the leases of a group to a ttl from now, in whatever processes they are held. Returns which were
    /// refreshed, and which are gone.
    ///
    /// If the work of a group needs all of its leases, check that none is gone and that none is missing; if one is, call
    /// [`release_group`](Self::release_group) and start again.
    ///
    /// A refresh never shortens a lease, and each lease keeps its own [`grace`](crate::action::Acquire::grace). A lease without
    /// expiry stays without. The deadlines of this handle's leases are extended. Another process keeps its own ttl, and
    /// learns of the new expiry with its next refresh. Each key is refreshed by itself: its leases of the group together.
    /// 1,000 leases take two commands.
    ///
    /// # Errors
    ///
    /// - [`Error::Unavailable`]: the store did not confirm the refresh of all leases within the operation timeout, for
    ///   example because a transaction has locked a record. Some of the leases may be refreshed. Retry.
    /// - [`Error::Invalid`]: the group or the ttl is not valid, or the deployment or its privileges must be changed.
    /// - [`Error::Corrupt`]: another program wrote over a record. The other leases may be refreshed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. Some of the leases may be refreshed.
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
    /// let group = seal.refresh_group("job-17", Duration::from_secs(60)).await?;
    /// assert_eq!((group.refreshed.len(), group.gone.len()), (1, 0));
    /// assert!(group.refreshed[0].holder.free_in >= Duration::from_secs(60));
    /// assert!(lease.remaining() > Duration::from_secs(50));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refresh_group(&self, group: impl IntoName<Group>, ttl: Duration) -> Result<RefreshedGroup> {
        Box::pin(self.refresh_members(group.into_name()?, ttl)).await
    }

    async fn refresh_members(&self, group: Group, ttl: Duration) -> Result<RefreshedGroup> {
        let context = &*self.handle.context;
        // Each lease keeps its own grace, which is at most this if its acquire set none.
        let ttl = context.settings.check_ttl(ttl, context.settings.longest_grace())?;
        context.ensure_open()?;
        let until = context.operation_deadline();
        let selection = Filter { group: Some(group), with_expired: true, ..Filter::default() };
        let (mut gone, mut refreshed) = split_expired(list_members(context, &selection, until).await?);
        let clock = context.clock();
        let sent = clock.now();
        let refresh = BatchRequest::Keep { ttl: ttl.millis() };
        // The store's clock shows how much time is left since the refresh.
        let lacks_it = |ListedLease { holder, .. }: &ListedLease| {
            let since = clock.now().since(sent);
            let refreshed = ttl.duration().saturating_add(holder.grace);
            holder.free_in.saturating_add(since) < refreshed
        };
        let repeated = apply_to_members(context, &selection, &refreshed, &refresh, until, lacks_it).await?;
        if let Some(listed) = repeated {
            let present: BTreeSet<_> = split_expired(listed).1.iter().map(lease_ref).collect();
            let ended = refreshed.extract_if(.., |lease| !present.contains(&lease_ref(lease)));
            gone.extend(ended);
            gone.sort_by_key(|lease| lease.holder.token);
        }
        for lease in held_of(&self.handle.siblings().registry, &refreshed) {
            lease.extend_deadline(sent.after(context.settings.validity(ttl)));
        }
        // The store has refreshed them after it listed them, and a refresh never shortens a lease.
        for lease in &mut refreshed {
            let HolderInfo { last_seen, free_in, grace, .. } = &mut lease.holder;
            *last_seen = lease.read_at;
            *free_in = ttl.duration().saturating_add(*grace).max(*free_in);
        }
        Ok(RefreshedGroup { refreshed, gone })
    }
}

/// Sends a batch for these leases of a group, until each has it or has ended. A listed lease may lack it if `lacks_it`
/// says so. Returns the last list of the group, if the batch was not applied to all leases at once.
///
/// A key whose record has several leases of the group is changed for all that are named, or for none if one has ended.
/// At a locked record the store may stop, and leave later keys out. So after a list, the first key is sent alone, and
/// then the batch for the others. The answer for one key also says why it cannot be changed.
async fn apply_to_members(
    context: &Context,
    selection: &Filter,
    leases: &[ListedLease],
    batch: &BatchRequest,
    until: Deadline,
    lacks_it: impl Fn(&ListedLease) -> bool,
) -> Result<Option<Vec<ListedLease>>> {
    // Once, because a list shows what an unanswered batch has done.
    let send = async |leases: &LeaseRefs| {
        let deadline = until.or_after(context.settings.attempt);
        // The store stops after half of the time, so that it can answer that a record is locked.
        let half = deadline.with_work_limit(deadline.remaining().mul_f64(0.5));
        match context.store.apply_batch(leases, batch, half).await {
            Err(error @ Error::Unavailable { .. }) => Ok(Err(error)),
            answer => answer.map(Ok),
        }
    };
    let named: BTreeSet<_> = leases.iter().map(lease_ref).collect();
    let mut left = lease_refs(leases.iter().map(lease_ref));
    // The keys that were not changed alone, and are left out of the batch.
    let (mut backoff, mut aside) = (Backoff::new(), BTreeSet::new());
    let mut answer = if left.is_empty() { Ok(true) } else { send(&left).await? };
    if matches!(answer, Ok(true)) {
        return Ok(None);
    }
    let repeating = async {
        loop {
            // Some leases ended meanwhile, perhaps by an earlier request whose reply was lost, or a record cannot be
            // written.
            let listed = list_members(context, selection, until).await?;
            let is_left = |lease: &&ListedLease| {
                let is_present = !lease.holder.is_expired() && named.contains(&lease_ref(lease));
                is_present && (answer.is_err() || aside.contains(&lease.key) || lacks_it(lease))
            };
            left = lease_refs(listed.iter().filter(is_left).map(lease_ref));
            // In the order in which the store writes them.
            left.sort();
            if left.iter().all(|(key, _)| aside.contains(key)) {
                aside.clear();
            }
            let Some(first) = left.iter().position(|(key, _)| !aside.contains(key)) else { return Ok(listed) };
            let (key, tokens) = left.remove(first);
            let alone = send(&vec![(key.clone(), tokens)]).await?;
            if !matches!(alone, Ok(true)) {
                aside.insert(key.clone());
                // Its document may not be a record.
                context.read_record(&key, until).await?;
            }
            left.retain(|(key, _)| !aside.contains(key));
            answer = send(&left).await?;
            if matches!(answer, Ok(true)) && aside.is_empty() {
                return Ok(listed);
            }
            let next = context.clock().now().after(backoff.next());
            if next >= until.instant() {
                let error = Error::unavailable("the leases of the group were not all reached: retry");
                return Err(alone.err().into_iter().fold(error, Error::caused_by));
            }
            context.clock().sleep_until(next).await;
        }
    };
    let repeated = repeating.await;
    repeated.map(Some).map_err(|error| match (error, aside.iter().next()) {
        (error @ Error::Unavailable { .. }, Some(key)) => Error::unavailable(format!(
            "the request did not reach all leases of the group within the operation timeout, for example that on {key:?}: retry"
        ))
        .caused_by(error),
        (error, _) => error,
    })
}

/// Lists the leases of a group, in the order of their tokens.
async fn list_members(context: &Context, selection: &Filter, until: Deadline) -> Result<Vec<ListedLease>> {
    let mut members = context.list_all(selection, || until).await?;
    members.retain(|lease| lease.holder.released_at.is_none());
    members.sort_by_key(|lease| lease.holder.token);
    Ok(members)
}

/// The leases of a list that this handle or a sibling holds.
fn held_of(registry: &Registry, listed: &[ListedLease]) -> Vec<Arc<LeaseInner>> {
    let listed: BTreeSet<_> = listed.iter().map(lease_ref).collect();
    let mut leases = registry.leases();
    leases.retain(|lease| listed.contains(&(lease.key.clone(), lease.token)));
    leases
}

/// Separates the expired leases from the others.
fn split_expired(leases: Vec<ListedLease>) -> (Vec<ListedLease>, Vec<ListedLease>) {
    leases.into_iter().partition(|lease| lease.holder.is_expired())
}

fn lease_ref(lease: &ListedLease) -> (Key, FencingToken) {
    (lease.key.clone(), lease.holder.token)
}

//! All leases of a group at once.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    Error, FencingToken, Group, Key, LossCause, Mongoseal, Result, Ttl,
    hold::Hold,
    record::{Joint, ListedLease, Named, Request, Selection, named},
    retry::{self, Backoff},
    seal::Inner,
    store::{BoxFuture, Page},
    together::GroupRelease,
    ttl,
};

/// How many leases are listed at once.
const AT_ONCE: u32 = 2_000;

/// How much time a lease of a group that is refreshed must have left, unless it is said otherwise.
const LEAST: Duration = Duration::from_secs(1);

impl Mongoseal {
    /// Releases all leases of a group, whichever processes hold them, and gives them as they were, the
    /// newest first. Nothing is given where nobody holds anything in the group.
    ///
    /// Those are meant that are held when it is called. Their holders lose them with
    /// [`LossCause::Revoked`], which names this handle's owner and the group: those of this handle before
    /// the store is asked, others as [`revoke`](Self::revoke) has it. Whoever waits is handed the key, and
    /// a lease of the group that is still waited for is none yet, and stays. A lease that its own
    /// holder gives back at the same moment is among those that are given.
    ///
    /// What is left of leases whose time was over is cleared away, and not given. A key is released with all
    /// its leases of the group at once, one key after another; 1,000 leases take two commands.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where nobody confirmed within the operation timeout: some of the leases may
    /// be released, and it can be asked for again. [`Error::Invalid`] for a group that is none or where the
    /// deployment or its privileges must be changed; [`Error::Corrupt`] where somebody wrote over a record.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer; the group may be released, or a part of it. As after an error, the
    /// leases of this handle that it has ended already are given back in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let one = seal.acquire("volumes/1").group("job-17").await?;
    /// let two = seal.acquire("volumes/2").group("job-17").await?;
    ///
    /// let released = seal.release_group("job-17").await?; // in this or any other process
    /// assert_eq!(released[0].holding.token, two.token());
    /// assert!(!one.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_group<G>(&self, group: G) -> Result<Vec<ListedLease>>
    where
        G: TryInto<Group>,
        G::Error: Into<Error>,
    {
        let group = group.try_into().map_err(Into::into)?;
        self.inner.runs()?;
        self.inner.release_group(group).await
    }

    /// Refreshes all leases of a group, or none: see [`RefreshGroup`]. Nothing is sent until the
    /// returned builder is awaited.
    pub fn refresh_group<G>(&self, group: G, ttl: Duration) -> RefreshGroup
    where
        G: TryInto<Group>,
        G::Error: Into<Error>,
    {
        RefreshGroup { inner: Arc::clone(&self.inner), group: group.try_into().map_err(Into::into), ttl, least: LEAST }
    }
}

/// Refreshes all leases of a group, whichever processes hold them, to a ttl from now, or none of them;
/// awaiting it gives them as they were before, the oldest first.
///
/// Made by [`Mongoseal::refresh_group`]. Where nobody holds anything in the group nothing is given, and a
/// lease that was lost and cleared away is not missed: compare with what you expect. A lease never ends
/// sooner than it would have, keeps its own [`grace`](crate::Acquire::grace), and one without expiry stays so. Of the leases of this handle the deadlines
/// move on; another process, which keeps to its own ttl, learns of it with its next refresh. On MongoDB it
/// is a transaction; 1,000 leases take three commands.
///
/// # Errors
///
/// - [`Error::Lapsing`]: one has too little time left, or none. No lease was refreshed.
/// - [`Error::Unavailable`]: nobody confirmed within the operation timeout, or the leases of the group
///   came and went all the time; all or none were refreshed, and it can be asked for again.
/// - [`Error::Invalid`]: a group or a ttl that is none, or the deployment or its privileges must be changed;
///   [`Error::Corrupt`]: somebody wrote over a record.
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
/// let refreshed = seal.refresh_group("job-17", Duration::from_secs(60)).await?;
/// assert_eq!(refreshed.len(), 1);
/// assert!(lease.remaining() > Duration::from_secs(50));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a refresh is not asked for until it is awaited"]
pub struct RefreshGroup {
    inner: Arc<Inner>,
    group: Result<Group>,
    ttl: Duration,
    least: Duration,
}

impl RefreshGroup {
    /// How much time each lease must have left, by the store's clock. Default: one second.
    pub fn remaining_at_least(mut self, least: Duration) -> Self {
        self.least = least;
        self
    }

    async fn run(self) -> Result<Vec<ListedLease>> {
        let Self { inner, group, ttl, least } = self;
        let group = group?;
        // Each lease keeps its own grace, which is at most this if its acquire set none.
        let ttl = inner.settings.check_ttl(ttl, inner.settings.longest_grace())?;
        inner.runs()?;
        // No lease has more than that but those without expiry, which have more than any.
        inner.refresh_group(group, ttl, least.min(Ttl::MAX.duration())).await
    }
}

impl IntoFuture for RefreshGroup {
    type Output = Result<Vec<ListedLease>>;
    type IntoFuture = BoxFuture<Result<Vec<ListedLease>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Inner {
    async fn release_group(&self, group: Group) -> Result<Vec<ListedLease>> {
        let (clock, until) = (self.clock(), self.give_up());
        let (by, reason) = (self.settings.owner.to_string(), format!("its group {group} was released"));
        let selection = Selection { group: Some(group), with_expired: true, ..Selection::default() };
        let members = self.members(&selection, until).await?;
        let (over, mut released) = apart(members);
        // Their time was over, and they would keep the group from being refreshed.
        let mut over: HashSet<_> = over.into_iter().map(|lease| lease.key).collect();
        released.reverse();
        let listed_at = clock.now();
        let mut left = named(released.iter().map(name));
        // Work here stops before anybody else is let in. Should this come to nothing, each gives its key back
        // by itself.
        let releasing = GroupRelease::default();
        for hold in self.held_of(&released) {
            releasing.takes(&hold, LossCause::Revoked { by: by.clone(), reason: reason.clone() });
        }
        let revoke = Joint::Revoke { by, reason };
        let (mut sure, mut backoff) = (true, Backoff::new());
        while !left.is_empty() {
            let done = retry::until_definite(clock, until, self.settings.attempt, |within| {
                self.store.apply_jointly(&left, &revoke, within)
            });
            if done.await? {
                break;
            }
            // Some were given back meanwhile, perhaps by a request before whose answer was lost, or their time
            // was over.
            sure = false;
            let (lapsed, present) = apart(self.members(&selection, until).await?);
            over.extend(lapsed.into_iter().map(|lease| lease.key));
            let present: HashSet<_> = present.iter().map(name).collect();
            left = named(released.iter().map(name).filter(|lease| present.contains(lease)));
            if let Some((key, _)) = left.first() {
                // What cannot be released may be a record that is none.
                self.sighted(key, until).await?;
                let next = clock.now().saturating_add(backoff.next());
                if next >= until {
                    return Err(Error::unavailable(
                        "some leases of the group were not released within the operation timeout: ask again",
                    ));
                }
                clock.sleep_until(next).await;
            }
        }
        releasing.done();
        for key in over {
            let prune = |within| self.store.apply(&key, Request::Prune, within);
            retry::until_definite(clock, until, self.settings.attempt, prune).await?;
        }
        if !sure {
            let elapsed = clock.now().saturating_sub(listed_at);
            released.retain(|lease| lease.holding.remaining.is_none_or(|remaining| remaining > elapsed));
        }
        Ok(released)
    }

    async fn refresh_group(&self, group: Group, ttl: Ttl, least: Duration) -> Result<Vec<ListedLease>> {
        let (clock, until) = (self.clock(), self.give_up());
        let selection = Selection { group: Some(group), with_expired: true, ..Selection::default() };
        let refresh = Joint::Refresh { ttl: ttl.millis(), least: ttl::millis(least) };
        let refused = Mutex::new(Named::new());
        retry::until_definite(clock, until, self.settings.attempt, |_| async {
            let mut members = self.members(&selection, until).await?;
            for ListedLease { key, holding, .. } in &members {
                if let Some(remaining) = holding.remaining.filter(|left| left.is_zero() || *left < least) {
                    return Err(Error::Lapsing { key: key.clone(), token: holding.token, remaining, least });
                }
            }
            // Whoever was heard of long ago is heard of again soon: the transaction comes to it first, so that
            // it is the other one who waits, and nobody gives way.
            members.sort_by_key(|lease| lease.holding.last_seen);
            let named = named(members.iter().map(name));
            members.sort_by_key(|lease| lease.holding.token);
            let sent = clock.now();
            let within = until.saturating_sub(sent).min(self.settings.attempt);
            if !named.is_empty() && !self.store.apply_jointly(&named, &refresh, within).await? {
                let before = mem::replace(&mut *refused.lock().unwrap_or_else(PoisonError::into_inner), named.clone());
                if before == named {
                    // Nobody came or went, so one of them may be in a record that is none.
                    for (key, _) in &named {
                        self.sighted(key, until).await?;
                    }
                }
                return Err(Error::unavailable("leases of the group came or went meanwhile: ask again"));
            }
            for hold in self.held_of(&members) {
                hold.kept_until(sent.saturating_add(self.settings.lasts(ttl)));
            }
            Ok(members)
        })
        .await
    }

    /// The leases of a group.
    async fn members(&self, selection: &Selection, until: Duration) -> Result<Vec<ListedLease>> {
        let (mut members, mut after) = (Vec::new(), None);
        loop {
            let Page { leases, next } = self.page(selection, after, AT_ONCE, until).await?;
            members.extend(leases);
            if next.is_none() {
                return Ok(members);
            }
            after = next;
        }
    }

    /// Those of the leases that are held here.
    fn held_of(&self, leases: &[ListedLease]) -> Vec<Arc<Hold>> {
        let leases: HashSet<_> = leases.iter().map(name).collect();
        let mut holds = self.shared().waiters.holds();
        holds.retain(|hold| leases.contains(&(hold.key.clone(), hold.token)));
        holds
    }
}

/// Those whose time is over, and the others.
fn apart(leases: Vec<ListedLease>) -> (Vec<ListedLease>, Vec<ListedLease>) {
    leases.into_iter().partition(|lease| lease.holding.is_expired())
}

fn name(lease: &ListedLease) -> (Key, FencingToken) {
    (lease.key.clone(), lease.holding.token)
}

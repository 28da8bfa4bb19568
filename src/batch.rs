//! Refreshes that travel together: one request to the store for all leases of a handle that fall due in
//! the same window.
//!
//! The lease that falls due first takes along those of the same ttl that are past half of their interval. They
//! are due together from then on, so that after one interval leases that were acquired one by one are a
//! batch or two. Nobody waits for the next batch: whoever is due and not under way starts another. Of several that
//! are due at once each is sent when the one before has been answered, as long as that does not take long: at
//! the same time they take the servers as long, and each is under way for the time of all.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use crate::{
    Error, LeaseId, Result, Ttl,
    hold::Hold,
    record::{Joint, named},
    retry::{Backoff, Limit},
    seal::Inner,
};

/// The most leases of one batch.
const MOST: usize = 5_000;

/// How long a store may take for each lease of a batch: MongoDB took 155 microseconds, three members on a small
/// machine, until a majority had confirmed.
const EACH: Duration = Duration::from_micros(500);

/// Of so many that were asked for at once, some of whom are over, each asks by itself.
const TO_FIND: usize = 64;

/// In how many a batch is split where some of it are over, or nobody can say.
const PARTS: usize = 8;

/// The leases of a handle that can travel together.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    /// By their ttl.
    members: Mutex<HashMap<Ttl, HashMap<LeaseId, Member>>>,
    /// Held by the batch that is under way.
    turn: tokio::sync::Mutex<()>,
}

/// A lease that can travel with others.
#[derive(Debug)]
struct Member {
    hold: Arc<Hold>,
    interval: Duration,
    /// When, on the clock, the last request was sent that the store confirmed.
    sent: Duration,
    /// Whether that was sent because this lease was due.
    leads: bool,
    /// The end of the batch that it is in or was in.
    batch: Option<CancellationToken>,
    /// Whether it has to be asked for by itself, because somebody in its batch was over.
    apart: bool,
}

impl Member {
    fn batch(&self) -> Option<&CancellationToken> {
        self.batch.as_ref().filter(|over| !over.is_cancelled())
    }

    /// When it falls due. Who came along the last time leaves it to the one who was due to begin the next
    /// batch, too: ten thousand that wake up at once, to wait for the same answer, cost more than the request.
    fn due(&self) -> Duration {
        let slack = if self.leads { Duration::ZERO } else { self.interval.checked_div(8).unwrap_or_default() };
        self.sent.saturating_add(self.interval).saturating_add(slack)
    }

    /// Whether it would come along.
    fn is_ready(&self, now: Duration) -> bool {
        let half = self.interval.checked_div(2).unwrap_or_default();
        self.batch().is_none() && !self.apart && self.sent.saturating_add(half) <= now && self.hold.is_valid()
    }
}

impl Batches {
    fn members(&self) -> MutexGuard<'_, HashMap<Ttl, HashMap<LeaseId, Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of travelling with others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Travelled {
    /// Nobody came along, or it has to go by itself.
    #[default]
    Not,
    /// It was refreshed.
    Kept,
    /// The store did not confirm.
    InVain,
}

/// The place of a lease among those that can travel together, given up when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    inner: Arc<Inner>,
    hold: Arc<Hold>,
    ttl: Ttl,
}

impl Place {
    /// For a lease of this ttl that is refreshed so often and was so for the last time at `sent`.
    pub(crate) fn take(inner: &Arc<Inner>, hold: &Arc<Hold>, ttl: Ttl, interval: Duration, sent: Duration) -> Self {
        let member = Member { hold: Arc::clone(hold), interval, sent, leads: true, batch: None, apart: false };
        inner.batches.members().entry(ttl).or_default().insert(hold.lease, member);
        Self { inner: Arc::clone(inner), hold: Arc::clone(hold), ttl }
    }

    fn with<T: Default>(&self, act: impl FnOnce(&mut Member) -> T) -> T {
        let mut members = self.inner.batches.members();
        members.get_mut(&self.ttl).and_then(|members| members.get_mut(&self.hold.lease)).map(act).unwrap_or_default()
    }

    /// When, on the clock, it falls due.
    pub(crate) fn due(&self) -> Duration {
        self.with(|member| member.due())
    }

    /// The store confirmed a request of its own.
    pub(crate) fn kept(&self, sent: Duration) {
        self.with(|member| {
            member.sent = sent;
            member.leads = true;
            member.apart = false;
        });
    }

    /// Refreshes the lease and all that would come along; or those alone, where it wants to go by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer; the others are refreshed all the same.
    pub(crate) async fn travel(&self, by_itself: bool) -> Travelled {
        let before = self.with(|member| member.sent);
        let Some(over) = self.depart(by_itself) else { return Travelled::Not };
        over.cancelled().await;
        self.with(|member| match member {
            Member { apart: true, .. } => Travelled::Not,
            Member { sent, .. } if *sent > before => Travelled::Kept,
            _ => Travelled::InVain,
        })
    }

    /// Begins a batch, and gives the end of the one that this lease is in.
    fn depart(&self, by_itself: bool) -> Option<CancellationToken> {
        let (now, settings) = (self.inner.clock().now(), &self.inner.settings);
        let longest = settings.longest_attempt(self.ttl);
        let most = longest.as_micros().checked_div(EACH.as_micros()).and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(MOST).clamp(2, MOST);
        let mut members = self.inner.batches.members();
        let members = members.get_mut(&self.ttl)?;
        let own = members.get(&self.hold.lease)?;
        if let Some(over) = own.batch() {
            return Some(over.clone());
        }
        if own.apart {
            return None;
        }
        let own = (!by_itself).then_some(self.hold.lease);
        let ready = members.iter().filter(|(lease, member)| **lease != self.hold.lease && member.is_ready(now));
        let others = ready.map(|(lease, _)| *lease).take(most.saturating_sub(1));
        let leases: Vec<LeaseId> = own.into_iter().chain(others).collect();
        if leases.len() < 2 {
            return None;
        }
        let over = CancellationToken::new();
        let mut holds = Vec::with_capacity(leases.len());
        for lease in leases {
            if let Some(member) = members.get_mut(&lease) {
                member.batch = Some(over.clone());
                member.leads = own == Some(lease);
                holds.push(Arc::clone(&member.hold));
            }
        }
        // Neighbours lie side by side at the store, too.
        holds.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let batch = Batch { inner: Arc::clone(&self.inner), ttl: self.ttl, longest, _over: over.clone().drop_guard() };
        self.inner.tasks.spawn(batch.run(holds));
        own.map(|_| over)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.inner.batches.members();
        if let Some(members) = all.get_mut(&self.ttl) {
            members.remove(&self.hold.lease);
            if members.is_empty() {
                all.remove(&self.ttl);
            }
        }
    }
}

/// Leases of one ttl under way to the store. Its end is told when this is dropped.
struct Batch {
    inner: Arc<Inner>,
    ttl: Ttl,
    /// How long one request may take.
    longest: Duration,
    _over: DropGuard,
}

impl Batch {
    async fn run(self, holds: Vec<Arc<Hold>>) {
        tokio::select! {
            biased;
            () = self.inner.closing.cancelled() => {}
            () = self.refresh(&holds) => {}
        }
    }

    /// Refreshes all of them until the store confirms or time is up, by one request where it can be.
    ///
    /// Where some are over, and where the store failed twice, the parts are sent one after another: the few
    /// that are likely to be over ask by themselves, and learn why; and a record that cannot be written for a
    /// while, as by an open transaction, takes no more than its own part with it.
    async fn refresh(&self, holds: &[Arc<Hold>]) {
        let clock = self.inner.clock();
        let until = holds.iter().map(|hold| hold.deadline()).max().unwrap_or_default();
        let many = u32::try_from(holds.len()).unwrap_or(u32::MAX);
        let mut limit = Limit::growing(self.longest).and_at_first(EACH.saturating_mul(many));
        let (mut backoff, mut failed) = (Backoff::new(), false);
        let (mut open, mut is_first) = (VecDeque::from([holds]), true);
        while let Some(some) = open.pop_front() {
            let parts = some.chunks(some.len().div_ceil(PARTS).max(1));
            let left = until.saturating_sub(clock.now());
            let attempt = self.attempt(some, limit.next(left).min(left));
            let kept = if mem::take(&mut is_first) { self.in_turn(attempt).await } else { attempt.await };
            match kept {
                Ok(true) => {}
                Ok(false) if some.len() <= TO_FIND => self.note(some, |member| member.apart = true),
                Ok(false) => parts.rev().for_each(|part| open.push_front(part)),
                Err(Error::Unavailable { .. }) => {
                    // What was not tried yet comes before what failed.
                    if failed {
                        open.extend(parts);
                    } else {
                        open.push_back(some);
                    }
                    failed = true;
                    let next = clock.now().saturating_add(backoff.next());
                    if next >= until {
                        return;
                    }
                    clock.sleep_until(next).await;
                }
                Err(error) => {
                    for hold in holds.iter().filter(|hold| hold.is_valid()) {
                        hold.at_risk(&error);
                    }
                    return;
                }
            }
        }
    }

    /// Sends a batch when those before it were answered. One that takes long holds up the others no longer than
    /// they can do without.
    async fn in_turn<T>(&self, batch: impl Future<Output = T>) -> T {
        let patience = self.ttl.third().checked_div(8).unwrap_or_default();
        let turn = timeout(patience, self.inner.batches.turn.lock()).await;
        let mut batch = pin!(batch);
        if let Ok(done) = timeout(patience, &mut batch).await {
            return done;
        }
        drop(turn);
        batch.await
    }

    /// Sends one refresh of those that still hold; says whether all of them did.
    async fn attempt(&self, holds: &[Arc<Hold>], within: Duration) -> Result<bool> {
        let inner = &self.inner;
        let holds: Vec<_> = holds.iter().filter(|hold| hold.is_valid()).collect();
        if holds.is_empty() {
            return Ok(true);
        }
        let leases = named(holds.iter().map(|hold| (hold.key.clone(), hold.token)));
        let sent = inner.clock().now();
        let kept = inner.store.apply_jointly(&leases, &Joint::Keep { ttl: self.ttl.millis() }, within).await;
        debug!(leases = holds.len(), ?kept, "refreshed together");
        match &kept {
            Ok(true) => {
                let until = sent.saturating_add(inner.settings.lasts(self.ttl));
                let kept = holds.into_iter().filter(|hold| hold.kept_until(until) && hold.is_valid());
                self.note(kept, |member| member.sent = sent);
            }
            Ok(false) => {}
            Err(error @ Error::Unavailable { .. }) => {
                for hold in holds {
                    hold.at_risk(error);
                }
            }
            Err(_definite) => {}
        }
        kept
    }

    /// Notes something of those that have not left meanwhile.
    fn note<'a>(&self, holds: impl IntoIterator<Item = &'a Arc<Hold>>, note: impl Fn(&mut Member)) {
        let mut members = self.inner.batches.members();
        let Some(members) = members.get_mut(&self.ttl) else { return };
        for hold in holds {
            members.get_mut(&hold.lease).map(&note);
        }
    }
}

//! Refreshes that travel together: one request to the store for all leases of a handle that fall due in
//! the same window.
//!
//! The lease that falls due first takes along those of the same ttl that are past half of their interval. They
//! are due together from then on, so that after one interval leases that were acquired one by one are a
//! batch or two. Nobody waits for the next batch: whoever is due and not under way starts another. Of several that
//! are due at once each is sent when the one before has been answered, as long as that does not take long: at
//! the same time they take the servers as long, and each is under way for the time of all.

mod round;

use std::{
    collections::HashMap,
    mem,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::round::Round;
use crate::{Error, LeaseId, Result, Ttl, hold::Hold, in_flight::InFlight, seal::Inner};

/// The most leases of one batch.
const MOST: usize = 5_000;

/// How long a store may take for each lease of a batch: MongoDB took 155 microseconds, three members on a small
/// machine, until a majority had confirmed.
const EACH: Duration = Duration::from_micros(500);

/// The leases of a handle that can travel together.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    members: Mutex<HashMap<Kind, HashMap<LeaseId, Member>>>,
    /// Held by the batch that is under way.
    turn: tokio::sync::Mutex<()>,
}

/// Which leases can travel together: those of one ttl whose tasks are on one runtime. A runtime that is not driven any more
/// stops its own leases only.
type Kind = (Ttl, Option<runtime::Id>);

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
    fn members(&self) -> MutexGuard<'_, HashMap<Kind, HashMap<LeaseId, Member>>> {
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
    kind: Kind,
}

impl Place {
    /// For a lease of this ttl that is refreshed so often and was so for the last time at `sent`.
    pub(crate) fn take(inner: &Arc<Inner>, hold: &Arc<Hold>, ttl: Ttl, interval: Duration, sent: Duration) -> Self {
        let member = Member { hold: Arc::clone(hold), interval, sent, leads: true, batch: None, apart: false };
        let kind = (ttl, Handle::try_current().ok().map(|runtime| runtime.id()));
        inner.batches.members().entry(kind).or_default().insert(hold.lease, member);
        Self { inner: Arc::clone(inner), hold: Arc::clone(hold), kind }
    }

    fn with<T: Default>(&self, act: impl FnOnce(&mut Member) -> T) -> T {
        let mut members = self.inner.batches.members();
        members.get_mut(&self.kind).and_then(|members| members.get_mut(&self.hold.lease)).map(act).unwrap_or_default()
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

    /// When, on the clock, the last request was sent that the store confirmed.
    pub(crate) fn refreshed_at(&self) -> Duration {
        self.with(|member| member.sent)
    }

    /// What came of a batch that is over, of a lease that had been refreshed at `before`.
    pub(crate) fn travelled(&self, before: Duration) -> Travelled {
        self.with(|member| match member {
            Member { apart: true, .. } => Travelled::Not,
            Member { sent, .. } if *sent > before => Travelled::Kept,
            _ => Travelled::InVain,
        })
    }

    /// Begins to refresh the lease and all that come along; or those alone, if it wants to go by itself. Gives the end of
    /// the batch that this lease is in.
    pub(crate) fn depart(&self, by_itself: bool) -> Option<CancellationToken> {
        let (now, settings) = (self.inner.clock().now(), &self.inner.settings);
        let (ttl, _) = self.kind;
        let longest = settings.longest_attempt(ttl);
        let most = longest.as_micros().checked_div(EACH.as_micros()).and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(MOST).clamp(2, MOST);
        let mut members = self.inner.batches.members();
        let members = members.get_mut(&self.kind)?;
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
        let batch = Batch { inner: Arc::clone(&self.inner), ttl, kind: self.kind, longest };
        self.inner.spawn(batch.run(holds, over.clone().drop_guard()));
        own.map(|_| over)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.inner.batches.members();
        if let Some(members) = all.get_mut(&self.kind) {
            members.remove(&self.hold.lease);
            if members.is_empty() {
                all.remove(&self.kind);
            }
        }
    }
}

/// Leases of one ttl that are refreshed together.
#[derive(Clone)]
struct Batch {
    inner: Arc<Inner>,
    ttl: Ttl,
    kind: Kind,
    /// How long the store may take to answer all of it.
    longest: Duration,
}

/// The answer to a request for some leases of a batch.
struct Answer {
    /// Which of them.
    some: Range<usize>,
    /// The time on the clock just before it was sent.
    sent: Duration,
    holds: Vec<Arc<Hold>>,
    /// Whether the store has refreshed all of them.
    kept: Result<bool>,
}

impl Batch {
    /// Refreshes all of them until the store confirms or time is up. The batch is over when `over` is dropped.
    async fn run(self, holds: Vec<Arc<Hold>>, over: DropGuard) {
        let closing = self.inner.closing.clone();
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = self.refresh(&holds, over) => {}
        }
    }

    async fn refresh(&self, holds: &[Arc<Hold>], over: DropGuard) {
        let clock = self.inner.clock();
        let patience = self.ttl.third().checked_div(8).unwrap_or_default();
        // Of batches that are due at once each is sent when the one before was answered, or has taken long.
        let mut turn = timeout(patience, self.inner.batches.turn.lock()).await.ok();
        let began = clock.now();
        let until = holds.iter().map(|hold| hold.deadline()).max().unwrap_or_default();
        let silence = holds.iter().map(|hold| hold.risk_after(self.ttl)).max().unwrap_or_default();
        let (mut turn_ends, mut risk_at) = (Some(began.saturating_add(patience)), Some(began.saturating_add(silence)));
        let mut round = Round::begin(self, holds, began);
        while !round.is_over() && clock.now() < until {
            let wake_at = [turn_ends, risk_at].into_iter().flatten().fold(until.min(round.next), Duration::min);
            let answer = tokio::select! {
                biased;
                answer = round.sent.next() => Some(answer),
                () = clock.sleep_until(wake_at) => None,
            };
            let now = clock.now();
            if turn_ends.take_if(|at| answer.is_some() || *at <= now).is_some() {
                drop(turn.take());
            }
            if risk_at.take_if(|at| *at <= now).is_some() {
                self.at_risk_since(round.open(0..holds.len()), began, &unanswered());
            }
            match answer {
                Some(answer) => round.answered(answer, now),
                None if round.next <= now => round.resend(now),
                None => {}
            }
        }
        let sent = mem::take(&mut round.sent);
        drop(over);
        self.listen(sent).await;
    }

    /// Listens to what was sent and not answered, for leases that ask by themselves meanwhile.
    async fn listen(&self, mut sent: InFlight<Answer>) {
        while !sent.is_empty() {
            let answer = sent.next().await;
            self.note_answer(&answer);
        }
    }

    /// Notes what came of a request.
    fn note_answer(&self, Answer { holds, sent, kept, .. }: &Answer) {
        match kept {
            Ok(true) => {
                let until = sent.saturating_add(self.inner.settings.lasts(self.ttl));
                let took = self.inner.clock().now().saturating_sub(*sent);
                // Collected, because moving a deadline on wakes those who follow the lease, and that must not happen under
                // the lock of `note`.
                let kept: Vec<_> = holds.iter().filter(|hold| hold.kept_until(until) && hold.is_valid()).collect();
                for hold in &kept {
                    hold.note_round_trip(took);
                }
                self.note(kept, |member| member.sent = member.sent.max(*sent));
            }
            Err(error @ Error::Unavailable { .. }) => self.at_risk_since(holds, *sent, error),
            Ok(false) | Err(_) => {}
        }
    }

    /// Puts those at risk of which no request was confirmed that was sent at this time or later.
    fn at_risk_since<'a>(&self, holds: impl IntoIterator<Item = &'a Arc<Hold>>, sent: Duration, error: &Error) {
        let until = sent.saturating_add(self.inner.settings.lasts(self.ttl));
        at_risk(holds.into_iter().filter(|hold| hold.deadline() < until), error);
    }

    /// Notes something of those that have not left meanwhile.
    fn note<'a>(&self, holds: impl IntoIterator<Item = &'a Arc<Hold>>, note: impl Fn(&mut Member)) {
        let mut members = self.inner.batches.members();
        let Some(members) = members.get_mut(&self.kind) else { return };
        for hold in holds {
            members.get_mut(&hold.lease).map(&note);
        }
    }
}

fn at_risk<'a>(holds: impl IntoIterator<Item = &'a Arc<Hold>>, error: &Error) {
    for hold in holds.into_iter().filter(|hold| hold.is_valid()) {
        hold.at_risk(error);
    }
}

fn unanswered() -> Error {
    Error::unavailable("the store has not answered a refresh of several leases: it is sent again until the deadline")
}

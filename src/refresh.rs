//! The one background task of a lease: it refreshes, ends and releases it.

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use crate::{
    Error, Lease, LossCause, Metadata, Result, Tick, Ttl,
    batch::{Place, Travelled},
    farewell,
    hold::Hold,
    lease::End,
    record::{self, Outcome, Request},
    retry::{self, Limit},
    seal::{InUse, Inner},
    store::{Applied, Sighting},
    wait::Watch,
};

/// When the task refreshes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refreshing {
    /// At a third of the ttl: two more can fail.
    AtAThird,
    /// This often.
    Every(Duration),
    /// Only when its holder says so.
    ByHand,
}

impl Refreshing {
    fn interval(self, ttl: Ttl) -> Option<Duration> {
        match self {
            Self::AtAThird => Some(ttl.third()),
            // An extension may have made the ttl shorter than was checked.
            Self::Every(interval) => Some(interval.min(ttl.duration().checked_div(2).unwrap_or_default())),
            Self::ByHand => None,
        }
    }

    /// Refuses an interval that is at odds with the ttl.
    pub(crate) fn check(self, ttl: Ttl) -> Result<()> {
        let half = ttl.duration().checked_div(2).unwrap_or_default();
        match self {
            Self::Every(interval) if interval.is_zero() || interval > half => Err(Error::invalid(format!(
                "a lease of {:?} cannot be refreshed every {interval:?}: choose up to half the ttl, so that one failure is not the end",
                ttl.duration()
            ))),
            _ => Ok(()),
        }
    }
}

/// A refresh that the holder asks for.
#[derive(Debug)]
pub(crate) struct Wish {
    /// With another ttl from now on.
    pub(crate) ttl: Option<Ttl>,
    /// With other words for others from now on.
    pub(crate) metadata: Option<Metadata>,
    pub(crate) reply: oneshot::Sender<Result<()>>,
}

/// How long a lease is held before somebody listens for its revocation.
const SETTLED: Duration = Duration::from_secs(1);

/// The task of a lease.
pub(crate) struct Keeper {
    inner: Arc<Inner>,
    hold: Arc<Hold>,
    ttl: Ttl,
    refreshing: Refreshing,
    wishes: mpsc::Receiver<Wish>,
    released: oneshot::Sender<Result<End>>,
    in_use: InUse,
    watch: Watch,
}

impl Keeper {
    /// A lease and the task that keeps it.
    pub(crate) fn start(
        hold: Arc<Hold>,
        ttl: Ttl,
        refreshing: Refreshing,
        in_use: InUse,
        watch: Watch,
    ) -> (Lease, Self) {
        let inner = Arc::clone(in_use.by());
        let (wish, wishes) = mpsc::channel(1);
        let (released, done) = oneshot::channel();
        let lease = Lease::new(Arc::clone(&inner), Arc::clone(&hold), wish, done);
        (lease, Self { inner, hold, ttl, refreshing, wishes, released, in_use, watch })
    }

    /// Keeps the lease until it ends, and releases it if it ended by the will of this process.
    pub(crate) async fn run(self) {
        let Self { inner, hold, mut ttl, refreshing, mut wishes, released, in_use, watch } = self;
        // A runtime that shuts down drops this task where it stands.
        let _ended = EndsWithTask(&hold);
        let clock = inner.clock();
        let due_after = |from: Duration, ttl| refreshing.interval(ttl).map(|interval| from.saturating_add(interval));
        // Soon, where a refresh has failed for good.
        let due_later = |ttl: Ttl| {
            let (now, soon) = (clock.now(), ttl.duration().checked_div(10).unwrap_or_default());
            due_after(now, ttl).map(|due| due.min(now.saturating_add(soon)))
        };
        // From when the granted request was sent, which for one who waited is a while ago.
        let sent = hold.deadline().saturating_sub(inner.settings.lasts(ttl));
        let mut due = due_after(if hold.never_expires() { clock.now() } else { sent }, ttl);
        let mut words = None;
        // What is said to others is said by each lease for itself.
        let place = |ttl, sent, words: Option<&Metadata>| {
            let interval = refreshing.interval(ttl).filter(|_| words.is_none() && !hold.never_expires())?;
            Some(Place::take(&inner, &hold, ttl, interval, sent))
        };
        let mut berth = place(ttl, sent, None);
        // A lease that is held for a moment only is not worth a listener.
        let mut listen_at = clock.now().saturating_add(SETTLED);
        loop {
            let wish = tokio::select! {
                biased;
                () = over(&inner, &hold) => break,
                Some(wish) = wishes.recv() => Some(wish),
                () = watch.taken() => {
                    tokio::select! {
                        biased;
                        () = over(&inner, &hold) => break,
                        () = look(&inner, &hold, ttl) => continue,
                    }
                }
                () = clock.sleep_until(listen_at) => {
                    watch.listen(hold.tick);
                    listen_at = Duration::MAX;
                    continue;
                }
                () = clock.sleep_until(due.unwrap_or(Duration::MAX)) => None,
            };
            if wish.is_none()
                && let Some(berth) = &berth
            {
                // It may have travelled along with others.
                due = Some(berth.due());
                if due > Some(clock.now()) {
                    continue;
                }
                // By itself it learns the tick to listen from, where listening has failed since.
                let by_itself = listen_at == Duration::MAX && watch.is_deaf();
                let travelled = tokio::select! {
                    biased;
                    () = over(&inner, &hold) => break,
                    travelled = berth.travel(by_itself) => travelled,
                };
                due = match travelled {
                    Travelled::Kept => Some(berth.due()),
                    Travelled::InVain => due_later(ttl),
                    Travelled::Not => due,
                };
                if !matches!(travelled, Travelled::Not) {
                    continue;
                }
            }
            let wanted = wish.as_ref().and_then(|wish| wish.ttl).unwrap_or(ttl);
            // Words that were said once are said again, or older ones that arrive late would stand.
            let metadata = wish.as_ref().and_then(|wish| wish.metadata.as_ref()).or(words.as_ref());
            let done = tokio::select! {
                biased;
                () = over(&inner, &hold) => break,
                done = refresh(&inner, &hold, wanted, metadata, wish.is_some()) => done,
            };
            match &done {
                Ok(Kept { sent, tick }) => {
                    ttl = wanted;
                    words = metadata.cloned();
                    due = due_after(*sent, ttl);
                    match &berth {
                        Some(berth) if wish.is_none() => berth.kept(*sent),
                        _ => {
                            drop(berth.take());
                            berth = place(ttl, *sent, words.as_ref());
                        }
                    }
                    // Again, where listening has failed since.
                    if listen_at == Duration::MAX {
                        watch.listen(*tick);
                    }
                }
                // Until the deadline somebody may mend what is wrong. A wish leaves the schedule
                // as it is.
                Err(error) => {
                    hold.at_risk(error);
                    if wish.is_none() {
                        due = due_later(ttl);
                    }
                }
            }
            if let Some(wish) = wish {
                drop(wish.reply.send(done.map(|_sent| ())));
            }
        }
        drop(berth);
        let end = farewell::say(&inner, &hold).await;
        // Whoever hears of the end may ask with the same id at once.
        drop(in_use);
        drop(released.send(end));
    }
}

/// Asks whether the lease is gone, as was heard. Where nobody answers the next refresh will tell, which
/// this does not hold up for long.
async fn look(inner: &Inner, hold: &Hold, ttl: Ttl) {
    if let Ok(Some(cause)) = sight(inner, hold, inner.settings.longest_attempt(ttl)).await {
        hold.lose(cause);
    }
}

/// Waits until the lease has ended, and ends it when its handle or its time does.
async fn over(inner: &Inner, hold: &Hold) {
    tokio::select! {
        biased;
        () = hold.ended.cancelled() => {}
        () = inner.closing.cancelled() => hold.lose(LossCause::ShutDown),
        () = lapsed(inner, hold) => hold.lose(LossCause::Expired),
    }
}

/// Waits until the deadline has passed, which may be moved on meanwhile.
async fn lapsed(inner: &Inner, hold: &Hold) {
    while !hold.remaining().is_zero() {
        inner.clock().sleep_until(hold.deadline()).await;
    }
}

/// That a refresh was confirmed.
struct Kept {
    /// The time on the clock just before it was sent.
    sent: Duration,
    /// The store's tick then.
    tick: Tick,
}

/// Refreshes until the store confirms or time is up: the deadline, and for a wish the operation
/// timeout. Where the store says that the lease is gone, the lease is lost and this does not return.
async fn refresh(inner: &Inner, hold: &Hold, ttl: Ttl, metadata: Option<&Metadata>, wished: bool) -> Result<Kept> {
    let until = if wished { inner.give_up().min(hold.deadline()) } else { hold.deadline() };
    let longest = inner.settings.longest_attempt(ttl);
    let confirmed = retry::until_definite(inner.clock(), until, Limit::growing(longest), |within| async move {
        let attempt = attempt(inner, hold, ttl, metadata, within).await;
        if let Err(error @ Error::Unavailable { .. }) = &attempt {
            hold.at_risk(error);
        }
        attempt
    });
    match confirmed.await? {
        Some(kept) => Ok(kept),
        // Lost: the caller is woken by that.
        None => std::future::pending().await,
    }
}

/// Makes a lease that was just granted one of this ttl.
pub(crate) async fn settle(inner: &Inner, hold: &Hold, ttl: Ttl) -> Result<()> {
    tokio::select! {
        biased;
        () = over(inner, hold) => Err(Error::unavailable(
            "the lease ended before the store confirmed that it has no expiry: ask again",
        )),
        settled = refresh(inner, hold, ttl, None, true) => settled.map(drop),
    }
}

/// Sends one refresh. `None` is a lease that was lost by it.
async fn attempt(
    inner: &Inner,
    hold: &Hold,
    ttl: Ttl,
    metadata: Option<&Metadata>,
    within: Duration,
) -> Result<Option<Kept>> {
    let clock = inner.clock();
    let request = Request::Refresh(record::Refresh {
        lease: hold.lease,
        ttl: ttl.millis(),
        grace: hold.grace,
        metadata: metadata.cloned(),
    });
    let sent = clock.now();
    let Applied { outcome, at } = inner.store.apply(&hold.key, request, within).await?;
    match outcome {
        Outcome::Refreshed { token } if token == hold.token => {
            let kept = hold.kept_until(sent.saturating_add(inner.settings.lasts(ttl)));
            debug!(key = %hold.key, token = %hold.token, kept, "refreshed");
            Ok(kept.then_some(Kept { sent, tick: at.map_or(hold.tick, |at| at.tick) }))
        }
        // This lease id was granted anew after the lease had ended: by a request that was long
        // under way, or in another process.
        Outcome::Refreshed { token } => {
            hold.lose(LossCause::TakenOver { token });
            Ok(None)
        }
        Outcome::Absent => {
            let left = sent.saturating_add(within).saturating_sub(clock.now());
            match sight(inner, hold, left).await? {
                Some(cause) => {
                    hold.lose(cause);
                    Ok(None)
                }
                None => Err(stale()),
            }
        }
        outcome => Err(Error::invalid(format!("the store answered a refresh with {outcome:?}: it is broken"))),
    }
}

/// Reads whether the lease is gone, and why. An answer that wrote nothing may be stale, so nobody
/// is told of a loss, or of a release that found nothing, before this has said so too.
pub(crate) async fn sight(inner: &Inner, hold: &Hold, within: Duration) -> Result<Option<LossCause>> {
    let (record, at) = match inner.store.read(&hold.key, within).await? {
        Sighting::Nothing => return Ok(Some(LossCause::Removed)),
        Sighting::Seen { record, at } => (record, at),
    };
    if record.live_holder(hold.lease, at.now).is_some_and(|holder| holder.version == hold.token) {
        return Ok(None);
    }
    let revoked = record.history.into_iter().rev().find(|revoked| revoked.tokens.contains(&hold.token));
    Ok(Some(match revoked {
        Some(revoked) => LossCause::Revoked { by: revoked.by, reason: revoked.reason },
        // A larger token of one who shares the key takes nothing from this one.
        None if record.version > hold.token && hold.exclusive => LossCause::TakenOver { token: record.version },
        None if record.version < hold.token => LossCause::Removed,
        None => LossCause::Expired,
    }))
}

pub(crate) fn stale() -> Error {
    Error::unavailable("the store answered from a stale copy: ask again")
}

/// Ends the lease when its task is dropped, as a runtime does that shuts down.
struct EndsWithTask<'a>(&'a Hold);

impl Drop for EndsWithTask<'_> {
    fn drop(&mut self) {
        self.0.lose(LossCause::ShutDown);
    }
}

//! How those who wait for one key travel together.
//!
//! Each writes all who wait, so a thousand that ask one after another write a thousand times a thousand. The pipeline
//! of an acquire that waits takes several as well as one: see `verb.rs`.

use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    Inner, MongoStore,
    combine::{Lane, Queued, Turn, answered, in_step, longest, tell, tell_all},
    template, worthwhile,
};
use crate::{
    Clock, Error, Key, Result,
    record::{Acquire, Outcome, Request},
    store::Applied,
};

/// Sends those who wait for a key, and tells each what came of it.
pub(super) async fn send(lane: Lane, inner: Arc<Inner>, key: Key, requests: Vec<Queued>) {
    let requests = alike(in_step(requests));
    let within = longest(&requests);
    let asked: Vec<Request> = requests.iter().map(|queued| queued.request.clone()).collect();
    let applied = MongoStore::run(within, async move { inner.apply_together(&key, &asked, within).await });
    let (applied, lane) = answered(Some(lane), within, applied).await;
    let one_by_one = match applied {
        Ok(applied) => {
            let mut others = Vec::new();
            for (queued, applied) in requests.into_iter().zip(applied) {
                if has_its_answer(&queued.request, &applied.outcome) {
                    tell(queued, Turn::Together(Ok(applied)));
                } else {
                    others.push(queued);
                }
            }
            others
        }
        Err(error @ Error::Unavailable { .. }) => return tell_all(requests, error),
        // What asking again does not mend each hears by itself.
        Err(_definite) => requests,
    };
    match lane {
        Some(lane) => lane.put_back(one_by_one),
        None => one_by_one.into_iter().for_each(|queued| tell(queued, Turn::Apart)),
    }
}

/// Whether this is what came of it. Room is counted before the grant, for all of them; where the grant has made some,
/// those for whom there was none ask once more.
fn has_its_answer(request: &Request, outcome: &Outcome) -> bool {
    match (outcome, room(request)) {
        (Outcome::Full { length }, Some(room)) => u32::try_from(*length).is_ok_and(|length| length >= room),
        _ => true,
    }
}

/// Those who can be applied as one: each of another lease, and with the same bound on how many wait. The rest go by
/// themselves.
fn alike(requests: Vec<Queued>) -> Vec<Queued> {
    let (mut leases, mut bound) = (HashSet::new(), None);
    let (alike, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|queued| {
        let room = room(&queued.request);
        queued.request.lease().is_some_and(|lease| leases.insert(lease)) && *bound.get_or_insert(room) == room
    });
    for queued in others {
        tell(queued, Turn::Apart);
    }
    alike
}

fn room(request: &Request) -> Option<u32> {
    Some(acquire(request)?.patience?.room)
}

fn acquire(request: &Request) -> Option<&Acquire> {
    match request {
        Request::Acquire(acquire) => Some(acquire),
        _ => None,
    }
}

impl Inner {
    /// Applies acquires of a key that wait as one; gives what came of each.
    async fn apply_together(&self, key: &Key, asked: &[Request], within: Duration) -> Result<Vec<Applied>> {
        let until = Clock::Boot.now().saturating_add(within);
        let _no_transaction = self.no_transaction(within).await?;
        let left = worthwhile(until, within)?;
        let command = template::waits(self.head(key, left), asked.iter().filter_map(acquire))?;
        self.update(key, command, asked, left).await
    }
}

//! The lease ids that a handle and its siblings use.
//!
//! Purpose: two acquires of one process with the same lease id would both believe that they hold its lease.
//!
//! Mechanism: a lease id is in use from its acquire until its lease has ended. If an acquire fails and is taken back,
//! the next acquire can use the id at once, but waits until the take-back has ended. Otherwise the take-back could end
//! what the next acquire was granted. If the caller may repeat an acquire that failed, the next acquire with the id
//! continues it under the same acquire id, so that one take-back covers both.
//!
//! Invariant: no acquire sends a request while an earlier acquire with the same lease id is in flight or being taken
//! back.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

use crate::{AcquireId, Error, LeaseId, Result};

/// The lease ids in use.
#[derive(Debug, Default)]
pub(crate) struct LeaseIds(Mutex<HashMap<LeaseId, Use>>);

#[derive(Debug)]
enum Use {
    /// An acquire or a lease uses it.
    Active,
    /// An acquire that is being taken back uses it, until this is cancelled.
    TakenBack(CancellationToken),
    /// This acquire has failed, and the caller may repeat it. The next use of the lease id cancels the token.
    Repeatable(AcquireId, CancellationToken),
}

impl LeaseIds {
    fn by_id(&self) -> MutexGuard<'_, HashMap<LeaseId, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease id in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    ids: Arc<LeaseIds>,
    lease: LeaseId,
    /// Cancelled when the earlier acquire with this id has been taken back, if there is one.
    earlier: Option<CancellationToken>,
    /// The failed acquire that this one repeats, if there is one.
    repeats: Option<AcquireId>,
    /// Whether the next acquire may use the id.
    is_passed_on: bool,
}

/// A lease id whose acquire has failed and may be repeated, until this is dropped.
#[derive(Debug)]
pub(crate) struct Repeatable {
    ids: Arc<LeaseIds>,
    lease: LeaseId,
    /// Cancelled, under the lock, when the id is used again or given up.
    repeated: CancellationToken,
}

/// A lease id whose acquire is being taken back, until this is dropped.
#[derive(Debug)]
pub(crate) struct TakenBack {
    ids: Arc<LeaseIds>,
    lease: LeaseId,
    over: CancellationToken,
}

impl InUse {
    pub(crate) fn begin(ids: &Arc<LeaseIds>, lease: LeaseId) -> Result<Self> {
        let mut by_id = ids.by_id();
        let (earlier, repeats) = match by_id.entry(lease) {
            Entry::Vacant(entry) => {
                entry.insert(Use::Active);
                (None, None)
            }
            Entry::Occupied(mut entry) => match entry.insert(Use::Active) {
                Use::TakenBack(over) => (Some(over), None),
                Use::Repeatable(failed, repeated) => {
                    repeated.cancel();
                    (None, Some(failed))
                }
                Use::Active => {
                    return Err(Error::invalid(format!(
                        "the lease id {lease} is in use by an acquire or a lease of this handle or a sibling: wait until that has ended, or use another id"
                    )));
                }
            },
        };
        drop(by_id);
        Ok(Self { ids: Arc::clone(ids), lease, earlier, repeats, is_passed_on: false })
    }

    /// The failed acquire that this one repeats, if there is one. Its requests may still be executed.
    pub(crate) fn repeats(&self) -> Option<AcquireId> {
        self.repeats
    }

    /// Waits until the earlier acquire with this id has been taken back.
    pub(crate) async fn wait_for_take_back(&self) {
        if let Some(earlier) = &self.earlier {
            earlier.cancelled().await;
        }
    }

    /// Lets the next acquire use the id. It waits until the take-back has ended.
    pub(crate) fn into_taken_back(mut self) -> TakenBack {
        let taken_back = TakenBack { ids: Arc::clone(&self.ids), lease: self.lease, over: CancellationToken::new() };
        self.ids.by_id().insert(self.lease, Use::TakenBack(taken_back.over.clone()));
        // The next acquire may use the id before this is dropped.
        self.is_passed_on = true;
        taken_back
    }

    /// Lets the next acquire use the id and continue this acquire.
    pub(crate) fn into_repeatable(mut self, failed: AcquireId) -> Repeatable {
        let repeated = CancellationToken::new();
        self.ids.by_id().insert(self.lease, Use::Repeatable(failed, repeated.clone()));
        self.is_passed_on = true;
        Repeatable { ids: Arc::clone(&self.ids), lease: self.lease, repeated }
    }
}

impl Repeatable {
    /// Waits until the id is used again.
    pub(crate) async fn repeated(&self) {
        self.repeated.cancelled().await;
    }

    /// Begins the take-back, unless the id is used again.
    pub(crate) fn into_taken_back(self) -> Option<TakenBack> {
        let mut by_id = self.ids.by_id();
        if self.repeated.is_cancelled() {
            return None;
        }
        self.repeated.cancel();
        let taken_back = TakenBack { ids: Arc::clone(&self.ids), lease: self.lease, over: CancellationToken::new() };
        by_id.insert(self.lease, Use::TakenBack(taken_back.over.clone()));
        Some(taken_back)
    }
}

impl Drop for Repeatable {
    fn drop(&mut self) {
        let mut by_id = self.ids.by_id();
        if !self.repeated.is_cancelled() {
            by_id.remove(&self.lease);
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.is_passed_on {
            return;
        }
        let mut by_id = self.ids.by_id();
        match self.earlier.take() {
            Some(earlier) if !earlier.is_cancelled() => drop(by_id.insert(self.lease, Use::TakenBack(earlier))),
            _ => drop(by_id.remove(&self.lease)),
        }
    }
}

impl Drop for TakenBack {
    fn drop(&mut self) {
        let mut by_id = self.ids.by_id();
        // Under the lock: no acquire may reinsert this take-back as its earlier one after the id was freed.
        self.over.cancel();
        if let Entry::Occupied(entry) = by_id.entry(self.lease)
            && matches!(entry.get(), Use::TakenBack(_))
        {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU32, Ordering},
        thread,
    };

    use super::*;
    use crate::HandleId;

    #[test]
    fn an_acquire_waits_for_the_take_back_before_it_also_if_one_in_between_gave_up() {
        let (ids, lease) = (Arc::default(), LeaseId::random());
        let begin = || InUse::begin(&ids, lease);
        let waits = |in_use: &InUse| in_use.earlier.as_ref().is_some_and(|earlier| !earlier.is_cancelled());
        let first = begin().unwrap();
        assert!(!waits(&first) && begin().is_err());
        let taken_back = first.into_taken_back();
        // The acquire in between is dropped.
        assert!(waits(&begin().unwrap()));
        let second = begin().unwrap();
        assert!(waits(&second));
        drop(taken_back);
        assert!(!waits(&second) && begin().is_err());
        drop(second);
        assert!(!waits(&begin().unwrap()));
    }

    #[test]
    fn an_acquire_that_is_repeated_is_continued_and_one_that_is_not_can_be_taken_back() {
        let (ids, lease) = (Arc::default(), LeaseId::random());
        let begin = || InUse::begin(&ids, lease).unwrap();
        let acquire = AcquireId { handle: HandleId::random(), number: 7 };
        let failed = begin().into_repeatable(acquire);
        let again = begin();
        assert_eq!((failed.repeated.is_cancelled(), again.repeats()), (true, Some(acquire)));
        assert!(failed.into_taken_back().is_none() && InUse::begin(&ids, lease).is_err());
        let taken_back = again.into_repeatable(acquire).into_taken_back().unwrap();
        let next = begin();
        assert!(next.earlier.is_some() && next.repeats().is_none());
        drop((taken_back, next));
        drop(begin().into_repeatable(acquire));
        assert!(ids.by_id().is_empty());
    }

    /// Many acquires use the id and are taken back, on several threads.
    #[test]
    fn an_id_that_is_passed_on_is_used_by_one_acquire_at_a_time() {
        let (ids, lease) = (Arc::default(), LeaseId::random());
        let (users, ends) = (AtomicU32::new(0), AtomicBool::new(false));
        let used = || {
            while !ends.load(Ordering::Relaxed) {
                let Ok(in_use) = InUse::begin(&ids, lease) else { continue };
                assert_eq!(users.fetch_add(1, Ordering::SeqCst), 0, "two use it");
                thread::yield_now();
                users.fetch_sub(1, Ordering::SeqCst);
                drop(in_use.into_taken_back());
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(used)).collect();
            thread::sleep(std::time::Duration::from_millis(300));
            ends.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().unwrap();
            }
        });
        assert!(ids.by_id().is_empty(), "it is free at last");
    }
}
